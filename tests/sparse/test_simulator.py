"""Two simulated queues against arithmetic, the authors' table, and the guard of the budget."""

from dataclasses import replace
from random import Random

import pytest
import torch

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.guard import GuardedSpeculation
from varifocal.sparse.phases import SHARES, Line, PhaseTimes
from varifocal.sparse.profiles import Profile, paper_profiles, read_profiles
from varifocal.sparse.simulator import Task, hit_curve, play, project, simulate
from varifocal.sparse.speculation import FixedSpeculation, ProfiledSpeculation, Sizes, Speculation


def drawn(rng: Random) -> tuple[PhaseTimes, Profile]:
    """A machine with any balance of phases, and a model on it."""

    def line() -> Line:
        return Line(base=rng.uniform(0, 5), slope=rng.uniform(0, 1))

    times = PhaseTimes(
        select=line(),
        attend=line(),
        merge=line(),
        predict=Line(base=rng.uniform(0, 1)),
        diff=Line(base=rng.uniform(0, 1)),
        fixed=rng.uniform(0, 3),
        handover=rng.uniform(0, 2),
        contention=rng.uniform(1, 2.2),
    )
    sizes = {"units": 200, "kept": rng.randint(0, 6), "chosen": rng.randint(1, 60)}
    return times, Profile(name="drawn", context=200, times=times, **sizes)


def ends(tasks, contention) -> list[float]:
    return [span.end for span in play(tasks, contention)]


def test_two_queues_side_by_side_are_slower_while_both_are_busy():
    tasks = [Task("long", 0, 10.0), Task("short", 1, 4.0)]
    assert ends(tasks, 1.0) == [10, 4]
    assert ends(tasks, 1.5) == pytest.approx([12, 6])  # 6 together, then the 6 that are left
    assert ends(tasks, 2.0) == [14, 8]


def test_a_task_waits_for_its_queue_and_for_what_it_needs():
    tasks = [Task("a", 0, 2.0), Task("b", 1, 5.0, (0,)), Task("c", 0, 1.0), Task("d", 0, 1.0, (1,))]
    spans = play(tasks, 1.0)
    assert [(s.start, s.end) for s in spans] == [(0, 2), (2, 7), (2, 3), (7, 8)]


def test_one_layer_takes_what_the_formula_says():
    for seed in range(40):
        rng = Random(seed)
        times, profile = drawn(rng)
        guessed, rate = rng.randint(0, profile.chosen), rng.random()
        sizes = (profile.units, profile.kept, profile.chosen)
        made = project(profile, (guessed, rate))
        assert made.window == pytest.approx(times.speculating(*sizes, guessed, rate))
        assert made.plain_window == pytest.approx(times.plain(*sizes))
        assert project(profile, None).window == pytest.approx(times.plain(*sizes))


def test_learning_is_hidden_behind_the_rest_of_the_layer_where_there_is_room():
    times = PhaseTimes(
        select=Line(base=10.0), attend=Line(slope=1.0), merge=Line(), learn=Line(base=6.0)
    )

    def token(after: float) -> float:
        profile = Profile(
            name="", context=9, times=times, units=9, kept=1, chosen=5, layers=3, after=after
        )
        return project(profile, (5, 1.0)).token

    assert token(8.0) == 3 * (10 + 8)
    assert token(2.0) == 3 * (10 + 6)  # the next layer, and the text's end, wait for it


def test_where_the_budget_is_zero_nothing_changes():
    times = PhaseTimes(select=Line(base=1.0), attend=Line(slope=1.0), merge=Line())
    made = simulate(Profile(name="", context=9, times=times, units=9, kept=2, chosen=5), 1.0)
    assert made.guessed is None and made.window_saving == made.token_saving == 0


def test_no_projection_is_slower_than_plain():
    for seed in range(60):
        rng = Random(seed)
        _, profile = drawn(rng)
        for may_outlast in (False, True):
            made = simulate(profile, rng.random(), may_outlast=may_outlast)
            assert made.window <= made.plain_window * 1.000001


