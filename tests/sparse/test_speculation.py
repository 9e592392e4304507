"""The budget of guesses: under the measured time of selection, and nothing where nothing pays."""

from contextlib import nullcontext
from threading import Lock
from time import sleep

import pytest
import torch
from sparse_examples import asking, filled

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.kernels import BlockKernel
from varifocal.sparse.phases import SHARES, Line, PhaseTimes
from varifocal.sparse.profiling import Care, Profiler, Trial, measure
from varifocal.sparse.queues import TwoThreads
from varifocal.sparse.runtime import SparseAttention
from varifocal.sparse.selection import Reach
from varifocal.sparse.selectors import Quest
from varifocal.sparse.speculation import FixedSpeculation, ProfiledSpeculation, Sizes


def times(select=100.0, attend=1.0, contention=1.0) -> PhaseTimes:
    """Selection of fixed cost; attention by the unit, merge for nothing."""
    free = Line(base=0.0, slope=0.0)
    return PhaseTimes(
        select=Line(base=select, slope=0.0),
        attend=Line(base=0.0, slope=attend),
        merge=free,
        contention=contention,
    )


def taught(profile: PhaseTimes, rate: float) -> ProfiledSpeculation:
    """After steps that chose 40 of 200 units, of which the 40 best ranked hold this share."""
    speculation = ProfiledSpeculation(profile, num_layers=1)
    ranking = torch.zeros(1, 1, 200)
    ranking[..., :40] = torch.arange(40, 0, -1)
    chosen = torch.zeros(1, 1, 200, dtype=torch.bool)
    hits = int(rate * 40)
    chosen[..., :hits] = True
    chosen[..., 100 : 140 - hits] = True
    for _ in range(5):
        speculation.learn(0, ranking, chosen)
    return speculation


def test_where_guesses_are_right_and_selection_is_long_as_many_as_are_chosen():
    assert taught(times(), 0.9).guesses(0, Sizes(lambda: (200, 4, 40))) == 40


@pytest.mark.parametrize("select", [1.0, 10.0, 20.0, 30.0, 45.0, 60.0, 100.0])
@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_speculation_never_outlasts_selection(select, rate):
    guessed = taught(times(select=select), rate).guesses(0, Sizes(lambda: (200, 4, 40)))
    assert guessed is None or 4 + guessed <= select


@pytest.mark.parametrize("contention", [1.0, 1.3, 3.0])
@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9])
def test_the_expected_step_is_never_slower_than_plain(contention, rate):
    profile = times(contention=contention)
    guessed = taught(profile, rate).guesses(0, Sizes(lambda: (200, 4, 40)))
    if guessed is not None:
        share = min(guessed / 40, rate)
        assert profile.speculating(200, 4, 40, guessed, share) < 0.98 * profile.plain(200, 4, 40)
    if contention == 3:
        assert guessed is None


def test_before_anything_was_seen_only_what_is_certain_is_attended_early():
    fresh = ProfiledSpeculation(times(), num_layers=1)
    assert fresh.rates(0) == [0.0] * len(SHARES)
    assert fresh.guesses(0, Sizes(lambda: (200, 4, 40))) == 0
    assert (
        fresh.guesses(0, Sizes(lambda: (200, 0, 40))) is None
    )  # nothing is certain: nothing to gain


def test_rates_of_larger_shares_count_the_runners_up():
    speculation = ProfiledSpeculation(times(), num_layers=1)
    ranking = torch.arange(12.0, 0, -1)[None, None]
    chosen = torch.zeros(1, 1, 12, dtype=torch.bool)
    chosen[..., [0, 2, 4, 5]] = True
    speculation.learn(0, ranking, chosen)
    rates = dict(zip(SHARES, speculation.rates(0), strict=True))
    assert [rates[s] for s in (0, 0.25, 0.5, 1, 1.25, 1.5)] == [0, 0.25, 0.25, 0.5, 0.75, 1.0]


