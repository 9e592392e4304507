"""The launch plan as data: nothing races, no wait is idle, any order it allows gives the same."""

import random
from collections import defaultdict

import pytest
import torch
from sparse_examples import append, filled

from varifocal.errors import BadOption
from varifocal.sparse.padded_torch import TorchOperations
from varifocal.sparse.selection import Reach
from varifocal.sparse.static_step import Buffers, StaticStep
from varifocal.sparse.streams import (
    ATTEND,
    BEGIN,
    JOIN,
    MAIN,
    PLAIN,
    CudaStreams,
    Launch,
    SingleStream,
    Streams,
    Wait,
    races,
)


def caller(work: str, writes: str) -> Launch:
    return Launch(MAIN, work, frozenset(), frozenset(writes.split()))


LAYER = (*BEGIN, caller("project", "queries pages"), *ATTEND)
TOKEN = (caller("lengthen", "lengths"), *LAYER, *LAYER, *JOIN)
DECODING = (*TOKEN, *TOKEN, caller("forget", "lengths memory pages"))


def test_nothing_races_within_a_layer_between_layers_and_between_tokens():
    assert races(DECODING) == []


@pytest.mark.parametrize("event", ["begun", "guessed", "asked", "chosen", "learned"])
def test_every_wait_is_needed(event):
    without = tuple(act for act in DECODING if not (isinstance(act, Wait) and act.event == event))
    assert len(without) < len(DECODING)
    assert races(without)


def test_what_races_is_named():
    without = tuple(act for act in ATTEND if act != Wait(MAIN, "chosen"))
    assert ("select", "diff", "chosen") in races((*BEGIN, *without))


def test_speculation_does_not_wait_for_selection():
    acts = [act.work if isinstance(act, Launch) else act for act in ATTEND]
    assert acts.index("speculate") < acts.index(Wait(MAIN, "chosen")) < acts.index("diff")


def test_plain_is_the_same_work_on_the_callers_stream_without_speculation():
    speculating = {act.work for act in (*BEGIN, *ATTEND) if isinstance(act, Launch)}
    plain = [act.work for act in PLAIN if isinstance(act, Launch)]
    assert speculating - set(plain) == {"predict", "speculate", "learn"}
    assert all(act.stream is MAIN for act in PLAIN) and races(PLAIN) == []


class AnyOrder(Streams):
    """Keeps what is enqueued, and carries it out in a drawn order that events allow."""

    def __init__(self, seed: int) -> None:
        self._random, self._seen = random.Random(seed), []
        self._queues: dict = defaultdict(list)
        self._marks: dict = {}

    def launch(self, stream, work) -> None:
        self._queues[stream].append(work)

    def record(self, stream, event) -> None:
        mark = self._marks[event] = object()
        self._queues[stream].append((True, mark))

    def wait(self, stream, event) -> None:
        self._queues[stream].append((False, self._marks[event]))

    def finish(self) -> list:
        """Carries everything out; from which streams, in their order."""
        reached, order = set(), []
        while any(self._queues.values()):
            ready = [s for s, queue in self._queues.items() if queue and self._may(queue, reached)]
            stream = self._random.choice(sorted(ready))
            act = self._queues[stream].pop(0)
            if callable(act):
                act()
                order.append(stream)
            elif act[0]:
                reached.add(act[1])
        return order

    @staticmethod
    def _may(queue, reached) -> bool:
        return callable(queue[0]) or queue[0][0] or queue[0][1] in reached


def outputs(streams, finish=lambda: None) -> list[torch.Tensor]:
    """Three tokens of a small cache, the queries' and lengths' writes enqueued like the rest."""
    cache = filled([46, 19], dtype=torch.float32)
    append(cache, 0, [3, 3], seed=3)
    buffers = Buffers.empty(
        cache, Reach(budget=12, first=2, recent=3), group=2, guesses=4, scale=0.3
    )
    step, queries = StaticStep(cache, 0, TorchOperations(), buffers), buffers.queries
    rng, made = torch.Generator().manual_seed(0), []
    for number in range(3):
        lengths = torch.tensor([47 + number, 20 + number])
        vectors = torch.randn(queries.vectors.shape, generator=rng)
        streams.launch(MAIN, lambda lengths=lengths: queries.visible.copy_(lengths))
        step.begin(streams)
        streams.launch(MAIN, lambda vectors=vectors: queries.vectors.copy_(vectors))
        step.attend(streams)
        streams.launch(MAIN, lambda: made.append(buffers.merged.state.total.clone()))
        step.join(streams)
    finish()
    return made


def test_every_order_that_the_events_allow_gives_the_same_bits():
    wanted = outputs(SingleStream())
    orders = set()
    for seed in range(8):
        streams = AnyOrder(seed)
        found = outputs(streams, lambda streams=streams: orders.add(tuple(streams.finish())))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert len(orders) > 4


def test_cuda_streams_need_cuda():
    with pytest.raises(BadOption, match="got cpu: choose SingleStream"):
        CudaStreams(torch.device("cpu"))
