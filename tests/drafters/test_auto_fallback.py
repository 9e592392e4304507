"""Where drafting never pays: what a request costs, counted in plain rounds."""

from random import Random

import pytest
import torch
from relatives import ensemble, relative, request, target_of
from scripted import Scripted, Told, saying

from varifocal.decode import Generation
from varifocal.drafters.auto import AutoDrafter
from varifocal.plan import AutoPlanner, CostModel
from varifocal.request import ask

CURVE = tuple(1 + 0.02 * n for n in range(41))
WORDS, LENGTH = 20, 300
SCRIPT = [Random(n).randrange(2, WORDS) for n in range(LENGTH)]


def cost(start, step, *members):
    return CostModel(verify=CURVE, step=step, start=start, other=0.05, members=members)


def seconds_of(target, drafter, asked, costs):
    """Of each round after the prefill by the cost model, in plain rounds, and its tokens."""
    generation = Generation(target, drafter, asked, cost=costs)
    drafting, propose = [], drafter.propose

    def noted(state, root, budget):
        tree = propose(state, root, budget)
        drafting.append(tree.seconds or 0.0)
        return tree

    drafter.propose = noted
    made = []
    for decided in generation:
        verified = costs.verify[decided.num_drafted] + costs.other
        made.append(((sum(drafting) + verified) / costs.plain, len(decided.tokens)))
        drafting.clear()
    return made[1:]


def slowdown(rounds):
    return sum(seconds for seconds, _ in rounds) / sum(tokens for _, tokens in rounds)


def scripted():
    return Scripted(saying(SCRIPT, WORDS), WORDS)


@pytest.mark.parametrize("mix", ["none", "mtcp"])
@pytest.mark.parametrize("dear", [0.1, 0.4, 0.8])
def test_auto_ends_at_plain_speed_however_many_of_its_members_are_wrong(mix, dear):
    target = scripted()
    members = tuple(Told(target, SCRIPT, "wrong") for _ in range(3))
    costs = cost(dear, dear / 4, *[cost(dear * (1 + n / 4), dear / 4) for n in range(3)])
    auto = AutoDrafter(target, AutoDrafter.Config(mix=mix), members)
    rounds = seconds_of(target, auto, ask("x", max_new_tokens=LENGTH), costs)
    assert 1 < slowdown(rounds) < 1.07
    assert slowdown(rounds[len(rounds) // 2 :]) < 1.03


def test_auto_finds_back_to_drafting_after_a_part_that_nobody_guesses():
    target = scripted()
    silent = [7] * 100 + SCRIPT[100:]  # wrong before, right from there on
    auto = AutoDrafter(target, AutoDrafter.Config(), (Told(target, silent),))
    costs = cost(0.4, 0.1, cost(0.4, 0.1))
    rounds = seconds_of(target, auto, ask("x", max_new_tokens=LENGTH), costs)
    assert slowdown(rounds[:60]) > 1 > 1.5 * slowdown(rounds[-40:])


def test_the_ensemble_ends_at_plain_speed_with_a_draft_model_that_is_always_wrong():
    target = target_of("llava_next")
    drafter = ensemble(target, relative(noise=9.0))
    with torch.inference_mode():
        rounds = seconds_of(target, drafter, request(tokens=120), cost(0.3, 0.15))
    assert 1 < slowdown(rounds) < 1.1
    late = rounds[len(rounds) // 2 :]  # one try, and plain rounds
    assert sum(seconds > 1 for seconds, _ in late) <= 6 and slowdown(late) < 1.06


def test_a_draft_that_takes_time_and_comes_to_nothing_counts_as_drafting():
    planner = AutoPlanner(cost(0.3, 0.1), depth=6, nodes=20)
    for _ in range(12):  # text that is not found costs nothing
        planner.learn(planner.budget(100), num_drafted=0, num_accepted=0, drafting=0.0)
    assert planner.fallback is None
    for _ in range(12):
        planner.learn(planner.budget(100), num_drafted=0, num_accepted=0, drafting=0.5)
    assert planner.fallback is not None


def test_rests_grow_with_each_vain_try_and_are_short_again_after_one_that_paid():
    planner = AutoPlanner(cost(0.3, 0.1), depth=6, nodes=20)

    def rests_of(rounds, accepted):
        made = []
        for _ in range(rounds):
            budget = planner.budget(100)
            made.append("." if budget.depth else "-")
            planner.learn(budget, 6 if budget.depth else 0, accepted if budget.depth else 0)
        return [len(rest) for rest in "".join(made).split(".") if rest]

    assert rests_of(620, 0)[:6] == [12, 24, 48, 96, 192, 192]
    rests_of(250, 5)
    assert rests_of(40, 0)[0] == 12
