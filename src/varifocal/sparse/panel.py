"""Several predictors shown the choices of one run: how often each would have been right.

A guess never changes a choice, so the choices of one run judge any number of predictors, at any
number of guesses. Nothing is computed early meanwhile. Letters: Q queries, H KV heads, U units.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.sparse.blocks import CacheShape
from varifocal.sparse.phases import SHARES
from varifocal.sparse.predictors import Predictor, load_predictor
from varifocal.sparse.speculation import places

TRIED = (*SHARES, 2.0)  # guesses for each chosen unit


@dataclass(frozen=True)
class Tally:
    """Units over all steps, queries and heads of one layer, or of all (`layer` is None)."""

    predictor: str
    layer: int | None
    free: int  # that could have been chosen
    chosen: int
    guessed: tuple[int, ...]  # for each of TRIED
    hits: tuple[int, ...]

    @classmethod
    def sum(cls, tallies: Sequence["Tally"], layer: int | None) -> "Tally":
        """Of several texts or layers together, all of one predictor."""
        return cls(
            predictor=tallies[0].predictor,
            layer=layer,
            free=sum(t.free for t in tallies),
            chosen=sum(t.chosen for t in tallies),
            guessed=tuple(sum(n) for n in zip(*(t.guessed for t in tallies), strict=True)),
            hits=tuple(sum(n) for n in zip(*(t.hits for t in tallies), strict=True)),
        )

    @property
    def hit_rates(self) -> list[float]:
        """Share of the chosen units that would have been guessed, for each of TRIED."""
        return [hits / max(self.chosen, 1) for hits in self.hits]

    @property
    def waste_rates(self) -> list[float]:
        """Share of the guesses that would have been computed in vain, for each of TRIED."""
        pairs = zip(self.guessed, self.hits, strict=True)
        return [(guessed - hits) / max(guessed, 1) for guessed, hits in pairs]

    @property
    def chance(self) -> float:
        """The hit rate of as many guesses as are chosen, drawn at random."""
        return self.chosen / max(self.free, 1)


class Panel(Predictor):
    """Guesses nothing itself; its members are judged by every choice, then learn from it."""

    name = "panel"

    def __init__(
        self, shape: CacheShape, device: torch.device, names: Sequence[str] = ("last",)
    ) -> None:
        self._heads, self._device = shape.kv_heads, device
        self._members = {name: load_predictor(name, shape, device) for name in names}
        sizes = (shape.num_layers, len(TRIED))

        self._counts = {name: torch.zeros(2, *sizes, dtype=torch.int64) for name in names}
        self._free_and_chosen = torch.zeros(2, shape.num_layers, dtype=torch.int64)
        self._is_judging = False

    def begin(self) -> None:
        """Count from here on; what was observed before has only been learned from."""
        self._is_judging = True

    def weights(self, layer: int, rows: Int64[Tensor, " Q"], units: int) -> Float[Tensor, "Q H U"]:
        """Zeros."""
        return torch.zeros(len(rows), self._heads, units, device=self._device)

    def observe(
        self,
        layer: int,
        rows: Int64[Tensor, " Q"],
        chosen: Bool[Tensor, "Q H U"],
        scores: Float[Tensor, "Q H U"],
        is_free: Bool[Tensor, "Q U"],
    ) -> None:
        """Judge by this choice, which the oracle alone has seen, and learn from it."""
        if self._is_judging and chosen.any():
            free = int(is_free.sum()) * self._heads
            self._free_and_chosen[:, layer] += torch.tensor([free, int(chosen.sum())])
        for name, member in self._members.items():
            if member.sees_the_choice:
                member.observe(layer, rows, chosen, scores, is_free)
            if self._is_judging:
                ranking = member.weights(layer, rows, chosen.shape[-1])
                ranking = ranking.masked_fill(~is_free[:, None], 0)
                self._counts[name][:, layer] += _judged(ranking, chosen)
            if not member.sees_the_choice:
                member.observe(layer, rows, chosen, scores, is_free)

    def forget(self, row: int, units: int) -> None:
        """As each member."""
        for member in self._members.values():
            member.forget(row, units)

    def tallies(self) -> list[Tally]:
        """For every member its total, then its layers."""
        free, chosen = self._free_and_chosen.tolist()
        found = []
        for name, counts in self._counts.items():
            guessed, hits = counts.tolist()
            layers = [
                Tally(name, layer, free[layer], chosen[layer], tuple(made), tuple(right))
                for layer, (made, right) in enumerate(zip(guessed, hits, strict=True))
            ]
            found += [Tally.sum(layers, None), *layers]
        return found


def _judged(ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]) -> Int64[Tensor, "2 S"]:
    """Guesses and hits for each of TRIED, as multiples of what a query and head chose at most."""
    wanted = int(chosen.sum(-1).max()) if chosen.numel() else 0
    limits = torch.tensor([int(share * wanted) for share in TRIED], device=ranking.device)
    is_guessed = places(ranking)[..., None] < limits
    hits = is_guessed[chosen].sum(0)
    return torch.stack([is_guessed.flatten(0, -2).sum(0), hits]).cpu()
