"""How much to speculate: never more than fits under the measured time of selection.

T_prr(m) = c max(T_select, T_attend(kept + m)) + T_attend((1 - h(m)) K) + T_merge, against
T_plain = T_select + T_attend(kept + K) + T_merge; c is the contention of two queues on one machine,
h(m) the measured share of the K chosen units among the first m guessed. [PRR: its budget]
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varifocal.errors import BadOption

SHARES = (0.0, 0.25, 0.5, 1.0, 1.25, 1.5)  # guesses as shares of the units to be chosen


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds = base + slope * units, of one phase."""

    base: float
    slope: float

    def __call__(self, units: int | float) -> float:
        """Seconds for so many units; no units, no work."""
        return self.base + self.slope * units if units > 0 else 0.0

    @classmethod
    def through(cls, few: tuple[int, float], many: tuple[int, float]) -> "Line":
        """The line through two measurements (units, seconds), never falling nor below zero."""
        slope = max(0.0, (many[1] - few[1]) / (many[0] - few[0]))
        return cls(base=max(0.0, few[1] - slope * few[0]), slope=slope)


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """What the phases of a layer's step take on this machine, for one batch size."""

    select: Line  # by units in the cache
    attend: Line  # by units attended to
    merge: Line  # by units merged
    contention: float = 1.0  # how much slower selection and attention are side by side, >= 1

    def __post_init__(self) -> None:
        if self.contention < 1:
            raise BadOption(f"contention is at least 1, got {self.contention}")

    def plain(self, units: int, kept: int, chosen: int) -> float:
        """Seconds of a step without speculation."""
        return self.select(units) + self.attend(kept + chosen) + self.merge(kept + chosen)

    def speculating(self, units: int, kept: int, chosen: int, guessed: int, rate: float) -> float:
        """Seconds of a step that guesses so many units, of which `rate` of the chosen are right."""
        side_by_side = self.contention * max(self.select(units), self.attend(kept + guessed))
        return side_by_side + self.attend((1 - rate) * chosen) + self.merge(kept + chosen)


class Speculation(ABC):
    """Chooses how many units to guess in a step."""

    @abstractmethod
    def guesses(self, layer: int, units: int, kept: int, chosen: int) -> int | None:
        """How many, of a cache with `units`; None: not even the kept ones are attended early."""

    @abstractmethod
    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """Take note of what was chosen and how the predictor had ranked it (zero: not at all)."""


class FixedSpeculation(Speculation):
    """A fixed multiple of the units that selection chooses."""

    def __init__(self, share: float = 1.0) -> None:
        if share < 0:
            raise BadOption(f"the share of guesses cannot be negative, got {share}")
        self._share = share

    def guesses(self, layer: int, units: int, kept: int, chosen: int) -> int | None:
        """The share of `chosen`, rounded down."""
        return int(self._share * chosen)

    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """Nothing to learn."""


class ProfiledSpeculation(Speculation):
    """The fastest number by the measured times and the running hit rates; none where none pays.

    Hit rates are counted for every share at once, also while nothing is speculated: so a text
    whose choices become predictable is noticed.
    """

    GAIN = 0.02  # of the plain step: less is not worth the risk
    MEMORY = 0.98  # how a step's weight in the running rates decays with each later step

    def __init__(self, times: PhaseTimes, num_layers: int) -> None:
        self._times = times
        self._hits = [[0.0] * len(SHARES) for _ in range(num_layers)]
        self._chosen = [0.0] * num_layers

    def guesses(self, layer: int, units: int, kept: int, chosen: int) -> int | None:
        """The share of `chosen` that is fastest among those that end before selection does."""
        times = self._times
        limit = times.select(units)
        best, fastest = None, (1 - self.GAIN) * times.plain(units, kept, chosen)
        for share, rate in zip(SHARES, self.rates(layer), strict=True):
            guessed = min(int(share * chosen), units - kept)
            if times.attend(kept + guessed) > limit:
                break  # it would hold up the step that waits for selection only
            seconds = times.speculating(units, kept, chosen, guessed, rate)
            if seconds < fastest:
                best, fastest = guessed, seconds
        return best

    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """Count the hits that each share of guesses would have had."""
        order = ranking.sort(dim=-1, descending=True, stable=True).indices
        numbers = torch.arange(ranking.shape[-1], device=ranking.device).expand_as(order)
        place = torch.empty_like(order).scatter(-1, order, numbers)
        place = place.masked_fill(ranking <= 0, ranking.shape[-1])
        wanted = int(chosen.sum(-1).max()) if chosen.numel() else 0
        hits = [int((chosen & (place < int(share * wanted))).sum()) for share in SHARES]
        old = self._hits[layer]
        self._hits[layer] = [self.MEMORY * o + n for o, n in zip(old, hits, strict=True)]
        self._chosen[layer] = self.MEMORY * self._chosen[layer] + int(chosen.sum())

    def rates(self, layer: int) -> list[float]:
        """Running hit rate for each of SHARES; zero before anything was chosen."""
        return [hits / max(self._chosen[layer], 1.0) for hits in self._hits[layer]]
