"""The likeliest tree of known laws: exact, best first, no larger than pays."""

import itertools
import math

import pytest
import torch

from varifocal.drafters._trellis import Trellis, likeliest
from varifocal.plan import Budget, CostModel

DEPTH, SIZE = 3, 4


def laws(seed: int) -> torch.Tensor:
    """Log-probabilities of the candidates of each position after each of the position before."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(DEPTH, SIZE, SIZE, generator=rng).log_softmax(-1)


def trellis(law: torch.Tensor, width: int = SIZE) -> Trellis:
    tokens = 100 + torch.arange(DEPTH * SIZE).view(DEPTH, SIZE)
    gains, steps = law.topk(width)
    return Trellis(tokens, steps, gains)


def every_path(law: torch.Tensor, depth: int = DEPTH) -> dict[tuple[int, ...], float]:
    """All paths below the root, as candidates, with their joint log-probabilities."""
    found = {}
    for length in range(1, depth + 1):
        for path in itertools.product(range(SIZE), repeat=length):
            steps = enumerate(zip((0, *path), path, strict=False))
            found[path] = sum(float(law[k, a, b]) for k, (a, b) in steps)
    return found


def paths(tree):
    """Each node as the candidates from the root down to it."""
    found = [()]
    for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
        above = found[parent]
        found.append((*above, token - 100 - SIZE * len(above)))
    return found[1:]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [1, 7, 30])
def test_the_nodes_are_the_likeliest_of_all_in_that_order(seed, nodes):
    law = laws(seed)
    joint = every_path(law)
    tree = likeliest(9, trellis(law), Budget(depth=DEPTH, nodes=nodes))
    tree.check()
    assert tree.tokens[0] == 9 and tree.scores[0] == 1
    assert paths(tree) == sorted(joint, key=joint.get, reverse=True)[:nodes]
    wanted = [math.exp(joint[path]) for path in paths(tree)]
    torch.testing.assert_close(tree.scores[1:], torch.tensor(wanted))


def test_a_node_has_no_more_children_than_the_trellis_has_steps():
    tree = likeliest(9, trellis(laws(0), width=2), Budget(depth=DEPTH, nodes=100))
    tree.check()
    assert len(tree) == 1 + 2 + 4 + 8
    assert tree.parents[1:].bincount().max() == 2


def test_it_ends_where_only_what_must_not_be_proposed_is_left():
    law = torch.full((DEPTH, SIZE, SIZE), float("-inf"))
    law[:, :, 1] = 0.0
    tree = likeliest(9, trellis(law), Budget(depth=DEPTH, nodes=10))
    assert paths(tree) == [(1,), (1, 1), (1, 1, 1)]
    assert tree.scores.tolist() == [1.0] * 4


@pytest.mark.parametrize("slope", [0.0, 0.02, 0.2, 5.0])
def test_it_is_as_large_as_pays(slope):
    law = laws(1)
    verify = tuple(1 + slope * n for n in range(41))
    cost = CostModel(verify=verify, step=0.01, start=0.1, other=0.05)
    whole = likeliest(9, trellis(law), Budget(depth=DEPTH, nodes=40))
    tree = likeliest(9, trellis(law), Budget(depth=DEPTH, nodes=40, cost=cost))
    size = cost.best_size(whole.scores[1:].double().numpy(), 0.1 + 2 * 0.01)
    assert len(tree) == size + 1
    assert torch.equal(tree.tokens, whole.tokens[: size + 1])
    assert (size == 40) == (slope == 0.0) and (size == 0) == (slope == 5.0)
