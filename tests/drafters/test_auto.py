"""Choosing among drafters: what is used, what is grafted, and what it may cost."""

from dataclasses import replace

import pytest
import tiny
import torch

from varifocal.decode import Generation, generate
from varifocal.drafters import drafter_class, load_drafter
from varifocal.drafters._graft import grafted
from varifocal.drafters.auto import AutoDrafter
from varifocal.engine import Engine
from varifocal.errors import BadOption
from varifocal.plan import AutoPlanner, Budget, CostModel
from varifocal.request import ask
from varifocal.sampling import Sampling
from varifocal.tree import DraftTree, Evidence

CURVE = tuple(1 + 0.02 * n for n in range(41))
FREE = CostModel(verify=CURVE, step=0.0, start=0.0, other=0.05)
CHEAP = CostModel(verify=CURVE, step=0.02, start=0.05, other=0.05)
DEAR = CostModel(verify=CURVE, step=2.0, start=4.0, other=0.05)


def tree(*edges, evidence=None):
    """From (token, parent, score), root 9 first."""
    rows = [(9, -1, 1.0), *edges]
    tokens, parents, scores = (torch.tensor(column) for column in zip(*rows, strict=True))
    return DraftTree(tokens, parents, scores, evidence)


def edges(t):
    return list(zip(t.tokens.tolist(), t.parents.tolist(), strict=True))


def random_member(name, target, seed=0):
    torch.manual_seed(seed)
    cls = drafter_class(name)
    return cls(target, cls.Config())


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target()


@pytest.fixture
def members(target):
    return (
        random_member("fovea", target),
        random_member("text_only", target, seed=1),
        load_drafter("lookup", target),
        load_drafter("lookahead", target),
    )


GREEDY = Sampling()


def request(sampling=GREEDY, tokens=60):
    return ask(
        "what is it? what is it? " * 3, [tiny.picture(0)], max_new_tokens=tokens, sampling=sampling
    )


def composed(*members):
    return CostModel(verify=CURVE, step=0.0, start=0.0, other=0.05, members=members)


# -- grafting ----------------------------------------------------------------------------------


def test_a_graft_shares_nodes_and_adds_the_rest():
    base = tree((1, 0, 0.6), (2, 0, 0.3), (3, 1, 0.5))
    made = grafted(base, tree((1, 0, 0.9), (4, 1, 0.8)), Budget(depth=5, nodes=10), 0.0)
    made.check()
    assert edges(made) == [(9, -1), (1, 0), (2, 0), (3, 1), (4, 1)]
    assert made.scores.tolist() == pytest.approx([1.0, 0.9, 0.3, 0.5, 0.8])


def test_the_node_budget_holds_and_the_likeliest_stay():
    base = tree((1, 0, 0.6), (2, 0, 0.3), (3, 1, 0.5))
    made = grafted(base, tree((7, 0, 0.4), (8, 1, 0.35)), Budget(depth=5, nodes=3), 0.0)
    assert edges(made) == [(9, -1), (1, 0), (3, 1), (7, 0)]


def test_a_cost_model_decides_how_many_nodes_pay():
    base = tree((1, 0, 0.9), (2, 0, 0.001))
    cost = CostModel(verify=tuple(1.0 + n for n in range(10)), step=0.0, start=0.0, other=0.0)
    made = grafted(base, tree((7, 0, 0.002)), Budget(depth=5, nodes=9, cost=cost), spent=0.0)
    assert edges(made) == [(9, -1), (1, 0)] or len(made) == 1


