"""Weights of guessers: every policy against a naive reference on made-up histories."""

import math

import numpy as np
import pytest
import torch
from scripted import Scripted, Told, saying

from varifocal.drafters._arbitration import (
    ABSENT,
    MISSED,
    Arbitration,
    Rule,
    boosted,
    grid,
    tokens_guessed,
)
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.tree import DraftTree
from varifocal.verify import Verification

VOCABULARY = 7
SHARPNESS = (0.5, 1.5, 4.0, 1.0)  # of each member about the target's law


def history(positions, members, seed=0):
    """Laws of members that resemble the target's more or less, the target's, and the text."""
    rng = torch.Generator().manual_seed(seed)
    target = torch.randn(positions, VOCABULARY, generator=rng, dtype=torch.float64) * 2
    noise = torch.randn(positions, members, VOCABULARY, generator=rng, dtype=torch.float64)
    near = torch.tensor(SHARPNESS[:members], dtype=torch.float64)[None, :, None]
    laws = (target[:, None] * near / 2 + noise).softmax(-1)
    law = target.softmax(-1)
    return laws, law, torch.multinomial(law, 1, generator=rng)[:, 0]


def learnt(rule, laws, target, tokens, at_once=3):
    """As in decoding: some positions at a time."""
    made = Arbitration(rule, "ABCD"[: laws.shape[1]])
    for begin in range(0, len(tokens), at_once):
        part = slice(begin, begin + at_once)
        made.learn(laws[part], target[part], tokens[part])
    return made


def naive_error(kind, p, q, token):
    if kind == "hard":
        return float(int(q.argmax()) != token)
    if kind == "tvd":
        return 0.5 * sum(abs(float(a) - float(b)) for a, b in zip(p, q, strict=True))
    pairs = zip(p, q, strict=True)
    return sum(float(a) * math.log(float(a) / max(float(b), 1e-10)) for a, b in pairs)


def mixture(weights, row):
    return sum(w * law for w, law in zip(weights, row, strict=True))


def naive_best(points, rule, laws, target, tokens):
    """The grid's point by the rule: loops over points and positions, nothing shared."""
    window = rule.window or len(tokens)
    sums = []
    for point in points:
        total, ties = 0.0, 0.0
        for row, p, token in list(zip(laws, target, tokens.tolist(), strict=True))[-window:]:
            q = mixture(point, row)
            total += naive_error(rule.labels, p, q, token)
            ties += naive_error("kl", p, q, token)
        sums.append((total, ties if rule.labels == "hard" else 0.0))
    return points[min(range(len(points)), key=sums.__getitem__)]


@pytest.mark.parametrize("window", [0, 1, 4, 16])
@pytest.mark.parametrize("labels", ["hard", "kl", "tvd"])
@pytest.mark.parametrize("members", [2, 3])
def test_the_grid_search_is_the_naive_one(window, labels, members):
    rule = Rule(policy="mt", labels=labels, window=window)
    for seed in range(4):
        laws, target, tokens = history(21, members, seed)
        made = learnt(rule, laws, target, tokens)
        wanted = naive_best(grid(members, 10), rule, laws, target, tokens)
        assert made.choose() == pytest.approx(tuple(wanted))


def test_matches_decide_and_only_among_equals_the_divergence():
    # B is right twice and far from the target, A is right once and near it.
    target = torch.tensor([[0.5, 0.4, 0.1], [0.5, 0.4, 0.1]])
    near, far = torch.tensor([0.45, 0.5, 0.05]), torch.tensor([0.98, 0.01, 0.01])
    laws = torch.stack([torch.stack([near, far]), torch.stack([near, far])])
    made = learnt(Rule(labels="hard"), laws, target, torch.tensor([0, 0]))
    chosen = made.choose()
    mixed = torch.tensor(chosen) @ laws[0]
    assert int(mixed.argmax()) == 0  # right at both positions
    # Of all points that are, it is the one that resembles the target most.
    points = [p for p in grid(2, 10) if int((torch.tensor(p).float() @ laws[0]).argmax()) == 0]
    errors = [naive_error("kl", target[0], mixture(p, laws[0]), 0) for p in points]
    assert chosen == pytest.approx(tuple(points[int(np.argmin(errors))]))
    assert 0 < chosen[0] < 1


