"""Two guesses at one text as a single tree under one budget of nodes."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from varifocal.plan import Budget
from varifocal.tree import DraftTree, Evidence


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
    return _cut(tree, tokens, parents, scores, kept)


def _best(scores: "np.typing.NDArray[np.float64]", budget: Budget, spent: float) -> list[int]:
    """The root and the likeliest nodes, parents before children."""
    order = 1 + np.argsort(-scores[1:], kind="stable")
    size = min(budget.nodes, len(order))
    if budget.cost is not None:
        size = budget.cost.best_size(scores[order[:size]], spent)
    return [0, *sorted(order[:size].tolist())]


def _cut(
    tree: DraftTree, tokens: list[int], parents: list[int], scores: list[float], kept: list[int]
) -> DraftTree:
    new = {old: n for n, old in enumerate(kept)} | {-1: -1}
    device = tree.tokens.device
    return replace(
        tree,
        tokens=torch.tensor([tokens[n] for n in kept], device=device),
        parents=torch.tensor([new[parents[n]] for n in kept], device=device),
        scores=torch.tensor([scores[n] for n in kept], device=device),
        evidence=None if tree.evidence is None else _looks(tree.evidence, len(tree), kept),
    )


def _looks(evidence: Evidence, own: int, kept: list[int]) -> Evidence:
    index = torch.tensor([n if n < own else 0 for n in kept], device=evidence.entries.device)
    foreign = torch.tensor([n >= own for n in kept], device=evidence.entries.device)[:, None]

    def pick(rows: Tensor, nothing: int | float) -> Tensor:
        return rows[index].masked_fill(foreign, nothing)

    return Evidence(pick(evidence.entries, -1), pick(evidence.weights, 0.0))
