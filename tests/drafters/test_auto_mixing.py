"""Drafts of several members as one tree: the law of the mixture, its weights, who is left."""

from random import Random

import pytest
import torch
from relatives import SAMPLED, ensemble, relative, request, target_of
from scripted import Scripted, Told, saying

from varifocal.decode import Generation, generate
from varifocal.drafters import drafter_class, load_drafter
from varifocal.drafters._graft import mixed
from varifocal.drafters.auto import AutoDrafter
from varifocal.plan import Budget, CostModel
from varifocal.request import ask
from varifocal.sampling import Sampling
from varifocal.tree import DraftTree, Evidence
from varifocal.verify import follow

CURVE = tuple(1 + 0.02 * n for n in range(41))
ALL = Budget(depth=9, nodes=10_000)
WORDS = 20
SCRIPT = [Random(n).randrange(2, WORDS) for n in range(200)]


def cost(start, step, *members):
    return CostModel(verify=CURVE, step=step, start=start, other=0.05, members=members)


CHEAP, FREE, DEAR = cost(0.05, 0.02), cost(0.0, 0.0), cost(2.0, 0.5)
MEASURED = cost(0.0, 0.0, CHEAP, FREE, CHEAP)


def tree(*edges, evidence=None):
    """From (token, parent, score), root 9 first."""
    rows = [(9, -1, 1.0), *edges]
    tokens, parents, scores = (torch.tensor(column) for column in zip(*rows, strict=True))
    return DraftTree(tokens, parents, scores, evidence)


def random_tree(dice, size=12):
    rows, scores = [], [1.0]
    for n in range(1, dice.randrange(2, size)):
        above = dice.randrange(n)
        taken = {token for token, parent, _ in rows if parent == above}
        scores.append(scores[above] * dice.random() / 4)
        rows.append((dice.choice(sorted(set(range(8)) - taken)), above, scores[-1]))
    return tree(*rows)


def paths(made):
    """Every node's tokens below the root, with its score."""
    found = {}
    for node in range(len(made)):
        row = made.ancestry[node].nonzero()[1:, 0]
        found[tuple(made.tokens[row].tolist())] = float(made.scores[node])
    return found


# -- the mixture -------------------------------------------------------------------------------


def mixture_by_hand(path, laws, weights):
    """A path's probability, step by step: those that have a child there speak."""
    joint = 1.0
    for depth in range(1, len(path) + 1):
        above, own = path[: depth - 1], path[:depth]
        speaking = [
            (law, w) for law, w in zip(laws, weights, strict=True)
            if any(len(p) == depth and p[:-1] == above for p in law)
        ]  # fmt: skip
        share = sum(w * law[own] / law[above] for law, w in speaking if own in law)
        joint *= share / sum(w for _, w in speaking)
    return joint


def test_every_node_has_the_probability_of_the_weighted_laws_of_those_who_go_on_there():
    dice = Random(0)
    for count in (1, 2, 3) * 20:
        trees = [random_tree(dice) for _ in range(count)]
        weights = [dice.random() + 0.01 for _ in trees]
        laws = [paths(t) for t in trees]
        made = mixed(trees, weights, ALL, 0.0)
        made.tree.check()
        found = paths(made.tree)
        assert found.keys() == set().union(*laws)
        for (path, score), owners in zip(found.items(), made.owners, strict=True):
            assert score == pytest.approx(mixture_by_hand(path, laws, weights), rel=1e-4)
            assert owners == {n for n, law in enumerate(laws) if path in law}


def test_one_tree_alone_stays_as_it_is_and_equal_trees_are_one():
    one = random_tree(Random(3))
    for count in (1, 3):
        made = mixed([one] * count, [0.2] * count, ALL, 0.0).tree
        assert paths(made) == pytest.approx(paths(one))


def test_a_mixture_keeps_the_likeliest_nodes_whole_paths_and_the_budget():
    dice = Random(1)
    for size in range(1, 30):
        trees = [random_tree(dice) for _ in range(3)]
        whole = paths(mixed(trees, (0.5, 0.3, 0.2), ALL, 0.0).tree)
        made = mixed(trees, (0.5, 0.3, 0.2), Budget(depth=9, nodes=size), 0.0).tree
        made.check()
        assert len(made) - 1 == min(size, len(whole) - 1)
        kept = paths(made)
        assert kept.keys() <= whole.keys()
        best = sorted(whole.values(), reverse=True)[: len(made)]
        assert sorted(kept.values(), reverse=True) == pytest.approx(best)