@pytest.mark.parametrize("labels", ["hard", "kl", "tvd"])
@pytest.mark.parametrize("window", [0, 1, 4, 16])
def test_inverse_errors_are_the_naive_ones(labels, window):
    rule = Rule(policy="mtcp", labels=labels, window=window, temperature=0.5)
    laws, target, tokens = history(19, 4, seed=3)
    made = learnt(rule, laws, target, tokens)
    rows = list(zip(laws, target, tokens.tolist(), strict=True))[-window:]
    errors = [sum(naive_error(labels, p, row[v], t) for row, p, t in rows) for v in range(4)]
    inverse = torch.tensor([1 / max(e, 1e-6) / 0.5 for e in errors], dtype=torch.float64)
    assert made.choose() == pytest.approx(tuple(inverse.softmax(0).tolist()))


def test_boosting_is_the_naive_one():
    rng = np.random.default_rng(5)
    hits = (rng.random((40, 3)) < [0.8, 0.6, 0.7]).astype(float)
    weights = [1 / 40] * 40
    wanted, left = [0.0] * 3, [0, 1, 2]
    while left:
        errors = {
            v: sum(w for w, right in zip(weights, hits[:, v], strict=True) if not right)
            for v in left
        }
        best = min(left, key=lambda v: errors[v])
        if errors[best] >= 0.5:
            break
        wanted[best] = 0.5 * math.log((1 - errors[best]) / errors[best])
        weights = [
            w * math.exp(-wanted[best] if right else wanted[best])
            for w, right in zip(weights, hits[:, best], strict=True)
        ]
        weights = [w / sum(weights) for w in weights]
        left.remove(best)
    assert boosted(hits) == pytest.approx(wanted)
    assert sum(v > 0 for v in wanted) > 1


def test_boosting_gives_equal_weights_where_nobody_is_right_more_often_than_not():
    laws = torch.zeros(6, 2, 3)
    laws[:, :, 0] = 1.0
    made = learnt(Rule(policy="adaboost"), laws, laws[:, 0], torch.tensor([1, 2, 1, 2, 1, 2]))
    assert made.choose() == (0.5, 0.5)


def test_boosting_of_decided_positions_prefers_who_was_right():
    laws, target, _ = history(30, 3, seed=1)
    tokens = target.argmax(-1)
    made = learnt(Rule(policy="adaboost"), laws, target, tokens)
    hits = (laws.argmax(-1) == tokens[:, None]).double().numpy()
    votes = boosted(hits)
    assert hits.mean(0).argmax() == votes.argmax() == 2
    assert made.choose() == pytest.approx(tuple(votes / votes.sum()))


@pytest.mark.parametrize("policy", ["mt", "mtcp", "adaboost"])
def test_the_first_block_has_equal_weights(policy):
    assert Arbitration(Rule(policy=policy), "MT").choose() == (0.5, 0.5)


def test_static_weights_stay_as_given():
    laws, target, tokens = history(9, 2)
    made = learnt(Rule(policy="static", fixed=(3.0, 1.0)), laws, target, tokens)
    assert made.choose() == made.choose() == (0.75, 0.25)
    assert Arbitration(Rule(policy="static"), "MTC").choose() == pytest.approx((1 / 3,) * 3)


def test_random_weights_belong_to_request_and_block():
    rule = Rule(policy="random", seed=4)
    one, twin = Arbitration(rule, "MT", "a"), Arbitration(rule, "MT", "a")
    drawn = [one.choose() for _ in range(5)]
    assert drawn == [twin.choose() for _ in range(5)] and len(set(drawn)) == 5
    assert all(min(w) >= 0 and sum(w) == pytest.approx(1) for w in drawn)
    assert Arbitration(rule, "MT", "b").choose() != drawn[0]
    assert Arbitration(Rule(policy="random", seed=5), "MT", "a").choose() != drawn[0]


@pytest.mark.parametrize(("members", "count"), [(1, 1), (2, 11), (3, 66), (4, 286)])
def test_the_grid_has_every_point_at_steps_of_a_tenth(members, count):
    points = grid(members, 10)
    assert len(points) == count == len({tuple(p) for p in points.round(3).tolist()})
    assert points.sum(1) == pytest.approx(1) and (points * 10 == (points * 10).round()).all()
    assert points[0] == pytest.approx(1 / members, abs=0.1)  # the most even first