def test_what_is_kept_is_closed_under_parents_whatever_the_scores():
    dice = torch.Generator().manual_seed(0)
    for _ in range(300):
        pair = []
        for _ in range(2):
            rows, scores = [], [1.0]
            for n in range(1, int(torch.randint(2, 9, (1,), generator=dice))):
                above = int(torch.randint(0, n, (1,), generator=dice))
                score = scores[above] * float(torch.rand(1, generator=dice))
                taken = {token for token, parent, _ in rows if parent == above}
                token = next(
                    t for t in torch.randperm(12, generator=dice).tolist() if t not in taken
                )
                rows.append((token, above, score))
                scores.append(score)
            pair.append(tree(*rows))
        size = int(torch.randint(1, 12, (1,), generator=dice))
        made = grafted(pair[0], pair[1], Budget(depth=9, nodes=size), 0.0)
        made.check()
        assert len(made) - 1 <= size
        below = made.scores[made.parents[1:]] if len(made) > 1 else made.scores
        assert (made.scores[1:] <= below + 1e-6).all() or len(made) == 1


def test_nodes_of_a_graft_have_looked_nowhere():
    looks = Evidence(torch.tensor([[-1], [4], [5]]), torch.tensor([[0.0], [1.0], [1.0]]))
    base = tree((1, 0, 0.6), (2, 0, 0.3), evidence=looks)
    made = grafted(base, tree((7, 0, 0.4)), Budget(depth=5, nodes=9), 0.0)
    assert made.evidence.entries.tolist() == [[-1], [4], [5], [-1]]
    assert made.evidence.weights.tolist() == [[0.0], [1.0], [1.0], [0.0]]


# -- the same text -----------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
@pytest.mark.parametrize("costs", [None, (CHEAP, DEAR, FREE, FREE), (DEAR, CHEAP, FREE, FREE)])
def test_the_text_is_that_of_plain_decoding(sampling, costs, target, members):
    plain = generate(target, load_drafter("plain", target), request(sampling))
    auto = AutoDrafter(target, AutoDrafter.Config(), members)
    cost = None if costs is None else composed(*costs)
    drafted = generate(target, auto, request(sampling), cost=cost)
    assert drafted.token_ids == plain.token_ids


def test_two_requests_in_turn_do_not_disturb_each_other(target, members):
    auto = AutoDrafter(target, AutoDrafter.Config(), members)
    cost = composed(CHEAP, DEAR, FREE, FREE)
    alone = [generate(target, auto, request(tokens=n), cost=cost) for n in (20, 33)]
    both = [Generation(target, auto, request(tokens=n), cost=cost) for n in (20, 33)]
    rounds = [iter(g) for g in both]
    while any([next(r, None) for r in rounds]):
        pass
    for one, turn in zip(alone, both, strict=True):
        made = turn.result()
        assert made.token_ids == one.token_ids
        drafted = [[r.num_drafted for r in result.rounds] for result in (one, made)]
        assert drafted[0] == drafted[1]


# -- the choice --------------------------------------------------------------------------------


def watched(target, members, cost, tokens=60):
    """How often each member with weights was asked for a draft."""
    asked = [0] * len(members)
    for number, member in enumerate(members):

        def propose(state, root, budget, *, number=number, member=member):
            asked[number] += 1
            return type(member).propose(member, state, root, budget)

        member.propose = propose
    auto = AutoDrafter(target, AutoDrafter.Config(), members)
    result = generate(target, auto, request(tokens=tokens), cost=cost)
    return asked, result


def test_of_two_equals_the_cheaper_one_drafts(target, members):
    asked, _ = watched(target, members, composed(CHEAP, DEAR, FREE, FREE))
    assert asked[0] > 0 and asked[1] == 0
    for member in members:
        del member.propose
    asked, _ = watched(target, members, composed(DEAR, CHEAP, FREE, FREE))
    assert asked[1] > 0 and asked[0] == 0


def test_a_recipe_that_promises_more_is_tried_first(target, members):
    members[1].recipe = {"scores": {"tau": 6.0}}
    asked, _ = watched(target, members, composed(CHEAP, CHEAP, FREE, FREE))
    assert asked[1] > 0
    assert asked[0] < asked[1] or asked[0] == 0


def test_one_that_disappoints_is_left_for_another(target):
    wrong = random_member("fovea", target)
    wrong.recipe = {"scores": {"tau": 6.5}}
    other = random_member("text_only", target, seed=1)
    other.recipe = {"scores": {"tau": 6.0}}
    asked, _ = watched(target, (wrong, other), composed(CHEAP, CHEAP), tokens=40)
    assert asked[0] >= 1 and asked[1] >= 1


