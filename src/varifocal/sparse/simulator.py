"""Two queues, event by event: what a token takes with PRR and without, from the times of phases.

The first queue computes, the second selects and learns. While both are busy each goes on at
1 / contention of its speed. Per layer, with PRR:

    queue 0: before | predict, speculate | handover, diff, repair, merge | after
    queue 1:        | select             |                               | learn
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from varifocal.errors import BadOption
from varifocal.sparse.phases import SHARES, PhaseTimes
from varifocal.sparse.profiles import Profile

GAIN = 0.02  # of the plain step: less is not worth the risk, and nothing is guessed


@dataclass(frozen=True)
class Task:
    """Work of one queue."""

    name: str
    queue: int  # 0 or 1; each does its tasks in their order
    seconds: float  # alone
    after: tuple[int, ...] = ()  # numbers of tasks that have to be done before


@dataclass(frozen=True)
class Span:
    """When a task ran, in seconds from the start."""

    task: Task
    start: float
    end: float


def play(tasks: Sequence[Task], contention: float = 1.0) -> list[Span]:
    """When each task runs, in the tasks' order."""
    waiting = [deque(n for n, t in enumerate(tasks) if t.queue == queue) for queue in (0, 1)]
    left = [task.seconds for task in tasks]
    starts, ends = dict[int, float](), dict[int, float]()
    now = 0.0
    while any(waiting):
        heads = [queue[0] for queue in waiting if queue]
        active = [n for n in heads if all(before in ends for before in tasks[n].after)]
        assert active, f"tasks {heads} wait for one behind them"
        speed = 1 / contention if len(active) == 2 else 1.0
        least = min(left[n] for n in active)
        for n in active:
            starts.setdefault(n, now)
        now += least / speed
        for n in active:
            left[n] -= least
            if left[n] <= 0:
                ends[n] = now
                waiting[tasks[n].queue].popleft()
    return [Span(task, starts[n], ends[n]) for n, task in enumerate(tasks)]


@dataclass(frozen=True, kw_only=True)
class Projection:
    """What a token would take, in seconds, and what of it PRR saves.

    The window is what lies between a layer's query and its merged state: select and attend.
    """

    profile: str
    context: int  # tokens
    batch: int
    group: int
    layers: int
    contention: float
    guessed: int | None  # units a query and head; None: PRR is off
    hit_rate: float | None  # share of the chosen units that are among them
    asked_rate: float | None = None  # the same, were as many guessed as chosen
    chosen: int
    plain_window: float
    window: float
    plain_token: float
    token: float

    @property
    def window_saving(self) -> float:
        """Share of the plain window."""
        return 1 - self.window / self.plain_window

    @property
    def token_saving(self) -> float:
        """Share of the plain token, all layers and what lies between their windows."""
        return 1 - self.token / self.plain_token

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        saved = {"window": self.window_saving, "token": self.token_saving}
        return {**vars(self), "saved": saved}


def simulate(
    profile: Profile,
    rates: float | Sequence[float],
    *,
    contention: float | None = None,
    may_outlast: bool = False,
) -> Projection:
    """A token at this profile, with these hit rates and the number of guesses that suits them.

    `rates` are for each of SHARES, or one for as many guesses as are chosen; fewer then hit in
    proportion and more hit no more. `contention` takes the place of the profile's.
    """
    if isinstance(rates, float | int) and not 0 <= rates <= 1:
        raise BadOption(f"wanted hit rates from 0 to 1, got {rates:g}")
    curve = hit_curve(rates) if isinstance(rates, float | int) else list(rates)
    if len(curve) != len(SHARES) or not all(0 <= rate <= 1 for rate in curve):
        raise BadOption(f"wanted {len(SHARES)} hit rates from 0 to 1, got {curve}")
    if contention is not None:
        profile = profile.with_contention(contention)
    sizes = (profile.units, profile.kept, profile.chosen)
    best = profile.times.fastest(*sizes, curve, gain=GAIN, may_outlast=may_outlast)
    return replace(project(profile, best), asked_rate=curve[SHARES.index(1.0)])


def project(profile: Profile, best: tuple[int, float] | None) -> Projection:
    """A token at this profile with so many guesses and this hit rate; None without PRR."""
    times = profile.times
    plain = play([*_token(profile, times, None)], times.contention)
    with_prr = play([*_token(profile, times, best)], times.contention)
    return Projection(
        profile=profile.name,
        context=profile.context,
        batch=profile.batch,
        group=profile.group,
        layers=profile.layers,
        contention=times.contention,
        guessed=best[0] if best else None,
        hit_rate=best[1] if best else None,
        chosen=profile.chosen,
        plain_window=_window(plain),
        window=_window(with_prr),
        plain_token=_end(plain),
        token=_end(with_prr),
    )


def hit_curve(rate: float) -> list[float]:
    """Hit rates at SHARES from the one at 1: a guess is as good as another."""
    return [rate * min(1.0, share) for share in SHARES]


def _token(profile: Profile, times: PhaseTimes, best: tuple[int, float] | None) -> Iterator[Task]:
    """The tasks of one token; `best` are guesses and their hit rate, None without PRR."""
    number = 0
    learned: tuple[int, ...] = ()
    for _ in range(profile.layers):
        yield Task("before", 0, profile.before)
        yield Task("fixed", 0, times.fixed)
        made = _plain(profile, times) if best is None else _prr(profile, times, number, best)
        tasks = [*made]
        if learned:  # of the layer below: predictors may read it
            first = next(n for n, task in enumerate(tasks) if task.queue == 0)
            tasks[first] = Task(tasks[first].name, 0, tasks[first].seconds, learned)
        yield from tasks
        yield Task("after", 0, profile.after)
        learned = () if best is None else (number + 2 + len(tasks) - 1,)
        number += 3 + len(tasks)
    yield Task("head", 0, profile.head)


def _plain(profile: Profile, times: PhaseTimes) -> Iterator[Task]:
    units = profile.kept + profile.chosen
    yield Task("select", 0, times.select(profile.units))
    yield Task("attend", 0, times.attend(units))
    yield Task("merge", 0, 0.0 if times.is_fused else times.merge(units))


def _prr(
    profile: Profile, times: PhaseTimes, number: int, best: tuple[int, float]
) -> Iterator[Task]:
    """Of a layer whose first task, `before`, has this number."""
    guessed, rate = best
    select, speculate, merge = number + 2, number + 4, number + 8
    units = profile.kept + profile.chosen
    yield Task("select", 1, times.select(profile.units), (number + 1,))
    yield Task("predict", 0, times.predict(profile.units))
    yield Task("speculate", 0, times.keeping(profile.kept + guessed))
    yield Task("handover", 0, times.handover, (select, speculate))
    yield Task("diff", 0, times.diff(profile.units))
    yield Task("repair", 0, times.keeping((1 - rate) * profile.chosen))
    yield Task("merge", 0, times.merge(units))
    yield Task("learn", 1, times.learn(profile.units), (merge,))


def _window(spans: Sequence[Span]) -> float:
    """Seconds within the windows of all layers."""
    total = start = 0.0
    for span in spans:
        if span.task.name == "fixed":
            start = span.start
        if span.task.name == "merge":
            total += span.end - start
    return total


def _end(spans: Sequence[Span]) -> float:
    return max(span.end for span in spans)
