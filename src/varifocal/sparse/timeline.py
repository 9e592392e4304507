"""What the phases of a sparse step took, and how long two of them ran side by side."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from functools import reduce
from typing import Any, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Seconds of a layer's step, or sums over several. On a GPU: of launching, not of computing.

    `total` ends with the merged state. What is learned from the choice comes behind it.
    """

    steps: int = 0
    predict: float = 0.0
    speculate: float = 0.0  # attention before selection is known
    select: float = 0.0
    diff: float = 0.0  # which chosen units are still to be attended to
    repair: float = 0.0  # attention after selection; without speculation, all of it
    merge: float = 0.0
    overlap: float = 0.0  # while selection ran beside prediction and speculation
    total: float = 0.0

    def __add__(self, other: "Timeline") -> "Timeline":
        return Timeline(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in _FIELDS})

    def __sub__(self, other: "Timeline") -> "Timeline":
        return Timeline(**{f.name: getattr(self, f.name) - getattr(other, f.name) for f in _FIELDS})

    @classmethod
    def sum(cls, timelines: Iterable["Timeline"]) -> "Timeline":
        """All of them together."""
        return reduce(cls.__add__, timelines, cls())

    @property
    def early(self) -> float:
        """What may run beside selection."""
        return self.predict + self.speculate

    @property
    def late(self) -> float:
        """What has to wait for selection."""
        return self.diff + self.repair + self.merge

    @property
    def overlap_fraction(self) -> float:
        """Share of selection during which something else was done as well."""
        return self.overlap / self.select if self.select else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON: `steps`, `t_` seconds of the phases and of all, `overlap` and its fraction."""
        phases = {f"t_{name}": getattr(self, name) for name in (*_PHASES, "total")}
        return {
            "steps": self.steps,
            **phases,
            "overlap": self.overlap,
            "overlap_fraction": self.overlap_fraction,
        }


_FIELDS = fields(Timeline)
_PHASES = ("predict", "speculate", "select", "diff", "repair", "merge")


class Stopwatch:
    """Notes when phases of one step begin and end; they may run on two threads."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._spans: dict[str, tuple[float, float]] = {}

    def timed(self, phase: str, act: Callable[[], Result]) -> Result:
        """Do it, and note when."""
        start = time.perf_counter()
        result = act()
        self._spans[phase] = (start, time.perf_counter())
        return result

    def timeline(self) -> Timeline:
        """The step, which ends now."""
        end = time.perf_counter()
        taken = {phase: stop - start for phase, (start, stop) in self._spans.items()}
        others = [self._spans[p] for p in ("predict", "speculate") if p in self._spans]
        overlap = sum((_common(self._spans["select"], other) for other in others), 0.0)
        return Timeline(steps=1, overlap=overlap, total=end - self._start, **taken)


def _common(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
