"""Grow a draft tree level by level, then keep its likeliest nodes. [EAGLE-2, Sec. 4]"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray
from torch import Tensor

from varifocal.plan import Budget, CostModel
from varifocal.tree import DraftTree, Evidence

# Log-probabilities of the next token for each node of the frontier, and where each node looked.
Scored = tuple[Float[Tensor, "n V"], Evidence | None]


@dataclass(frozen=True)
class Frontier:
    """The nodes whose children come next; k of them."""

    tokens: Int64[Tensor, " k"]
    row: Int64[Tensor, " k"]  # each node's parent, as a row of the level before
    sees: Bool[Tensor, "k m"]  # which of the m drafted entries before it are its ancestors
    depth: int  # of these nodes, counted from the root


Expand = Callable[[Frontier], Scored]

# A level that goes on is taken to keep this share of its probability mass.
_SURVIVAL = 0.85


def grow(root: int, first: Scored, expand: Expand, width: int, budget: Budget) -> DraftTree:
    """A tree of at most `budget.nodes` drafted nodes and `budget.depth` levels.

    Each level expands the `width` likeliest nodes to their `width` likeliest children. All
    candidates stay in the pool; the best by joint probability are kept. A child is never
    likelier than its parent, and the sort is stable with parents listed first, so the kept set
    is closed under parents.
    """
    log_probs, evidence = first
    device = log_probs.device
    values, tokens = log_probs[0].topk(width)
    pool = _Pool(width, tokens, values, evidence)
    frontier_scores, picked = values, torch.arange(width, device=device)
    sees = torch.zeros(width, 0, dtype=torch.bool, device=device)
    own = torch.eye(width, dtype=torch.bool, device=device)
    row = torch.zeros(width, dtype=torch.int64, device=device)
    for depth in range(1, budget.depth):
        if _enough(pool, frontier_scores, budget, depth):
            break
        sees = torch.cat([sees, own], 1)
        scored, evidence = expand(Frontier(pool.tokens[-1].view(-1)[picked], row, sees, depth))
        values, tokens = scored.topk(width)
        joint = frontier_scores[:, None] + values.clamp(max=0)
        pool.add(tokens, joint, picked, evidence)
        frontier_scores, picked = joint.view(-1).topk(width)
        row = picked // width
        sees = sees[row]
    return pool.tree(root, budget)


def _enough(pool: "_Pool", frontier: Tensor, budget: Budget, depth: int) -> bool:
    """Whether another level would slow the round down. Only asked where a look is free."""
    cost = budget.cost
    if cost is None or frontier.device.type != "cpu":
        return False
    scores = -np.sort(-np.exp(_numbers(pool.scores())))[: budget.nodes]
    spent = _spent(cost, depth)
    rates = cost.rates(scores, spent)
    size = int(rates.argmax())
    gain = _SURVIVAL * float(np.exp(_numbers(frontier)).sum())
    more = cost.step + cost.verify[min(size + 1, len(cost.verify) - 1)] - cost.verify[size]
    # One more level helps if its tokens come faster than the round's do.
    return bool(gain <= rates[size] * more)


def _numbers(x: Tensor) -> NDArray[np.float64]:
    """For arithmetic on a few dozen numbers, which torch's calls would dominate."""
    array: NDArray[np.float64] = x.double().cpu().numpy()
    return array


def _spent(cost: CostModel, levels: int) -> float:
    """Seconds of drafting that `levels` levels take: the first comes with the round's start."""
    return cost.start + (levels - 1) * cost.step


class _Pool:
    """All candidates in creation order, level by level."""

    def __init__(self, width: int, tokens: Tensor, values: Tensor, evidence: Evidence | None):
        self.width = width
        self.tokens = [tokens]
        self._scores = [values.clamp(max=0)]
        self._parents = [torch.full_like(tokens, -1)]
        self._evidence = [None if evidence is None else _repeat(evidence, width)]
        self._level_start = 0

    def add(self, tokens: Tensor, joint: Tensor, picked: Tensor, evidence: Evidence | None) -> None:
        """Children of the `picked` candidates of the last level, `width` each."""
        self._parents.append((self._level_start + picked).repeat_interleave(self.width))
        self._level_start += self.tokens[-1].numel()
        self.tokens.append(tokens.reshape(-1))
        self._scores.append(joint.reshape(-1))
        self._evidence.append(None if evidence is None else _repeat(evidence, self.width))

    def scores(self) -> Float[Tensor, " n"]:
        """Joint log-probabilities."""
        return torch.cat(self._scores).float()

    def tree(self, root: int, budget: Budget) -> DraftTree:
        """The best candidates below the root."""
        scores = self.scores()
        ordered, order = torch.sort(scores, descending=True, stable=True)
        size, spent = min(budget.nodes, len(order)), None
        if budget.cost:
            spent = _spent(budget.cost, len(self.tokens))
            size = budget.cost.best_size(np.exp(_numbers(ordered[:size])), spent)
        kept = order[:size].sort().values
        place = torch.zeros(len(scores) + 1, dtype=torch.int64, device=scores.device)
        place[kept] = torch.arange(1, size + 1, device=scores.device)
        place[-1] = 0  # a parent of -1 is the root
        top = torch.tensor([root], device=scores.device)
        return DraftTree(
            torch.cat([top, torch.cat(self.tokens)[kept]]),
            torch.cat([torch.full_like(top, -1), place[torch.cat(self._parents)[kept]]]),
            torch.cat([torch.ones_like(scores[:1]), scores[kept].exp()]),
            self._looks(kept),
            spent,
        )

    def _looks(self, kept: Tensor) -> Evidence | None:
        levels = [e for e in self._evidence if e is not None]
        if len(levels) != len(self._evidence):
            return None
        entries = torch.cat([e.entries for e in levels])[kept]
        weights = torch.cat([e.weights for e in levels])[kept]
        root_entries = entries.new_full((1, entries.shape[1]), -1)
        root_weights = weights.new_zeros(1, weights.shape[1])
        return Evidence(torch.cat([root_entries, entries]), torch.cat([root_weights, weights]))


def _repeat(evidence: Evidence, times: int) -> Evidence:
    """Each node's look, once for every child that it proposes."""
    return Evidence(
        evidence.entries.repeat_interleave(times, 0), evidence.weights.repeat_interleave(times, 0)
    )