@pytest.mark.parametrize("members", [5, 6, 9])
def test_a_grid_of_many_members_is_bounded_by_wider_steps(members):
    points = grid(members, 10)
    assert members <= len(points) <= 286 and points.sum(1) == pytest.approx(1)


def test_chosen_weights_are_kept_block_by_block():
    laws, target, tokens = history(12, 2, seed=2)
    made = Arbitration(Rule(labels="kl"), "MT")
    for begin in range(0, 12, 4):
        made.choose()
        made.learn(laws[begin : begin + 4], target[begin : begin + 4], tokens[begin : begin + 4])
    assert made.blocks[0] == {"M": 0.5, "T": 0.5} and len(made.blocks) == 3
    assert all(sum(block.values()) == pytest.approx(1) for block in made.blocks)
    assert made.blocks[2] != made.blocks[0]


@pytest.mark.parametrize("policy", ["mt", "mtcp", "adaboost", "static", "random"])
def test_without_a_member_the_others_have_learnt_the_same(policy):
    laws, target, tokens = history(15, 3, seed=6)
    rule = Rule(policy=policy)
    made = learnt(rule, laws, target, tokens).without("B")
    alone = Arbitration(rule, "AC")
    alone.learn(laws[:, [0, 2]], target, tokens)
    assert made.members == ("A", "C") and made.num_candidates == alone.num_candidates
    assert made.choose() == pytest.approx(alone.choose(), abs=1e-5)
    made.learn(laws[:, [0, 2]], target, tokens)  # goes on
    assert sum(made.choose()) == pytest.approx(1)


def test_fixed_weights_go_with_their_members():
    made = Arbitration(Rule(policy="static", fixed=(1.0, 2.0, 1.0)), "ABC").without("A")
    assert made.choose() == pytest.approx((2 / 3, 1 / 3))


