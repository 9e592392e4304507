"""The drafted tokens of one round, as a tree that the target checks in one forward."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


@dataclass(frozen=True)
class Evidence:
    """Where a drafter looked for each node: entries of its visual memory and their weights."""

    entries: Int64[Tensor, "N K"]  # indices of visual tokens; -1 where nothing was read
    weights: Float[Tensor, "N K"]


@dataclass(frozen=True)
class DraftTree:
    """A guess at the coming tokens.

    Node 0 is the root: the newest decided token, which the target has not read yet. Every other
    node is a drafted token and is listed after its parent. Siblings are distinct tokens.
    """

    tokens: Int64[Tensor, " N"]
    parents: Int64[Tensor, " N"]  # parents[0] is -1
    scores: Float[Tensor, " N"] | None = None  # the drafter's probability that a node is reached
    evidence: Evidence | None = field(default=None, compare=False)
    seconds: float | None = None  # of drafting it by the cost model, if its drafter knows better

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def chain(cls, tokens: Sequence[int], device: torch.device | str = "cpu") -> "DraftTree":
        """A tree that never branches: the root and what follows it."""
        row = torch.tensor(tokens, dtype=torch.int64, device=device)
        return cls(row, torch.arange(len(row), device=device) - 1)

    def check(self) -> None:
        """Raise if a child precedes its parent or siblings repeat. Costs a sync: for tests."""
        parents, tokens = self.parents.tolist(), self.tokens.tolist()
        if parents[0] != -1 or any(not 0 <= p < i for i, p in enumerate(parents) if i):
            raise ValueError(f"each parent must come before its child, got {parents}")
        edges = list(zip(parents, tokens, strict=True))
        if len(set(edges)) != len(edges):
            raise ValueError(f"siblings must be distinct tokens, got {edges}")

    @cached_property
    def ancestry(self) -> Bool[Tensor, "N N"]:
        """ancestry[i, j]: node j is node i or above it, so i may attend to j."""
        n = len(self)
        seen = torch.eye(n, dtype=torch.bool, device=self.tokens.device)
        if n == 1:
            return seen
        # Doubling: after k steps each row holds its nearest 2**k ancestors. No host sync.
        up = self.parents.clamp(min=0)
        link = seen.clone()
        link[torch.arange(n, device=up.device), up] = True
        reach, steps = link.float(), 1
        while steps < n - 1:
            reach = (reach @ reach).clamp(max=1)
            steps *= 2
        return reach > 0

    @cached_property
    def depth(self) -> Int64[Tensor, " N"]:
        """Edges between the root and each node."""
        return self.ancestry.sum(-1) - 1