def test_a_runtime_where_speculation_cannot_pay_does_none_and_is_still_the_same():
    reach = Reach(budget=8, first=2, recent=3)
    slow = ProfiledSpeculation(times(select=0.1), num_layers=1)
    attention = SparseAttention(filled([60]), reach, speculation=slow)
    queries = asking(attention.cache)
    step = attention.step(0, queries)
    assert step.speculated == 0 and not attention.rates()
    assert torch.equal(step.state.total, attention.plain(0, queries).state.total)


def test_lines_never_fall_and_no_work_takes_no_time():
    line = Line.through((10, 5.0), (20, 4.0))
    assert line(0) == 0 and 4 < line(10) == line(1000) < 5
    rising = Line.through((10, 2.0), (20, 4.0))
    assert rising(15) == pytest.approx(3.0) and rising(1) == pytest.approx(0.2)
    assert Line.through((10, 1.0), (20, 4.0)).base == 0  # never below nothing


def test_a_line_through_many_measurements_is_as_near_to_short_ones_as_to_long_ones():
    exact = Line.through(*((n, 3.0 + 0.5 * n) for n in (4, 16, 64)))
    assert exact(100) == pytest.approx(53.0)
    bent = Line.through((1, 1.0), (10, 11.0), (100, 100.0))
    assert all(abs(bent(n) / n - 1) < 0.1 for n in (1, 10, 100))


def test_measured_times_are_positive_and_leave_the_cache_alone():
    cache = filled([60])
    queries = asking(cache)
    before = [part.clone() for part in cache.tokens(0, 0)]
    reach = Reach(budget=8, first=2, recent=3)
    got = measure(Trial(cache=cache, reach=reach, layer=0), queries)
    assert all(line(15) > 0 for line in (got.select, got.attend, got.merge, got.learn))
    assert got.contention == 2  # one queue: they take turns
    assert all(torch.equal(a, b) for a, b in zip(before, cache.tokens(0, 0), strict=True))
    with pytest.raises(BadRequest, match="at least 8 units of 4 keys to measure at, got 3"):
        short = filled([12])
        measure(Trial(cache=short, reach=reach, layer=0), asking(short))


@pytest.mark.parametrize("is_crowded", [False, True])
def test_contention_is_what_two_threads_cost_each_other(monkeypatch, is_crowded):
    """Both phases sleep, side by side or, on a machine without room for both, by turns."""
    room = Lock() if is_crowded else nullcontext()
    scores, compute = Quest.scores, BlockKernel.compute

    def score(self, cache, layer, queries):
        with room:
            sleep(0.01 + 8e-4 * cache.num_blocks(int(queries.visible.max())))
        return scores(self, cache, layer, queries)

    def attend(self, cache, layer, queries, wanted):
        if number := int(wanted.sum()):
            with room:
                sleep(0.01 + 2e-4 * number)
        return compute(self, cache, layer, queries, wanted)

    monkeypatch.setattr(Quest, "scores", score)
    monkeypatch.setattr(BlockKernel, "compute", attend)
    cache = filled([60])
    care = Care(typical=min)  # a busy machine wakes sleepers late
    trial = Trial(cache=cache, reach=Reach(budget=8, first=2, recent=3), layer=0, care=care)
    with TwoThreads() as queues:
        profiler = Profiler(trial, asking(cache), queues)
        for _ in range(4):
            profiler.round(asking(cache))
    got = profiler.times()
    # Together: what the shorter phase adds to the longer one, for each second that it takes.
    added = (got.contention * 0.012 + got.handover) / 0.012
    assert (added > 1.5) == is_crowded


def test_settings_out_of_range_are_refused():
    with pytest.raises(BadOption, match="contention is at least 1"):
        times(contention=0.5)
    with pytest.raises(BadOption, match="cannot be negative"):
        FixedSpeculation(-1.0)
