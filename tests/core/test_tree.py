"""Draft trees and the walk along the target's choices: the fast ways equal the plain ones."""

import random

import pytest
import torch

from varifocal.sampling import Sampling
from varifocal.tree import DraftTree
from varifocal.verify import follow, follow_by_hand


def random_tree(seed: int) -> DraftTree:
    rng = random.Random(seed)
    parents, tokens, taken = [-1], [0], set()
    for node in range(1, rng.randint(1, 40)):
        parent = rng.choice([node - 1, rng.randrange(node)])
        token = rng.choice([t for t in range(8 + node) if (parent, t) not in taken])
        taken.add((parent, token))
        parents.append(parent)
        tokens.append(token)
    return DraftTree(torch.tensor(tokens), torch.tensor(parents))


@pytest.mark.parametrize("seed", range(40))
def test_ancestry_and_depth_equal_a_walk_up(seed):
    tree = random_tree(seed)
    tree.check()
    parents = tree.parents.tolist()
    for node in range(len(tree)):
        above, at = {node}, node
        while parents[at] >= 0:
            at = parents[at]
            above.add(at)
        assert set(tree.ancestry[node].nonzero()[:, 0].tolist()) == above
        assert int(tree.depth[node]) == len(above) - 1


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=9)], ids=str)
def test_follow_equals_the_walk_by_hand(seed, sampling):
    tree = random_tree(seed)
    logits = torch.randn(len(tree), 50, generator=torch.Generator().manual_seed(seed))
    logits[:, :6] += 4  # so that drafted tokens are often chosen
    assert follow(tree, logits, sampling, 5) == follow_by_hand(tree, logits, sampling, 5)


def test_a_chain_that_agrees_is_accepted_whole_with_the_bonus_token():
    tree = DraftTree.chain([4, 1, 2])
    logits = torch.eye(5)[torch.tensor([1, 2, 3])]
    verdict = follow(tree, logits, Sampling(), 1)
    assert verdict.path == [0, 1, 2] and verdict.tokens == [1, 2, 3]
    assert verdict.num_accepted == 2


@pytest.mark.parametrize(
    ("tokens", "parents"), [([0, 1], [-1, 1]), ([0, 1, 1], [-1, 0, 0]), ([0], [0])]
)
def test_check_refuses_what_is_no_tree(tokens, parents):
    with pytest.raises(ValueError, match=r"parent|siblings"):
        DraftTree(torch.tensor(tokens), torch.tensor(parents)).check()
