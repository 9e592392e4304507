"""What the phases of a sparse step take on this machine: measured, for the budget of guesses."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from varifocal.errors import BadRequest
from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.phases import Line, PhaseTimes
from varifocal.sparse.queues import Queues, Settle, SingleQueue
from varifocal.sparse.runtime import SparseAttention, Step
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.selectors import load_selector
from varifocal.sparse.speculation import FixedSpeculation

FEWEST = 8  # units that phases can be measured with
TAKING_TURNS = 2.0  # the contention where there is one queue only
_PARTS = (1 / 4, 1)  # of the cache's length that are measured at
_GUESSES = (0.5, 1.0)  # shares of the chosen units that are guessed meanwhile


Typical = Callable[[Sequence[float]], float]  # of several measurements of one thing


@dataclass(frozen=True, kw_only=True)
class Care:
    """How a size is measured; the defaults suit a machine that has little else to do.

    On a busy one the least of many is steadier than a median, and whoever has rested is let
    through sooner.
    """

    repeats: int = 5  # after a warm-up
    typical: Typical = statistics.median
    rest: float = 0.0  # seconds of sleep before each


CARE = Care()


@dataclass
class _Clocked(SingleQueue):
    """Notes what is done behind a step."""

    seconds: float = 0.0

    def afterwards(self, work: Callable[[], None]) -> Settle:
        start = time.perf_counter()
        work()
        self.seconds = time.perf_counter() - start
        return lambda: None


@dataclass
class _Points:
    """Measurements (units, seconds) of every phase."""

    of: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, phase: str, units: int | float, seconds: float) -> None:
        if units:
            self.of[phase].append((units, seconds))

    def line(self, phase: str, typical: Typical) -> Line:
        """Through what is typical of each number of units."""
        grouped: dict[float, list[float]] = defaultdict(list)
        for units, seconds in self.of[phase]:
            grouped[units].append(seconds)
        return Line.through(*((u, typical(s)) for u, s in grouped.items()))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How steps are to be made that are measured."""

    cache: BlockCache
    reach: Reach
    layer: int
    selector: str = "quest"
    predictor: str = "ema"
    kernel: str = "torch"
    care: Care = CARE

    @property
    def unit(self) -> int:
        """Tokens of a unit."""
        return load_selector(self.selector, self.cache).unit(self.cache)

    def attention(self, share: float, queues: Queues) -> SparseAttention:
        """One that guesses so many units for each that is chosen."""
        return SparseAttention(
            self.cache,
            self.reach,
            selector=self.selector,
            predictor=self.predictor,
            speculation=FixedSpeculation(share),
            queues=queues,
            kernel=self.kernel,
        )


@dataclass
class _Size:
    """Steps over the first tokens of a cache with a share of guesses, on one queue and on two."""

    tokens: int
    clock: _Clocked
    one: SparseAttention
    two: SparseAttention | None
    pairs: list[tuple[Step, Step | None]] = field(default_factory=list)

    def step(self, layer: int, queries: Queries, rest: float, *, two_first: bool) -> Step:
        """One of each, by turns first: the second finds its keys in the processor's caches."""
        own = replace(queries, visible=queries.visible.clamp(max=self.tokens))
        made: dict[int, Step] = {}
        ways = [(0, self.one)] if self.two is None else [(0, self.one), (1, self.two)]
        for number, attention in reversed(ways) if two_first else ways:
            time.sleep(rest)
            made[number] = attention.step(layer, own)
            attention.settle()
        self.pairs.append((made[0], made.get(1)))
        return made[0]


class Profiler:
    """Measures in rounds: whatever else is measured in turn with them meets the same machine.

    With two queues their contention is measured as well; one queue takes turns.
    """

    def __init__(self, trial: Trial, queries: Queries, queues: Queues | None = None) -> None:
        unit = trial.unit
        units = -(-int(queries.visible.min()) // unit)
        if units < FEWEST:
            raise BadRequest(
                f"wanted at least {FEWEST} units of {unit} keys to measure at, got {units}"
            )
        has_two = queues is not None and not isinstance(queues, SingleQueue)
        self._trial, self._rounds = trial, 0
        self._sizes: list[_Size] = []
        for part, share in product(_PARTS, _GUESSES):
            clock = _Clocked()
            two = trial.attention(share, queues) if has_two and queues is not None else None
            size = _Size(int(part * units) * unit, clock, trial.attention(share, clock), two)
            own = replace(queries, visible=queries.visible.clamp(max=size.tokens))
            for attention in (size.one, two):
                if attention is not None:
                    attention.prime(trial.layer, own)
            self._sizes.append(size)
        self._points, self._fixed = _Points(), list[float]()

    def round(self, queries: Queries) -> None:
        """A step of every size; the first one warms up and is not counted."""
        for size in self._sizes:
            step = size.step(
                self._trial.layer, queries, self._trial.care.rest, two_first=self._rounds % 2 == 1
            )
            if self._rounds:
                _note(self._points, self._fixed, step, size.clock.seconds)
            else:
                size.pairs.clear()
        self._rounds += 1

    def times(self) -> PhaseTimes:
        """What all rounds say."""
        points, typical = self._points, self._trial.care.typical
        times = PhaseTimes(
            select=points.line("select", typical),
            attend=points.line("attend", typical),
            merge=points.line("merge", typical),
            predict=points.line("predict", typical),
            diff=points.line("diff", typical),
            learn=points.line("learn", typical),
            fixed=typical(self._fixed),
            contention=TAKING_TURNS,
        )
        if self._sizes[0].two is None:
            return times
        return _with_contention(times, self._sizes, typical)


def measure(trial: Trial, queries: Queries, queues: Queues | None = None) -> PhaseTimes:
    """Time the phases of steps for these queries, over parts of the cache and all of it.

    Fill the cache to the length of interest first. Changes nothing. The same query over and over is
    guessed right as far as possible, and finds its keys in the processor's caches: who has several
    gives them to a `Profiler`, round by round.
    """
    profiler = Profiler(trial, queries, queues)
    for _ in range(1 + trial.care.repeats):
        profiler.round(queries)
    return profiler.times()


def _note(points: _Points, fixed: list[float], step: Step, learning: float) -> None:
    """One step's phases, by the units that each had to do with, for a query and head."""
    queries, heads, units = step.chosen.shape
    each, times = queries * heads, step.times
    for phase in ("select", "predict", "diff"):
        points.add(phase, units, getattr(times, phase))
    points.add("learn", units, learning)
    points.add("attend", step.speculated / each, times.speculate)
    points.add("attend", step.repaired / each, times.repair)
    points.add("merge", (step.reused + step.repaired) / each, times.merge)
    fixed.append(times.total - times.early - times.select - times.late)


def _with_contention(times: PhaseTimes, sizes: Sequence[_Size], typical: Typical) -> PhaseTimes:
    """From steps of one queue and of two in turn: what the shorter task adds to the longer one."""
    points = []
    for size in sizes:
        pairs = [(one.times, two.times) for one, two in size.pairs if two is not None]
        short, long = sorted(
            (typical([one.early for one, _ in pairs]), typical([one.select for one, _ in pairs]))
        )
        both = typical([two.total - two.late for _, two in pairs]) - times.fixed
        points.append((short, max(0.0, both - (long - short))))
    line = Line.through(*points)
    if line.slope < 1:  # nobody is faster in company
        handover = statistics.mean(seconds - short for short, seconds in points)
        return replace(times, contention=1.0, handover=max(0.0, handover))
    return replace(times, contention=line.slope, handover=line.base)
