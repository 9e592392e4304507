"""Tree growth: the likeliest nodes, closed under parents, no larger than pays."""

import itertools

import numpy as np
import pytest
import torch

from varifocal.drafters._growth import grow
from varifocal.plan import AutoPlanner, Budget, CostModel

VOCABULARY = 5


def law(seed: int) -> torch.Tensor:
    """Log-probabilities of the next token after each token."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(VOCABULARY, VOCABULARY, generator=rng).log_softmax(-1)


def grown(table: torch.Tensor, budget: Budget, width: int = VOCABULARY):
    levels = []

    def expand(frontier):
        levels.append(frontier)
        return table[frontier.tokens], None

    tree = grow(0, (table[:1], None), expand, width, budget)
    return tree, levels


def paths(tree):
    """Each node as the tokens from the root down to it."""
    found = []
    for node, parent in enumerate(tree.parents.tolist()):
        above = found[parent] if node else ()
        found.append((*above, int(tree.tokens[node])) if node else ())
    return found[1:]


@pytest.mark.parametrize("seed", range(6))
def test_the_kept_nodes_are_the_likeliest_of_all_when_every_node_is_expanded(seed):
    table = law(seed)
    joint = {}
    for depth in (1, 2):
        for tokens in itertools.product(range(VOCABULARY), repeat=depth):
            steps = zip((0, *tokens), tokens, strict=False)
            joint[tokens] = float(sum(table[a, b] for a, b in steps))
    best = set(sorted(joint, key=joint.get, reverse=True)[:9])
    tree, _ = grown(table, Budget(depth=2, nodes=9))
    tree.check()
    assert set(paths(tree)) == best
    scores = [joint[p] for p in paths(tree)]
    np.testing.assert_allclose(tree.scores[1:].log().tolist(), scores, atol=1e-5)


def test_ties_keep_parents_before_their_children():
    table = torch.full((VOCABULARY, VOCABULARY), float("-inf"))
    table[:, 3] = 0.0  # probability 1: a child is as likely as its parent
    for nodes in (1, 2, 3, 4):
        tree, _ = grown(table, Budget(depth=4, nodes=nodes))
        tree.check()
        assert paths(tree) == [(3,) * k for k in range(1, nodes + 1)]


@pytest.mark.parametrize("seed", range(4))
def test_each_frontier_node_sees_its_ancestors_and_itself(seed):
    _, levels = grown(law(seed), Budget(depth=4, nodes=20), width=3)
    tokens = [level.tokens.tolist() for level in levels]
    for number, level in enumerate(levels):
        for row in range(3):
            seen = level.sees[row].view(number + 1, 3)
            assert seen.sum(-1).tolist() == [1] * (number + 1)  # one of each level
            assert bool(seen[number, row])
            if number:
                parent = int(level.row[row])
                assert torch.equal(seen[:number].flatten(), levels[number - 1].sees[parent])
    assert all(len(t) == 3 for t in tokens)


def cost(step: float, per_node: float) -> CostModel:
    return CostModel(
        verify=tuple(1 + per_node * n for n in range(41)), step=step, start=step, other=0.0
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_best_size_is_the_fastest_of_all(seed):
    rng = np.random.default_rng(seed)
    scores = -np.sort(-(rng.random(12) ** 3))
    model = cost(0.1, float(rng.random()) * 0.3)
    rates = [(1 + scores[:n].sum()) / (0.2 + model.verify[n]) for n in range(13)]
    assert model.best_size(scores, 0.2) == int(np.argmax(rates))


def test_dear_levels_are_not_drafted_and_free_ones_are():
    table = law(0)
    dear, levels = grown(table, Budget(depth=5, nodes=20, cost=cost(10.0, 0.01)))
    assert not levels and int(dear.depth.max()) <= 1
    free, levels = grown(table, Budget(depth=5, nodes=20, cost=cost(1e-9, 1e-9)))
    assert len(levels) == 4 and len(free) > 10


def test_the_planner_rests_when_drafting_does_not_pay_and_says_so():
    planner = AutoPlanner(cost(0.2, 0.05), depth=6, nodes=10)
    drafted = 0
    for _ in range(60):
        budget = planner.budget(room=50)
        drafted += budget.depth > 0
        planner.learn(budget, 10 if budget.depth else 0, 0)  # nothing is ever accepted
    assert drafted < 30
    assert planner.fallback is not None and "plainly" in planner.fallback


def test_the_planner_goes_on_when_drafting_pays():
    planner = AutoPlanner(cost(0.02, 0.01), depth=6, nodes=10)
    for _ in range(60):
        budget = planner.budget(room=50)
        assert budget.depth == 6
        planner.learn(budget, 10, 4)
    assert planner.fallback is None