def test_a_mixture_looked_where_the_first_that_looks_did():
    looks = Evidence(torch.tensor([[-1], [4]]), torch.tensor([[0.0], [1.0]]))
    trees = [tree((1, 0, 0.6)), tree((2, 0, 0.5), evidence=looks)]
    made = mixed(trees, (0.5, 0.5), ALL, 0.0).tree
    assert made.tokens.tolist() == [9, 1, 2]
    assert made.evidence.entries.tolist() == [[-1], [-1], [4]]


# -- the same text -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def target():
    return target_of("llava_next")


@pytest.fixture(scope="module")
def members(target):
    torch.manual_seed(0)
    cls = drafter_class("fovea")
    return (
        cls(target, cls.Config()),
        load_drafter("lookup", target),
        ensemble(target, relative(), depth=3),
    )


@pytest.mark.parametrize(
    ("mix", "costs", "sampling"),
    [
        ("none", MEASURED, Sampling()),
        ("none", MEASURED, SAMPLED),
        ("mtcp", MEASURED, Sampling()),
        ("mtcp", MEASURED, SAMPLED),
        ("mt", None, Sampling()),
    ],
)
def test_the_text_with_fovea_lookup_and_ensemble_is_that_of_plain_decoding(
    mix, costs, sampling, target, members
):
    asked = request(sampling, tokens=24)
    plain = generate(target, load_drafter("plain", target), asked)
    auto = AutoDrafter(target, AutoDrafter.Config(mix=mix, max_nodes=12), members)
    drafted = generate(target, auto, asked, cost=costs)
    assert drafted.token_ids == plain.token_ids
    assert sampling == SAMPLED or any(r.num_accepted for r in drafted.rounds)


def test_mixed_drafts_keep_to_the_budget_and_are_trees(target, members, monkeypatch):
    auto = AutoDrafter(target, AutoDrafter.Config(mix="mtcp", nodes=9), members)
    made, propose = [], auto.propose

    def noted(state, root, budget):
        made.append((propose(state, root, budget), budget))
        return made[-1][0]

    monkeypatch.setattr(auto, "propose", noted)
    generate(target, auto, request(tokens=12))
    assert len(made) > 3
    for one, budget in made:
        one.check()
        assert len(one) - 1 <= 9 and int(one.depth.max()) <= budget.depth
        assert not set(one.tokens[1:].tolist()) & target.banned_ids


@torch.inference_mode()
def test_an_ensemble_that_is_first_asked_late_drafts_as_one_that_read_along(target):
    small = relative()
    member = ensemble(target, small, policy="static", depth=3)
    auto = AutoDrafter(target, AutoDrafter.Config(), (member,))
    prompt = target.encode(request())
    kv, seen = target.prefill(prompt, auto.want)
    root = int(seen.logits.argmax())
    late, along = auto.start(prompt, seen, root), member.start(prompt, seen, root)
    for position in range(1, 5):
        guess = DraftTree.chain([root, 7])
        (out,) = target.forward([guess], [kv], auto.want)
        verdict = follow(guess, out.logits, Sampling(), position)
        kv.keep(verdict.path, len(guess))
        rows = out.rows(verdict.path)
        auto.observe(late, verdict, rows)
        member.observe(along, verdict, rows)
        root = verdict.tokens[-1]
    budget = Budget(depth=3, nodes=9)
    made, wanted = auto.propose(late, root, budget), member.propose(along, root, budget)
    assert made.tokens.tolist() == wanted.tokens.tolist()
    torch.testing.assert_close(made.scores, wanted.scores)


def test_an_ensemble_that_is_first_asked_late_learns_from_there_on(target):
    member = ensemble(target, relative(), depth=3)
    wrong = Told(target, [0] * 99, "wrong")
    wrong.recipe = {"scores": {"tau": 3.0}}
    auto = AutoDrafter(target, AutoDrafter.Config(), (wrong, member))
    generation = Generation(
        target, auto, request(tokens=40), cost=cost(0.05, 0.02, CHEAP, cost(0.2, 0.1))
    )
    for _ in generation:
        pass
    state = generation.drafter_state.arms[1].state
    assert len({tuple(block.values()) for block in state.weights}) > 1


# -- weights, and who is left ------------------------------------------------------------------


class Sometimes(Told):
    """Right in rounds whose text has a length that it knows; counts how often it was asked."""

    def __init__(self, target, knows, depth=5):
        super().__init__(target, SCRIPT, depth=depth)
        self.knows, self.asked = knows, 0

    def propose(self, state, root, budget):
        self.asked += 1
        self._mode = "perfect" if self.knows(len(state)) else "wrong"
        return super().propose(state, root, budget)


