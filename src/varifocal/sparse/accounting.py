"""How often guesses are right: by layer and predictor, `last` always beside the one in use.

Kept units are left out of every figure: they are certain, and would flatter any predictor. A step
in which nothing had to be chosen counts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor


@dataclass(frozen=True)
class HitRate:
    """Units over all steps so far of one layer, or of all layers (`layer` is None)."""

    selector: str
    predictor: str
    layer: int | None
    chosen: int  # by the selector, kept ones not counted
    guessed: int  # by the predictor
    hits: int  # both: reused

    @classmethod
    def sum(cls, rates: Sequence["HitRate"]) -> "HitRate":
        """Of several texts together, all of one selector, predictor and layer."""
        counts = [(r.chosen, r.guessed, r.hits) for r in rates]
        chosen, guessed, hits = (sum(column) for column in zip(*counts, strict=True))
        one = rates[0]
        return cls(one.selector, one.predictor, one.layer, chosen, guessed, hits)

    @property
    def hit_rate(self) -> float | None:
        """Share of the chosen units that had been guessed."""
        return self.hits / self.chosen if self.chosen else None

    @property
    def waste_rate(self) -> float | None:
        """Share of the guessed units that were not chosen: computed in vain."""
        return (self.guessed - self.hits) / self.guessed if self.guessed else None

    @property
    def repaired_blocks(self) -> int:
        """Units that had to be computed after selection."""
        return self.chosen - self.hits


class Accounts:
    """Counts of one batch's decoding."""

    def __init__(self, selector: str, num_layers: int) -> None:
        self._selector, self._num_layers = selector, num_layers
        self._counts: dict[str, list[list[int]]] = {}

    def add(
        self,
        predictor: str,
        layer: int,
        guessed: Bool[Tensor, "Q H U"],
        chosen: Bool[Tensor, "Q H U"],
    ) -> None:
        """Note one step's guess and choice, both without kept units."""
        counts = self._counts.setdefault(predictor, [[0, 0, 0] for _ in range(self._num_layers)])
        news = torch.stack([chosen.sum(), guessed.sum(), (guessed & chosen).sum()]).tolist()
        counts[layer] = [old + new for old, new in zip(counts[layer], news, strict=True)]

    def rates(self) -> list[HitRate]:
        """For every predictor its total and its layers; the total of each comes first."""
        found = []
        for predictor, counts in self._counts.items():
            totals = [sum(column) for column in zip(*counts, strict=True)]
            rows = [(None, totals), *enumerate(counts)]
            found += [HitRate(self._selector, predictor, layer, *row) for layer, row in rows]
        return found
