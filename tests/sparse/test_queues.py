"""Two threads: the bits of one, exceptions whole, no thread left behind."""

import subprocess
import sys
import threading

import pytest
import torch
from sparse_examples import append, asking, filled

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.cases import same
from varifocal.sparse.kernels import BlockKernel
from varifocal.sparse.queues import SingleQueue, TwoThreads
from varifocal.sparse.runtime import SparseAttention
from varifocal.sparse.selection import Reach
from varifocal.sparse.selectors import Quest

SMALL = Reach(budget=8, first=2, recent=3)
# In a process of its own, without the shape checks that conftest.py installs: they take longer
# than the cases.
SCRIPT = """
import torch
from varifocal.sparse import TwoThreads
from varifocal.sparse.cases import check_cases
torch.set_num_threads(1)
with TwoThreads() as queues:
    verdicts = [*check_cases(LIMIT, seed=1, queues=queues)]
print(len(verdicts), [(s, p) for s, p, is_same in verdicts if not is_same][:3])
"""


def attention(queues, **options) -> SparseAttention:
    return SparseAttention(filled([60]), SMALL, queues=queues, **options)


def second_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("varifocal")]


def fails(text: str):
    def fail(*_, **__):
        raise ArithmeticError(text)

    return fail


@pytest.mark.parametrize("limit", [105, pytest.param(5040, marks=pytest.mark.slow)])
def test_random_cases_on_two_threads_equal_plain_on_one_bit_for_bit(limit):
    script = SCRIPT.replace("LIMIT", str(limit))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == f"{limit} []", done.stdout + done.stderr


def test_hit_rates_and_steps_are_those_of_one_thread():
    made = {}
    with TwoThreads() as queues:
        for name, kind in (("one", SingleQueue()), ("two", queues)):
            sparse = attention(kind, predictor="ema")
            steps = []
            for number in range(5):
                append(sparse.cache, 0, [1], seed=number)
                steps.append(sparse.step(0, asking(sparse.cache, seed=number % 2)))
            made[name] = steps, sparse.rates()
    assert all(same(a, b) for a, b in zip(made["one"][0], made["two"][0], strict=True))
    assert made["one"][1] == made["two"][1]


def test_selection_and_speculation_run_at_the_same_time(monkeypatch):
    meeting = threading.Barrier(2)  # either waits there for the other
    speculated: list[int] = []
    scores, compute = Quest.scores, BlockKernel.compute
    with TwoThreads() as queues:
        sparse = attention(queues)

        def meet(self, *arguments):
            meeting.wait(30)
            return scores(self, *arguments)

        def meet_too(self, cache, layer, queries, wanted):
            if not speculated:  # repair is not to wait
                speculated.append(meeting.wait(30))
            return compute(self, cache, layer, queries, wanted)

        monkeypatch.setattr(Quest, "scores", meet)
        monkeypatch.setattr(BlockKernel, "compute", meet_too)
        step = sparse.step(0, asking(sparse.cache))
    assert 0 < step.times.overlap <= step.times.select
    assert step.times.early + step.times.select - step.times.overlap <= step.times.total


def test_the_timeline_of_one_thread_has_no_overlap_and_all_its_phases():
    sparse = attention(None)
    step = sparse.step(0, asking(sparse.cache))
    times = step.times.to_dict()
    assert times["overlap"] == 0 and times["steps"] == 1
    phases = [times[f"t_{name}"] for name in ("predict", "speculate", "select", "diff", "repair")]
    assert all(seconds > 0 for seconds in phases)
    assert sum(phases) + times["t_merge"] <= times["t_total"]
    assert sparse.times() == [step.times]


@pytest.mark.parametrize("where", ["selection", "speculation", "both"])
def test_an_exception_of_either_thread_comes_out_whole(where, monkeypatch):
    if where != "speculation":
        monkeypatch.setattr(Quest, "scores", fails("selection"))
    if where != "selection":
        monkeypatch.setattr(BlockKernel, "compute", fails("speculation"))
    with pytest.raises(ArithmeticError) as caught, TwoThreads() as queues:
        attention(queues).step(0, asking(filled([60])))
    assert str(caught.value) == ("speculation" if where == "both" else where)
    assert caught.traceback[-1].name == "fail"
    if where == "both":
        assert str(caught.value.__cause__) == "selection"
    assert not second_threads()


def test_nothing_reads_the_cache_any_more_when_the_caller_has_failed(monkeypatch):
    is_selecting, may_end = threading.Event(), threading.Event()
    scores = Quest.scores
    ended = []

    def slow(self, *arguments):
        is_selecting.set()
        may_end.wait(30)
        ended.append(True)
        return scores(self, *arguments)

    def fail(*_):
        is_selecting.wait(30)
        threading.Timer(0.05, may_end.set).start()
        raise ArithmeticError("speculation")

    monkeypatch.setattr(Quest, "scores", slow)
    monkeypatch.setattr(BlockKernel, "compute", fail)
    with TwoThreads() as queues:
        with pytest.raises(ArithmeticError):
            attention(queues).step(0, asking(filled([60])))
        assert ended


@pytest.mark.parametrize("act", ["step", "rates", "close"])
def test_what_fails_behind_a_step_is_told_by_what_comes_next(act, monkeypatch):
    queues = TwoThreads()
    sparse = attention(queues)
    queries = asking(sparse.cache)
    monkeypatch.setattr(sparse._accounts, "add", fails("learning"))
    sparse.step(0, queries)
    acts = {"step": lambda: sparse.step(0, queries), "rates": sparse.rates, "close": queues.close}
    with pytest.raises(ArithmeticError, match="learning"):
        acts[act]()
    queues.close()  # told once
    assert not second_threads()


def test_one_second_thread_serves_several_texts_and_ends_with_its_owner():
    with TwoThreads() as queues:
        for _ in range(2):
            sparse = attention(queues)
            sparse.step(0, asking(sparse.cache))
        assert len(second_threads()) == 1
    assert not second_threads()
    with pytest.raises(BadRequest, match="has ended: decode inside its `with`"):
        sparse.step(0, asking(sparse.cache))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_gradients_are_recorded_there_as_here(mode):
    def state() -> tuple[bool, bool]:
        return torch.is_inference_mode_enabled(), torch.is_grad_enabled()

    with TwoThreads() as queues, mode():
        there, here = queues.beside(state, state)
    assert there == here


def test_a_cache_on_another_device_is_refused_two_threads():
    cache = filled([9])
    cache.device = torch.device("cuda")  # as if
    with TwoThreads() as queues, pytest.raises(BadOption, match="the cache is on cuda"):
        SparseAttention(cache, SMALL, queues=queues)