def true_seconds(
    times: PhaseTimes,
    rates: list[float],
    steps: int,
    rng: Random,
    speculation: Speculation | None = None,
) -> tuple[float, float, list[int | None]]:
    """Decode with the budget's own choices where phases take exactly these times."""
    units, kept, chosen = 200, 4, 40
    speculation = speculation or ProfiledSpeculation(times, num_layers=1)
    ranking = torch.zeros(1, 1, units)
    ranking[..., :60] = torch.arange(60, 0, -1)
    taken, answers = 0.0, []
    for step in range(steps):
        rate = rates[step * len(rates) // steps]
        guessed = speculation.guesses(0, Sizes(lambda: (units, kept, chosen)))
        answers.append(guessed)
        is_right = torch.zeros(1, 1, units, dtype=torch.bool)
        hits = sum(rng.random() < rate for _ in range(chosen))
        is_right[..., :hits] = True
        is_right[..., 100 : 140 - hits] = True
        if guessed is None:
            taken += times.plain(units, kept, chosen)
            speculation.took(0, times.plain(units, kept, chosen), is_guessing=False)
            if not speculation.is_watching(0):
                continue
            taken += times.learn(units)  # as if nothing hid it
        else:
            share = min(guessed, hits) / chosen
            seconds = times.speculating(units, kept, chosen, guessed, share)
            taken += seconds
            speculation.took(0, seconds, is_guessing=True)
        speculation.learn(0, ranking, is_right)
    return taken, steps * times.plain(units, kept, chosen), answers


@pytest.mark.parametrize("contention,select", [(1.0, 4), (1.0, 60), (1.3, 200), (2.0, 60)])
@pytest.mark.parametrize("rates", [[0.9], [0.95, 0.05], [0.05, 0.95]], ids=str)
def test_with_fixed_phase_times_decoding_is_never_2_percent_slower_than_plain(
    contention, select, rates
):
    times = PhaseTimes(
        select=Line(base=float(select)),
        attend=Line(base=1.0, slope=1.0),
        merge=Line(base=2.0),
        diff=Line(base=1.0),
        learn=Line(base=0.3 * (select + 47)),
        handover=1.0,
        contention=contention,
    )
    taken, plain, answers = true_seconds(times, rates, 260, Random(0))
    assert taken <= 1.02 * plain
    if contention == 2:
        assert not any(answers)
    if contention == 1 and select == 60 and rates == [0.9]:
        assert answers[-1] is not None and taken < 0.8 * plain


@pytest.mark.parametrize("contention", [1.0, 2.5])
def test_a_profile_that_no_longer_holds_is_found_out(contention):
    """Measured without contention; then something else keeps the machine busy, or does not."""
    measured = PhaseTimes(
        select=Line(base=60.0), attend=Line(slope=1.0), merge=Line(), contention=1.0
    )
    true = replace(measured, contention=contention)
    speculation = GuardedSpeculation(ProfiledSpeculation(measured, 1), 1)
    taken, plain, answers = true_seconds(true, [0.9], 300, Random(0), speculation)
    if contention > 2:
        assert taken <= 1.02 * plain and 0 < sum(a is not None for a in answers) < 10
    else:
        assert taken < 0.75 * plain and sum(a is None for a in answers) < 15


def test_pauses_grow_while_trials_are_lost_and_shrink_after_one_is_won():
    guarded = GuardedSpeculation(FixedSpeculation(), 2)
    waits, since = [], 0
    for step in range(1500):
        for layer in (0, 1):
            is_guessing = guarded.guesses(layer, Sizes(lambda: (100, 4, 10))) is not None
            slow = 2.0 if step < 900 else 0.5
            guarded.took(layer, slow if is_guessing else 1.0, is_guessing=is_guessing)
        if not is_guessing:
            since += 1
        elif since:
            waits.append(since)
            since = 0
    tried, period = GuardedSpeculation.TRIED, GuardedSpeculation.PERIOD
    assert waits[:4] == [tried + n * period for n in (0, 1, 2, 4)]
    assert all(wait == tried for wait in waits[4:]) and len(waits) > 5


@pytest.mark.parametrize("contention", [1.0, 2.5])
@pytest.mark.parametrize("select", [250.0, 3.0])
def test_who_rests_answers_like_who_is_asked_each_time(contention, select):
    """Guesses pay by the profile where selection is long, and in truth without contention."""
    measured = PhaseTimes(select=Line(base=select), attend=Line(slope=1.0), merge=Line())
    sizes, answers, asked = Sizes(lambda: (200, 4, 40)), dict[bool, list[int | None]](), 0
    ranking = torch.arange(200.0, 0, -1)[None, None]
    for is_resting in (False, True):
        guarded = GuardedSpeculation(ProfiledSpeculation(measured, 1), 1)
        made, rest = answers.setdefault(is_resting, []), 0
        for _ in range(1500):
            if rest:
                rest -= 1
                made.append(None)
                continue
            asked += is_resting
            answer = guarded.guesses(0, sizes)
            made.append(answer)
            slow = contention if answer is not None else 1.2
            guarded.took(0, slow, is_guessing=answer is not None)
            if answer is not None or guarded.is_watching(0):
                guarded.learn(0, ranking, ranking > 160)
            if answer is None and is_resting:
                rest = guarded.rest(0)
    assert answers[True] == answers[False]
    assert (asked < 200) == (contention > 2 or select < 100)


def test_a_text_that_becomes_predictable_is_noticed_within_a_period():
    times = PhaseTimes(select=Line(base=250.0), attend=Line(base=10.0, slope=1.0), merge=Line())
    period = ProfiledSpeculation.PERIOD
    _, _, answers = true_seconds(times, [0.0, 0.95], 3 * period, Random(1))
    half = len(answers) // 2
    assert answers[half - 1] is None
    assert all(a is not None for a in answers[half + period + 1 :])


@pytest.mark.parametrize("method", ["quest", "infllm"])
def test_the_authors_times_save_30_percent_of_the_window_at_128k_from_a_hit_rate_of_90(method):
    rows = {p.context: simulate(p, 0.9) for p in paper_profiles(method)}
    assert rows[131072].window_saving >= 0.30
    assert 0.08 < rows[131072].token_saving < 0.12  # of the whole token it is a third of that
    assert all(0.2 < row.window_saving < 0.4 for row in rows.values())


def test_savings_fall_with_the_hit_rate_and_with_contention():
    profile = paper_profiles("quest")[1]
    by_rate = [simulate(profile, rate).window_saving for rate in (0.5, 0.7, 0.9, 1.0)]
    by_contention = [
        simulate(profile, 0.9, contention=c).window_saving for c in (2.0, 1.5, 1.25, 1.0)
    ]
    assert by_rate == sorted(by_rate) and by_contention == sorted(by_contention)
    assert by_contention[0] == 0


def test_more_rows_and_heads_read_more_once_the_bandwidth_is_used_up():
    profile = paper_profiles("infllm")[1]
    for batch, factor in ((2, 1), (4, 1), (16, 4)):  # a quarter of the bandwidth at batch 1
        times = profile.scaled(batch=batch).times
        assert times.attend.slope == pytest.approx(factor * profile.times.attend.slope)
    assert profile.scaled(batch=8).times.contention == 2
    assert profile.scaled(batch=4, group=32).times.states == pytest.approx(1.508, abs=1e-3)
    cpu = Profile(
        name="",
        context=9,
        times=PhaseTimes(select=Line(slope=1.0), attend=Line(slope=1.0), merge=Line(slope=1.0)),
        units=9,
        kept=1,
        chosen=5,
        group=2,
        is_by_head=True,
    )
    assert cpu.scaled(group=8, batch=3).times.select.slope == 12
    assert cpu.scaled(layers=5).layers == 5
    with pytest.raises(BadOption, match="at least 1, got 0"):
        profile.scaled(batch=0)


def test_a_table_of_ones_own_is_read_and_what_is_wrong_with_it_named(tmp_path):
    file = tmp_path / "mine.csv"
    head = "method,context,select_us,attend_us,layer_us"
    file.write_text(f"{head},layers,chosen\nquest,16384,44.5,63.9,417,32,32\n")
    (mine,) = read_profiles(file)
    assert (mine.layers, mine.chosen, mine.units) == (32, 32, 256)
    assert mine.times.plain(256, 0, 32) == pytest.approx(108.4e-6)
    for text, wrong in {
        "method,context\nquest,1\n": "lacks select_us, attend_us, layer_us",
        f"{head},speed\nquest,1,1,1,1,1\n": "has speed",
        f"{head}\nquest,16384,fast,1,1\n": "line 2 of .*could not convert",
        f"{head}\nquest,16384,300,200,400\n": "line 2 of .*more than the layer_us",
        f"{head}\nquest,16384,-1,200,400\n": "line 2 of .*cannot be negative",
        f"{head}\nquest,100,1,1,4\n": "line 2 of .*from 1 to the 1 blocks",
        "": "lacks method",
    }.items():
        file.write_text(text)
        with pytest.raises(BadRequest, match=wrong):
            read_profiles(file)
    with pytest.raises(BadRequest, match="cannot be read"):
        read_profiles(tmp_path / "none.csv")
    with pytest.raises(BadOption, match="quest and infllm, got 'fast'"):
        paper_profiles("fast")


def test_hit_rates_are_one_or_one_for_each_share():
    profile = paper_profiles("quest")[0]
    assert simulate(profile, 0.8) == simulate(profile, hit_curve(0.8))
    for wrong in (1.5, [0.5], [-0.1] * len(SHARES)):
        with pytest.raises(BadOption, match="hit rates from 0 to 1"):
            simulate(profile, wrong)
