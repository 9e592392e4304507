"""What the phases of a sparse step take, as lines through measurements, and what a step then takes.

T_prr(m) = T_fixed + T_handover + side by side(T_select, T_predict + T_attend(kept + m))
         + T_diff + T_attend((1 - h(m)) K) + T_merge, against
T_plain  = T_fixed + T_select + T_attend(kept + K) + T_merge.

h(m) is the share of the K chosen units among the first m guessed. Of two tasks side by side each is
`contention` times slower while both run: 1 on a machine that has room for both, 2 where they only
take turns. [PRR: its budget; the model is ours]
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from varifocal.errors import BadOption

# Guesses as shares of the units to be chosen.
SHARES = (0.0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0, 1.25, 1.5)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Seconds = base + slope * units, of one phase."""

    base: float = 0.0
    slope: float = 0.0

    def __call__(self, units: int | float) -> float:
        """Seconds for so many units; no units, no work."""
        return self.base + self.slope * units if units > 0 else 0.0

    @classmethod
    def through(cls, *points: tuple[int | float, float]) -> "Line":
        """The line nearest to measurements (units, seconds), never falling nor below zero.

        Nearest by relative error, so that short phases count as much as long ones.
        """
        weights = [1 / max(seconds, 1e-9) ** 2 for _, seconds in points]
        total = sum(weights)
        middle = sum(w * u for w, (u, _) in zip(weights, points, strict=True)) / total
        height = sum(w * s for w, (_, s) in zip(weights, points, strict=True)) / total
        spread = sum(w * (u - middle) ** 2 for w, (u, _) in zip(weights, points, strict=True))
        rise = sum(
            w * (u - middle) * (s - height) for w, (u, s) in zip(weights, points, strict=True)
        )
        slope = max(0.0, rise / spread) if spread else 0.0
        if height < slope * middle:  # it would start below zero: the best through the origin
            squares = sum(w * u * u for w, (u, _) in zip(weights, points, strict=True))
            return cls(
                slope=sum(w * u * s for w, (u, s) in zip(weights, points, strict=True)) / squares
            )
        return cls(base=height - slope * middle, slope=slope)


@dataclass(frozen=True, kw_only=True)
class PhaseTimes:
    """What the phases of a layer's step take on one machine, for one batch size."""

    select: Line  # by units in the cache
    attend: Line  # by units attended to
    merge: Line  # by units merged
    predict: Line = Line()  # by units in the cache
    diff: Line = Line()  # by units in the cache
    learn: Line = Line()  # by units in the cache; behind the step
    fixed: float = 0.0  # of any step
    handover: float = 0.0  # what two queues cost a step, however long they are side by side
    contention: float = 1.0  # how much slower two tasks are while they run side by side, >= 1
    states: float = 1.0  # how much slower attention that keeps a state by block is than plain's
    is_fused: bool = False  # plain attention merges as it goes; else it is PRR without guesses

    def __post_init__(self) -> None:
        if not 1 <= self.contention < math.inf:
            raise BadOption(f"contention is at least 1 and finite, got {self.contention}")

    def keeping(self, units: int | float) -> float:
        """Seconds of attention to so many units that keeps the state of each."""
        return self.states * self.attend(units)

    def plain(self, units: int, kept: int, chosen: int) -> float:
        """Seconds of a step without speculation."""
        merging = 0.0 if self.is_fused else self.merge(kept + chosen)
        return self.fixed + self.select(units) + self.attend(kept + chosen) + merging

    def speculating(self, units: int, kept: int, chosen: int, guessed: int, rate: float) -> float:
        """Seconds of a step that guesses so many units, of which `rate` of the chosen are right.

        What is learned is not waited for, but slows what it runs beside.
        """
        early = self.predict(units) + self.keeping(kept + guessed)
        together = self.handover + side_by_side(self.select(units), early, self.contention)
        late = self.diff(units) + self.keeping((1 - rate) * chosen) + self.merge(kept + chosen)
        return self.fixed + together + late + self.learn(units) * (1 - 1 / self.contention)

    def fastest(
        self,
        units: int,
        kept: int,
        chosen: int,
        rates: Sequence[float],
        *,
        gain: float,
        may_outlast: bool = False,
    ) -> tuple[int, float] | None:
        """The number of guesses that is fastest, and its rate; None if not `gain` below plain.

        `rates` are hit rates at each of SHARES. Only numbers count that are attended to before
        selection ends: later the rest of the step would wait for guesses. `may_outlast` lifts that.
        """
        limit = self.select(units)
        found, least = None, (1 - gain) * self.plain(units, kept, chosen)
        for share, rate in zip(SHARES, rates, strict=True):
            guessed = min(int(share * chosen), units - kept)
            if self.keeping(kept + guessed) > limit and not may_outlast:
                break
            seconds = self.speculating(units, kept, chosen, guessed, rate)
            if seconds < least:
                found, least = (guessed, rate), seconds
        return found


def side_by_side(one: float, other: float, contention: float) -> float:
    """Seconds until both are done, if each is so much slower while both run."""
    short, long = sorted((one, other))
    return contention * short + (long - short)