def test_a_law_that_is_one_token_leaves_everything_finite():
    laws = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    for policy in ("mt", "mtcp"):
        for labels in ("hard", "kl", "tvd"):
            made = Arbitration(Rule(policy=policy, labels=labels), "AB")
            made.learn(laws, torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
            assert made.choose() == pytest.approx((1.0, 0.0), abs=0.51)
            assert all(math.isfinite(w) for w in made.choose())
            assert made.choose()[0] > 0.5


# -- members that name a token each ------------------------------------------------------------


@pytest.mark.parametrize("policy", ["mt", "mtcp", "adaboost"])
def test_named_tokens_are_laws_with_all_their_mass_on_one_token(policy):
    rng = torch.Generator().manual_seed(8)
    guesses = torch.randint(3, (24, 3), generator=rng)
    tokens = torch.where(torch.rand(24, generator=rng) < 0.7, guesses[:, 1], guesses[:, 2])
    by_name = Arbitration(Rule(policy=policy), "ABC")
    by_name.learn_guesses(guesses.tolist(), tokens.tolist())
    laws = torch.nn.functional.one_hot(guesses, 3).float()
    hits = (laws.argmax(-1) == tokens[:, None]).float().sum(0)
    weights = by_name.choose()
    assert int(np.argmax(weights)) == int(hits.argmax()) == 1
    if policy != "mt":  # whose ties are misses here
        hard = Rule(policy=policy, labels="hard") if policy == "mtcp" else Rule(policy=policy)
        by_law = Arbitration(hard, "ABC")
        by_law.learn(laws, laws[:, 1], tokens)
        assert weights == pytest.approx(by_law.choose(), abs=1e-6)


def test_who_was_not_asked_is_neither_right_nor_wrong():
    asked = Arbitration(Rule(policy="mtcp"), "AB")
    asked.learn_guesses([[1, 1], [1, 2], [2, 1], [1, 1]], [1, 1, 1, 1])
    seldom = Arbitration(Rule(policy="mtcp"), "AB")
    seldom.learn_guesses([[1, 1], [1, ABSENT], [2, 1], [1, ABSENT]], [1, 1, 1, 1])
    silent = Arbitration(Rule(policy="mtcp"), "AB")
    silent.learn_guesses([[1, 1], [1, MISSED], [2, 1], [1, MISSED]], [1, 1, 1, 1])
    a, b = asked.choose()
    assert a == b == 0.5  # one miss each
    assert seldom.choose()[1] > 0.9 and silent.choose()[1] < 0.5
    never = Arbitration(Rule(policy="mtcp"), "AB")
    never.learn_guesses([[1, ABSENT], [2, ABSENT]], [1, 1])
    assert never.choose() == (0.5, 0.5)


def test_a_tree_names_its_likeliest_child_until_its_first_miss():
    tree = DraftTree(
        torch.tensor([9, 1, 2, 3, 4]),
        torch.tensor([-1, 0, 0, 2, 3]),
        torch.tensor([1.0, 0.3, 0.6, 0.5, 0.4]),
    )
    # It names 2 and the text goes on with 2, 3, then 7 where it names 4.
    assert tokens_guessed(tree, Verification([0, 2, 3], [2, 3, 7])) == [2, 3, 4]
    # The text takes the other child: a miss for the name, but the tree goes on.
    assert tokens_guessed(tree, Verification([0, 1], [1, 8])) == [2, MISSED]
    assert tokens_guessed(tree, Verification([0], [5])) == [2]
    assert tokens_guessed(DraftTree.chain([9]), Verification([0, 1], [5, 6])) == [MISSED]


@pytest.mark.parametrize("policy", ["mt", "mtcp", "adaboost"])
def test_drafters_of_any_kind_are_weighed_by_their_trees(policy):
    script = [65 + n % 20 for n in range(60)]
    target = Scripted(saying(script))
    modes = ("wrong", "mixed", "perfect")
    members = [Told(target, script, mode, depth=3) for mode in modes]
    made = Arbitration(Rule(policy=policy), modes)
    answer = script[:1]
    states = [[*answer] for _ in members]
    for turn in range(8):
        trees = [
            one.propose(state, answer[-1], Budget(depth=3, nodes=9))
            for one, state in zip(members, states, strict=True)
        ]
        if turn % 3 == 2:
            trees[1] = None  # it was not asked
        coming = script[len(answer) : len(answer) + 3]
        made.learn_trees(trees, Verification([0, 1, 2], coming))
        for state in (answer, *states):
            state += coming
    weights = made.choose()
    assert weights[2] > 0.5 and weights[2] > weights[1] >= weights[0]
    assert list(made.blocks[0]) == list(modes)


def test_a_round_in_which_nobody_was_asked_teaches_nothing():
    made = Arbitration(Rule(window=2), "AB")
    made.learn_guesses([[1, 2], [1, 2]], [1, 1])
    before = made.choose()
    made.learn_trees([None, None], Verification([0], [5]))
    assert made.choose() == before != (0.5, 0.5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"window": -1}, "window"),
        ({"steps": 0}, "steps"),
        ({"policy": "mtcp", "temperature": 0.0}, "temperature"),
        ({"policy": "static", "fixed": (1.0, -1.0)}, "negative"),
        ({"policy": "static", "fixed": (0.0, 0.0)}, "all be 0"),
        ({"fixed": (1.0, 1.0)}, "no effect"),
        ({"policy": "mtcp", "steps": 5}, "no effect"),
        ({"temperature": 2.0}, "no effect"),
        ({"policy": "adaboost", "labels": "kl"}, "no effect"),
        ({"policy": "random", "window": 4}, "no effect"),
    ],
)
def test_settings_that_are_wrong_or_idle_are_named(settings, said):
    with pytest.raises(BadOption, match=said):
        Rule(**settings)


@pytest.mark.parametrize(("name", "value"), [("policy", "best"), ("labels", "soft")])
def test_unknown_policies_and_labels_are_named_with_the_known_ones(name, value):
    rule = Rule()
    object.__setattr__(rule, name, value)  # as where types are not checked
    with pytest.raises(BadOption, match=f"{name} must be one of (mt|hard), .*got '{value}'"):
        rule.__post_init__()


def test_weights_of_another_number_of_members_are_refused():
    with pytest.raises(BadOption, match="2 weights for 3 members"):
        Arbitration(Rule(policy="static", fixed=(1.0, 1.0)), "MTC")
