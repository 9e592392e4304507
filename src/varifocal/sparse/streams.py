"""The launch plan of a step on two streams of a GPU, as data, and the streams that carry it out.

    main   | begun | the layer's projections | asked | speculate | diff | repair | merge | MLP ...
    side           | predict                         | rank | select     | learn

The main stream is the caller's. What waits for what is written down once, in the acts below;
`races` proves from what each piece of work reads and writes that nothing else has to wait. No act
depends on a result, so the host never waits and a CUDA graph can hold all of it. [PRR: schedule]
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import torch

from varifocal.errors import BadOption


class Stream(StrEnum):
    """Where work is launched."""

    MAIN = "main"  # the caller's: projections, speculation, repair, merge, MLP
    SIDE = "side"  # prediction, selection, learning


@dataclass(frozen=True)
class Launch:
    """A piece of work, and the buffers that it reads and writes."""

    stream: Stream
    work: str
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Record:
    """Marks a point of a stream."""

    stream: Stream
    event: str


@dataclass(frozen=True)
class Wait:
    """Holds a stream up until the last point so marked has been reached."""

    stream: Stream
    event: str


Act = Launch | Record | Wait
Plan = tuple[Act, ...]


def _launch(stream: Stream, work: str, reads: str, writes: str) -> Launch:
    return Launch(stream, work, frozenset(reads.split()), frozenset(writes.split()))


MAIN, SIDE = Stream.MAIN, Stream.SIDE

# Before a layer's projections: the guess needs no query.
BEGIN: Plan = (
    Record(MAIN, "begun"),
    Wait(SIDE, "begun"),
    _launch(SIDE, "predict", "lengths memory", "listed"),
    Record(SIDE, "guessed"),
)
# When the queries are there and the new tokens' keys are in the cache.
ATTEND: Plan = (
    Record(MAIN, "asked"),
    Wait(SIDE, "asked"),
    _launch(SIDE, "rank", "queries pages lengths", "ranks"),
    _launch(SIDE, "select", "ranks lengths", "chosen"),
    Record(SIDE, "chosen"),
    Wait(MAIN, "guessed"),
    _launch(MAIN, "speculate", "queries pages lengths listed", "early"),
    Wait(MAIN, "chosen"),
    _launch(MAIN, "diff", "listed chosen", "found missing"),
    _launch(MAIN, "repair", "queries pages lengths missing", "late"),
    _launch(MAIN, "merge", "early late found", "output"),
    _launch(SIDE, "learn", "chosen lengths", "memory"),
    Record(SIDE, "learned"),
)
# Before the memory is touched from outside, and where the capture of a graph ends.
JOIN: Plan = (Wait(MAIN, "learned"),)
# The same step without speculation, on the caller's stream alone.
PLAIN: Plan = (
    _launch(MAIN, "rank", "queries pages lengths", "ranks"),
    _launch(MAIN, "select", "ranks lengths", "chosen"),
    _launch(MAIN, "diff", "listed chosen", "found missing"),
    _launch(MAIN, "repair", "queries pages lengths missing", "late"),
    _launch(MAIN, "merge", "early late found", "output"),
)


class Streams(ABC):
    """Carries acts out in the order in which they are given, or what may take its place."""

    @abstractmethod
    def launch(self, stream: Stream, work: Callable[[], None]) -> None:
        """Enqueue the work."""

    @abstractmethod
    def record(self, stream: Stream, event: str) -> None:
        """Mark a point."""

    @abstractmethod
    def wait(self, stream: Stream, event: str) -> None:
        """Let the stream wait for the point, not the host."""

    def run(self, plan: Plan, works: Mapping[str, Callable[[], None]]) -> None:
        """Carry out a plan, whose work is looked up by name."""
        for act in plan:
            match act:
                case Launch(stream, work):
                    self.launch(stream, works[work])
                case Record(stream, event):
                    self.record(stream, event)
                case Wait(stream, event):
                    self.wait(stream, event)


class SingleStream(Streams):
    """Everything on the caller's stream, one after the other: for CPUs, and where streams hang.

    A plan lists its acts in an order that respects its events, so the result is the same.
    """

    def launch(self, stream: Stream, work: Callable[[], None]) -> None:
        """At once."""
        work()

    def record(self, stream: Stream, event: str) -> None:
        """What comes later is later anyway."""

    def wait(self, stream: Stream, event: str) -> None:
        """What came before is done or enqueued."""


class CudaStreams(Streams):
    """The caller's stream and one more, which goes first where both want to launch.

    All layers of a model may share one. Everything that works on the side must own its buffers:
    memory that the caller's stream frees may be handed out again while the side still reads it.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise BadOption(
                f"CUDA streams need a CUDA device, got {device}: choose SingleStream, the result "
                "is the same"
            )
        self._device = device
        self._side = torch.cuda.Stream(device, priority=-1)  # selection is what others wait for
        self._events: dict[str, torch.cuda.Event] = {}

    def launch(self, stream: Stream, work: Callable[[], None]) -> None:
        """On the stream."""
        with self._on(stream):
            work()

    def record(self, stream: Stream, event: str) -> None:
        """Events are made once and recorded again and again."""
        mark = self._events.setdefault(event, torch.cuda.Event())
        mark.record(self._stream(stream))

    def wait(self, stream: Stream, event: str) -> None:
        """Nothing is waited for on the host."""
        self._stream(stream).wait_event(self._events[event])

    def _stream(self, stream: Stream) -> torch.cuda.Stream:
        is_side = stream is Stream.SIDE
        return self._side if is_side else torch.cuda.current_stream(self._device)

    def _on(self, stream: Stream) -> AbstractContextManager[object]:
        return torch.cuda.stream(self._stream(stream))


def races(plan: Plan) -> list[tuple[str, str, str]]:
    """Pairs of work that touch a buffer, one of them writing, and whose order nothing fixes.

    Each as (earlier listed work, later listed work, buffer). A launch comes after all that its
    stream did before, and after what the points did that its stream has waited for.
    """
    clock: dict[Stream, dict[Stream, int]] = {stream: {} for stream in Stream}
    marks: dict[str, dict[Stream, int]] = {}
    launches: list[tuple[Launch, int, dict[Stream, int]]] = []  # with number and what came before
    for act in plan:
        known = clock[act.stream]
        match act:
            case Launch(stream):
                number = known.get(stream, 0) + 1
                launches.append((act, number, dict(known)))
                known[stream] = number
            case Record(_, event):
                marks[event] = dict(known)
            case Wait(_, event):
                for stream, number in marks[event].items():
                    known[stream] = max(number, known.get(stream, 0))
    found = []
    for (one, number, _), (other, _, before) in combinations(launches, 2):
        if before.get(one.stream, 0) < number:
            clash = (one.writes & (other.reads | other.writes)) | (one.reads & other.writes)
            found += [(one.work, other.work, buffer) for buffer in sorted(clash)]
    return found
