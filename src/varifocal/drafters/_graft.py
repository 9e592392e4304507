"""Several guesses at one text as a single tree under one budget of nodes: grafted, or mixed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from varifocal.drafters._branches import Branches
from varifocal.plan import Budget
from varifocal.tree import DraftTree, Evidence

_NOWHERE = -1  # as a row of evidence: of a node that another guesser drafted


def grafted(tree: DraftTree, other: DraftTree, budget: Budget, spent: float) -> DraftTree:
    """`tree` with the nodes of `other`, cut to what the budget holds or what pays.

    Both have the same root and scores. A node that both have keeps the higher score. `spent` are
    the seconds of drafting already paid. Evidence is kept; nodes of `other` have looked nowhere.
    """
    assert tree.scores is not None and other.scores is not None
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    scores: list[float] = tree.scores.tolist()
    place = {edge: n for n, edge in enumerate(zip(parents, tokens, strict=True))}
    own = len(tokens)
    at = [0]  # where each node of `other` stands in the union
    theirs = zip(
        other.tokens[1:].tolist(),
        other.parents[1:].tolist(),
        other.scores[1:].tolist(),
        strict=True,
    )
    for token, above, score in theirs:
        parent = at[above]
        node = place.setdefault((parent, token), len(tokens))
        if node == len(tokens):
            tokens.append(token)
            parents.append(parent)
            scores.append(score)
        # A child is never likelier than its parent, so what is cut is closed under children.
        scores[node] = min(max(scores[node], score), scores[parent])
        at.append(node)
    kept = _best(np.array(scores), budget, spent)
    if len(kept) == own == kept[-1] + 1:
        return tree
    looked = [n if n < own else _NOWHERE for n in range(len(tokens))]
    return _cut(tree, tokens, parents, scores, kept, looked)


def trimmed(tree: DraftTree, budget: Budget) -> DraftTree:
    """As many nodes as are allowed, or pay."""
    assert tree.scores is not None
    bare = DraftTree(tree.tokens[:1], tree.parents[:1], tree.scores[:1])
    return grafted(bare, tree, budget, 0.0)


@dataclass(frozen=True)
class Mixed:
    """A tree made of several, and which of these have each node."""

    tree: DraftTree
    owners: list[frozenset[int]]  # numbers of the trees, for each node


def mixed(
    trees: Sequence[DraftTree], weights: Sequence[float], budget: Budget, spent: float
) -> Mixed:
    """The union of the trees by the mixture of their laws, cut to what the budget holds or pays.

    All have the same root and scores; a weight above 0 stands for each. What follows a node has the
    probability sum of w p over the trees that go on there, divided by the sum of their weights:
    one that ends has no opinion, and takes none of the mass. [TABED, Sec. 4] Evidence is that of
    the first tree that has any.
    """
    parts = [Branches.of(tree) for tree in trees]
    tokens, parents, scores = [int(trees[0].tokens[0])], [-1], [1.0]
    places = [dict.fromkeys(range(len(parts)), 0)]  # of each node: where trees that have it do
    for node, place in enumerate(places):  # level by level, for it grows on the way
        speaking = sum(weights[n] for n, at in place.items() if parts[n].below[at])
        shares: dict[int, float] = {}
        below: dict[int, dict[int, int]] = {}
        for n, at in place.items():
            for token, child in parts[n].below[at].items():
                shares[token] = shares.get(token, 0.0) + weights[n] * _step(parts[n], at, child)
                below.setdefault(token, {})[n] = child
        for token, share in shares.items():
            tokens.append(token)
            parents.append(node)
            scores.append(scores[node] * min(share / speaking, 1.0))
            places.append(below[token])
    kept = _best(np.array(scores), budget, spent)
    source = next((n for n, tree in enumerate(trees) if tree.evidence is not None), 0)
    looked = [place.get(source, _NOWHERE) for place in places]
    tree = _cut(trees[source], tokens, parents, scores, kept, looked)
    return Mixed(tree, [frozenset(places[n]) for n in kept])


def _step(part: Branches, parent: int, child: int) -> float:
    """Probability of a child, given its parent."""
    assert part.scores is not None
    above = part.scores[parent]
    return min(part.scores[child] / above, 1.0) if above > 0 else 0.0


def _best(scores: "np.typing.NDArray[np.float64]", budget: Budget, spent: float) -> list[int]:
    """The root and the likeliest nodes, parents before children."""
    order = 1 + np.argsort(-scores[1:], kind="stable")
    size = min(budget.nodes, len(order))
    if budget.cost is not None:
        size = budget.cost.best_size(scores[order[:size]], spent)
    return [0, *sorted(order[:size].tolist())]


def _cut(
    tree: DraftTree,
    tokens: list[int],
    parents: list[int],
    scores: list[float],
    kept: list[int],
    looked: list[int],
) -> DraftTree:
    """Some nodes of a union; where `tree` looked for each of all, its row there is given."""
    new = {old: n for n, old in enumerate(kept)} | {-1: -1}
    device, evidence = tree.tokens.device, tree.evidence
    return replace(
        tree,
        tokens=torch.tensor([tokens[n] for n in kept], device=device),
        parents=torch.tensor([new[parents[n]] for n in kept], device=device),
        scores=torch.tensor([scores[n] for n in kept], device=device),
        evidence=None if evidence is None else _looks(evidence, [looked[n] for n in kept]),
    )


def _looks(evidence: Evidence, rows: list[int]) -> Evidence:
    index = torch.tensor(rows, device=evidence.entries.device)
    foreign = (index == _NOWHERE)[:, None]

    def pick(values: Tensor, nothing: int | float) -> Tensor:
        return values[index.clamp(min=0)].masked_fill(foreign, nothing)

    return Evidence(pick(evidence.entries, -1), pick(evidence.weights, 0.0))