def decoded(*members, costs, mix="mtcp", tokens=150):
    target = Scripted(saying(SCRIPT, WORDS), WORDS)
    made = tuple(Sometimes(target, knows) for knows in members)
    auto = AutoDrafter(target, AutoDrafter.Config(mix=mix), made)
    generation = Generation(target, auto, ask("x", max_new_tokens=tokens), cost=costs)
    for _ in generation:
        pass
    return generation, made


def always(length):
    return True


def never(length):
    return False


@pytest.mark.parametrize("mix", ["mt", "mtcp", "adaboost"])
def test_one_that_disappoints_loses_its_weight_and_is_left(mix):
    costs = cost(0.2, 0.05, cost(0.2, 0.05), cost(0.2, 0.05))
    generation, (right, wrong) = decoded(always, never, costs=costs, mix=mix)
    rounds = len(generation.result().rounds)
    assert right.asked == rounds and 0 < wrong.asked < rounds / 3
    # Equal before and, when its misses are long past, again: it would get another chance.
    blocks = [tuple(block.values()) for block in generation.drafter_state.weights]
    assert blocks[0] == (0.5, 0.5) and max(blocks)[0] > 0.55 and min(blocks)[0] == 0.5


def test_one_that_adds_nothing_to_another_is_left_however_right_it_is():
    costs = cost(0.2, 0.05, cost(0.2, 0.05), cost(0.25, 0.05))
    _, (first, twin) = decoded(always, always, costs=costs)
    assert 0 < twin.asked < first.asked / 3


def test_two_that_are_right_in_turn_both_draft_while_a_draft_is_cheap():
    """So a round needs fewer forwards than the better of them alone; dear drafts are not mixed."""

    def odd(length):
        return length // 5 % 2 == 1

    def even(length):
        return length // 5 % 2 == 0

    counted = {}
    for drafting, costs in (("cheap", CHEAP), ("dear", cost(1.0, 0.3))):
        both = cost(costs.start, costs.step, costs, costs)
        for mix in ("none", "mtcp"):
            generation, made = decoded(odd, even, costs=both, mix=mix)
            rounds = len(generation.result().rounds)
            counted[drafting, mix] = rounds, min(one.asked for one in made) / rounds
    assert counted["cheap", "mtcp"][0] < 0.8 * counted["cheap", "none"][0]
    assert counted["cheap", "mtcp"][1] > 0.8
    assert counted["dear", "mtcp"][1] < 0.6


def test_without_costs_all_that_add_something_draft():
    generation, members = decoded(lambda n: n % 4 < 2, lambda n: n % 4 > 1, costs=None)
    rounds = len(generation.result().rounds)
    assert rounds < 150 / 5 and all(one.asked >= rounds - 1 for one in members)


def test_static_and_random_weights_are_controls_that_learn_nothing():
    costs = cost(0.05, 0.02, CHEAP, CHEAP)
    static, _ = decoded(always, never, costs=costs, mix="static", tokens=40)
    assert {tuple(w.values()) for w in static.drafter_state.weights} == {(0.5, 0.5)}
    drawn = [
        decoded(always, never, costs=costs, mix="random", tokens=40)[0].drafter_state.weights
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1] and len({tuple(w.values()) for w in drawn[0]}) > 3


def test_members_of_one_name_are_told_apart_where_weights_are_shown():
    costs = cost(0.05, 0.02, CHEAP, CHEAP)
    generation, _ = decoded(always, never, costs=costs, tokens=20)
    assert list(generation.drafter_state.weights[0]) == ["told 1", "told 2"]


def test_two_mixed_requests_in_turn_do_not_disturb_each_other():
    target = Scripted(saying(SCRIPT, WORDS), WORDS)
    members = (Told(target, SCRIPT, "mixed", depth=4), load_drafter("lookup", target))
    auto = AutoDrafter(target, AutoDrafter.Config(mix="mtcp"), members)
    costs = cost(0.0, 0.0, CHEAP, FREE)
    asked = [ask("x", max_new_tokens=n) for n in (20, 33)]
    alone = [generate(target, auto, one, cost=costs) for one in asked]
    live = [Generation(target, auto, one, cost=costs) for one in asked]
    rounds = [iter(g) for g in live]
    while any([next(r, None) for r in rounds]):
        pass
    for one, turn in zip(alone, live, strict=True):
        made = turn.result()
        assert made.token_ids == one.token_ids
        assert made.acceptance_histogram == one.acceptance_histogram