@torch.inference_mode()
def test_an_arm_that_was_not_asked_before_catches_up_to_the_same_draft(target):
    """Reading late gives the state that reading along gives."""
    member = random_member("text_only", target)
    auto = AutoDrafter(target, AutoDrafter.Config(), (member,))
    prompt = target.encode(request())
    cache, seen = target.prefill(prompt, auto.want)
    state, direct = auto.start(prompt, seen, 5), member.start(prompt, seen, 5)
    from varifocal.verify import follow

    root, position = 5, 1
    for _ in range(4):
        guess = DraftTree.chain([root, 7])
        (out,) = target.forward([guess], [cache], auto.want)
        verdict = follow(guess, out.logits, Sampling(), position)
        cache.keep(verdict.path, len(guess))
        auto.observe(state, verdict, out.rows(verdict.path))
        member.observe(direct, verdict, out.rows(verdict.path))
        root, position = verdict.tokens[-1], position + len(verdict.tokens)
    budget = Budget(depth=4, nodes=12)
    late, along = auto.propose(state, root, budget), member.propose(direct, root, budget)
    assert torch.equal(late.tokens, along.tokens) and torch.equal(late.parents, along.parents)


def test_rounds_are_plain_where_nothing_pays(target, members):
    cost = composed(DEAR, DEAR)
    dear = replace(cost, start=DEAR.start, step=DEAR.step)
    auto = AutoDrafter(target, AutoDrafter.Config(), members[:2])
    result = generate(target, auto, request(), cost=dear)
    assert result.fallback and all(r.num_drafted == 0 for r in result.rounds)


def test_the_planner_learns_what_the_round_really_took():
    planner = AutoPlanner(composed(DEAR), depth=6, nodes=20)
    for _ in range(8):  # two tokens a round, for nothing: that pays
        budget = planner.budget(100)
        planner.learn(budget, num_drafted=1, num_accepted=1, drafting=0.0)
    assert planner.fallback is None
    for _ in range(8):  # the same after a dear draft does not
        budget = planner.budget(100)
        planner.learn(budget, num_drafted=1, num_accepted=1, drafting=14.0)
    assert planner.fallback is not None


def test_free_members_draft_alone_where_arms_are_dear(target):
    """The tiny target repeats itself; lookup then copies."""
    members = (random_member("fovea", target), load_drafter("lookup", target))
    cost = composed(DEAR, FREE)
    asked, result = watched(target, members, cost, tokens=120)
    assert asked[1] > 0 and asked[0] == 0
    assert any(r.num_accepted for r in result.rounds)


# -- options -----------------------------------------------------------------------------------


def test_without_shipped_weights_it_takes_lookup(target):
    auto = load_drafter("auto", target)
    assert [m.name for m in auto.members] == ["lookup"]


def test_members_keep_to_its_limits(target):
    auto = load_drafter("auto", target, members="lookup+lookahead", nodes=12, max_nodes=20)
    assert [m.config.nodes for m in auto.members] == [12, 12]


@pytest.mark.parametrize("members", ["auto", "plain+lookup", "lookup+lookup", "nothing"])
def test_strange_members_are_refused_by_name(members, target):
    with pytest.raises(BadOption, match=members.split("+")[0]):
        load_drafter("auto", target, members=members)


def test_its_cost_is_that_of_its_members(target):
    from varifocal.cost import cost_model

    auto = load_drafter("auto", target, members="lookup+lookahead")
    cost = cost_model(target, auto)
    assert len(cost.members) == 2 and cost.start == min(m.start for m in cost.members)
    assert cost.shared(3).members[0] == cost.members[0].shared(3)
    text = request(tokens=30)
    plain = generate(target, load_drafter("plain", target), text)
    assert Engine(target, auto, cost).generate(text).token_ids == plain.token_ids
