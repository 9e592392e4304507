"""What the phases of a sparse step take on this machine: measured, for the budget of guesses."""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

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


@dataclass(frozen=True)
class _Bench:
    """What is measured, and on what."""

    cache: BlockCache
    reach: Reach
    layer: int
    queries: Queries
    selector: str
    predictor: str
    kernel: str
    care: Care

    @property
    def unit(self) -> int:
        return load_selector(self.selector, self.cache).unit(self.cache)

    def upto(self, tokens: int) -> "_Bench":
        """The same on fewer tokens of the cache."""
        visible = self.queries.visible.clamp(max=tokens)
        return replace(self, queries=replace(self.queries, visible=visible))

    def attention(self, share: float, queues: Queues) -> SparseAttention:
        """Anew, and primed: the same query over and over is guessed right as far as possible."""
        made = SparseAttention(
            self.cache,
            self.reach,
            selector=self.selector,
            predictor=self.predictor,
            speculation=FixedSpeculation(share),
            queues=queues,
            kernel=self.kernel,
        )
        made.prime(self.layer, self.queries)
        return made

    def steps(self, attention: SparseAttention) -> Iterator[Step]:
        """Steps without end, the first of them unseen: it warms up."""
        attention.step(self.layer, self.queries)
        while True:
            attention.settle()
            time.sleep(self.care.rest)
            yield attention.step(self.layer, self.queries)


def measure(
    cache: BlockCache,
    reach: Reach,
    layer: int,
    queries: Queries,
    *,
    selector: str = "quest",
    predictor: str = "ema",
    queues: Queues | None = None,
    kernel: str = "torch",
    care: Care = CARE,
) -> PhaseTimes:
    """Time the phases of steps for these queries, over parts of the cache and all of it.

    With two queues their contention is measured as well; one queue takes turns. Fill the cache to
    the length of interest first. Takes some seventy steps, fewer with less care; changes nothing.
    """
    bench = _Bench(cache, reach, layer, queries, selector, predictor, kernel, care)
    unit = bench.unit
    units = -(-int(queries.visible.min()) // unit)
    if units < FEWEST:
        raise BadRequest(
            f"wanted at least {FEWEST} units of {unit} keys to measure at, got {units}"
        )
    benches = [bench.upto(int(part * units) * unit) for part in _PARTS]
    points, fixed = _Points(), list[float]()
    for part in benches:
        for share in _GUESSES:
            clock = _Clocked()
            for step in islice(part.steps(part.attention(share, clock)), care.repeats):
                _note(points, fixed, step, clock.seconds)
    times = PhaseTimes(
        select=points.line("select", care.typical),
        attend=points.line("attend", care.typical),
        merge=points.line("merge", care.typical),
        predict=points.line("predict", care.typical),
        diff=points.line("diff", care.typical),
        learn=points.line("learn", care.typical),
        fixed=care.typical(fixed),
        contention=TAKING_TURNS,
    )
    if queues is None or isinstance(queues, SingleQueue):
        return times
    return _with_contention(times, benches, queues)


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


def _with_contention(times: PhaseTimes, benches: Sequence[_Bench], queues: Queues) -> PhaseTimes:
    """Steps of one queue and of two in turn: what the shorter task adds to the longer one."""
    points = []
    for bench in benches:
        for share in _GUESSES:
            one = bench.steps(bench.attention(share, SingleQueue()))
            two = bench.steps(bench.attention(share, queues))
            pairs = [*islice(zip(one, two, strict=True), bench.care.repeats)]
            typical = bench.care.typical
            short, long = sorted(
                (
                    typical([serial.times.early for serial, _ in pairs]),
                    typical([serial.times.select for serial, _ in pairs]),
                )
            )
            both = typical([p.times.total - p.times.late for _, p in pairs]) - times.fixed
            points.append((short, max(0.0, both - (long - short))))
    line = Line.through(*points)
    if line.slope < 1:  # nobody is faster in company
        handover = statistics.mean(seconds - short for short, seconds in points)
        return replace(times, contention=1.0, handover=max(0.0, handover))
    return replace(times, contention=line.slope, handover=line.base)
