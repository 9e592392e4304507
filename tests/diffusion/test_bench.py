"""The benchmark of gates: honest rows, pieces that are kept, settings chosen by one rule."""

import json
from dataclasses import replace

import numpy as np
import pytest
from pupil import Pupil

from varifocal.diffusion import gates
from varifocal.diffusion.decode import generate
from varifocal.diffusion.evaluation.audience import Audience
from varifocal.diffusion.evaluation.bench import BenchConfig, BenchResult, run_bench
from varifocal.diffusion.evaluation.cells import Cells
from varifocal.diffusion.evaluation.figures import Row
from varifocal.diffusion.evaluation.film import film
from varifocal.diffusion.evaluation.frozen import find_gate, frozen
from varifocal.diffusion.evaluation.intervals import paired_difference, ratio_draws, wilson
from varifocal.diffusion.evaluation.items import draw
from varifocal.diffusion.evaluation.measure import Setup, finished, record, replayed
from varifocal.diffusion.evaluation.methods import ALL, parse_methods
from varifocal.diffusion.evaluation.outcome import Agreement, Outcome, is_right
from varifocal.diffusion.evaluation.panel import Panel
from varifocal.diffusion.evaluation.report import write_report
from varifocal.diffusion.evaluation.summary import story, summaries_of
from varifocal.diffusion.evaluation.table import cell, markdown
from varifocal.diffusion.evaluation.tune import Trial, TuneConfig, choose, tune
from varifocal.diffusion.evaluation.watch import watched
from varifocal.diffusion.formats import find as find_format
from varifocal.diffusion.replay import replay
from varifocal.diffusion.samplers import find as find_sampler
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.tasks import find as find_task
from varifocal.errors import BadArtifact, BadOption

SMALL = BenchConfig(
    tasks=("lookup",),
    gates="reduced,eos_stop,sched,cvc,bwec,latch,oracle",
    canvases=(32,),
    blocks=(8,),
    limit=2,
    timed=1,
    batch=2,
    draws=200,
)


class Counting(Pupil):
    """Counts the rows that it computes; they are the only thing that takes time."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, canvas, window, *, caching=False):
        self.rows += len(canvas.tokens)
        return super().forward(canvas, window, caching=caching)

    def clock(self) -> float:
        return float(self.rows)


@pytest.fixture(scope="module")
def counted() -> tuple[BenchResult, Counting, Cells]:
    """A benchmark whose clock ticks once a forward. Not to be changed."""
    denoiser, cells = Counting(), Cells()
    return run_bench(SMALL, [denoiser], clock=denoiser.clock, cells=cells), denoiser, cells


def row_of(result: BenchResult, task: str, gate: str, sampler: str = "low_confidence") -> Row:
    (row,) = [r for r in result.rows if (r.task, r.gate, r.sampler) == (task, gate, sampler)]
    return row


# -- rows --------------------------------------------------------------------------------------


def test_a_speed_up_is_the_ratio_of_the_seconds_of_the_same_questions(counted):
    result, _, _ = counted
    full, latch = (row_of(result, "lookup", gate) for gate in ("full", "latch"))
    assert full.speedup == 1.0 and full.latency == full.latency_full == 32
    assert latch.latency is not None and latch.speedup == 32 / latch.latency > 1.5
    threshold = row_of(result, "lookup", "latch", "threshold")
    assert threshold.speedup == threshold.latency_full / threshold.latency > latch.speedup
    assert threshold.speedup_sampler < threshold.speedup  # over threshold alone


def test_one_numerator_makes_the_answer_tokens_of_every_method(counted):
    result, _, _ = counted
    for row in result.rows:
        if row.task == "lookup" and row.latency is not None:
            tokens = row.answer_tokens_per_second * row.latency
            full = row_of(result, "lookup", "full")
            assert tokens == pytest.approx(full.answer_tokens_per_second * full.latency)


def test_what_is_measured_in_batches_and_by_replay_is_what_runs_alone_do(counted):
    result, _, _ = counted
    assert result.is_good
    timed = [row for row in result.rows if row.gate != "oracle"]
    assert all(row.rechecked == row.rechecked_equal == 1 for row in timed)
    assert {row.gate for row in result.rows if row.is_replayed} == (
        {"full", "eos_stop", "sched", "cvc", "oracle"}
    )


def test_an_early_guess_is_hurt_and_premature_and_beyond_two_points(counted):
    result, _, _ = counted
    row = row_of(result, "lookup", "sched")
    assert (row.helped, row.hurt, row.changed) == (0, 2, 0)
    assert row.accuracy == 0.0 and row.accuracy_delta == -1.0 and row.premature == 1.0
    assert not row.is_within and "‼" in cell(row)
    latch = row_of(result, "lookup", "latch")
    assert latch.hurt == 0 and latch.is_within
    assert not latch.is_clearly_within  # two questions prove nothing


def test_reduced_steps_have_no_fewer_forwards_than_latch(counted):
    result, _, _ = counted
    reduced, latch = (row_of(result, "lookup", gate) for gate in ("reduced", "latch"))
    assert latch.nfe <= reduced.nfe < latch.nfe + 1
    assert reduced.setting == f"reduced:steps={reduced.nfe:.0f}"
    (skipped,) = result.skipped  # with threshold
    assert skipped["gate"] == "reduced" and "decides itself" in skipped["reason"]


def test_the_oracle_has_forwards_and_no_speed(counted):
    result, _, _ = counted
    oracle, cvc = (row_of(result, "lookup", gate) for gate in ("oracle", "cvc"))
    assert oracle.speedup is None and oracle.timed_items == 0
    assert oracle.nfe < cvc.nfe and oracle.hurt == 0


def test_of_a_task_without_right_answers_the_text_is_judged():
    item, format = find_task("broken").draw(0, "test"), find_format("boxed")
    assert is_right(item.answer, item, format)
    assert not is_right(item.answer + "}", item, format)


def test_exits_are_counted_by_tenths_of_the_schedule(counted):
    result, _, _ = counted
    row = row_of(result, "lookup", "sched")
    assert row.exit_histogram == [2, *[0] * 9]  # in the second of 32 steps
    assert row.exit_quantiles == [2.0, 2.0, 2.0]


def test_losing_cases_are_told(counted):
    result, _, _ = counted
    rows = [row for row in result.rows if row.task == "lookup"]
    latch = row_of(result, "lookup", "latch", "threshold")
    better = [replace(latch, gate="other", nfe=latch.nfe - 1)]
    told = " ".join(story([*rows, *better], list(summaries_of(rows))))
    assert "Not ahead in lookup" in told and "other" in told
    assert "latch is within 2.0 points of full decoding in 1 of 1 scored cells" in told
    weak = [replace(row, accuracy_full=0.5) for row in rows]
    assert "50.0% of the cases only" in " ".join(story(weak, list(summaries_of(weak))))


def test_the_report_holds_every_row(counted, tmp_path):
    result, _, _ = counted
    write_report(result, tmp_path)
    stored = json.loads((tmp_path / "bench.json").read_text("utf-8"))
    assert len(stored["rows"]) == len(result.rows)
    page = (tmp_path / "index.html").read_text("utf-8")
    assert "<script" not in page and "http" not in page.split("<main>")[1]
    for row in result.rows:
        assert row.gate in page and cell(row) in markdown(result)
    assert (tmp_path / "bench.png").stat().st_size > 5000


# -- pieces ------------------------------------------------------------------------------------


def test_kept_pieces_are_not_measured_again(counted):
    result, denoiser, cells = counted
    before = denoiser.rows
    again = run_bench(SMALL, [denoiser], clock=denoiser.clock, cells=cells)
    assert denoiser.rows == before
    assert again.rows == result.rows


def test_an_interrupted_benchmark_goes_on_where_it_was(counted, tmp_path):
    result, _, _ = counted
    config, denoiser = replace(SMALL, samplers="own"), Counting()

    def interrupt(done, total, label):
        if done == 2:
            raise KeyboardInterrupt

    def run(**options) -> BenchResult:
        return run_bench(config, [denoiser], clock=denoiser.clock, **options)

    with pytest.raises(KeyboardInterrupt):
        run(cells=Cells(tmp_path), progress=interrupt)
    spent, pieces = denoiser.rows, []
    cells = Cells(tmp_path)
    again = run(cells=cells, progress=lambda done, total, label: pieces.append((done, total)))
    assert cells.num_found == 2 and spent > 32  # the full runs were not made again
    assert pieces == [(n, 5) for n in range(1, 6)]  # replayed, bwec, latch, reduced, seconds
    row, known = row_of(again, "lookup", "latch"), row_of(result, "lookup", "latch")
    assert (row.nfe, row.agreement, row.latency) == (known.nfe, known.agreement, known.latency)
    rows = [r for r in result.rows if r.is_baseline_sampler]
    assert [r.gate for r in again.rows] == [r.gate for r in rows]


def test_a_piece_belongs_to_its_key_alone(tmp_path):
    cells = Cells(tmp_path)
    cells.keep({"what": "live", "plan": 1}, [1.5, None])
    assert Cells(tmp_path).find({"what": "live", "plan": 1}) == [1.5, None]
    assert Cells(tmp_path).find({"what": "live", "plan": 2}) is None
    (path,) = tmp_path.iterdir()
    path.write_text("{")
    with pytest.raises(BadArtifact, match="damaged"):
        Cells(tmp_path).find({"what": "live", "plan": 1})
    assert Cells(tmp_path, is_fresh=True).find({"what": "live", "plan": 1}) is None
    assert not list(tmp_path.iterdir())


# -- parts -------------------------------------------------------------------------------------


def test_intervals_are_those_of_the_books():
    assert wilson(95, 100) == pytest.approx((0.8882, 0.9785), abs=1e-4)
    assert wilson(0, 10)[0] == 0.0 and wilson(10, 10)[1] == pytest.approx(1.0)
    low, high = paired_difference(0, 0, 12, seed=0, draws=2000)
    assert low < -0.02 and high > 0.02  # a dozen equal pairs prove nothing
    low, high = paired_difference(0, 0, 1000, seed=0, draws=2000)
    assert -0.005 < low <= high < 0.005
    low, _ = paired_difference(0, 20, 1000, seed=0, draws=2000)
    assert -0.04 < low < -0.02
    ones = np.ones(5)
    assert set(ratio_draws(3 * ones, ones, 0, 50)) == {3.0}


def outcome(value: str | None, is_right: bool, exit_step: int | None = None) -> Outcome:
    return Outcome(value=value, is_right=is_right, nfe=2, exit_step=exit_step, num_filled=0,
                   num_early=0, text=str(value), num_tokens=1, is_whole=True)  # fmt: skip


def test_every_disagreement_is_helped_hurt_or_changed():
    full = [outcome("1", True), outcome("2", False), outcome("3", False), outcome("4", True)]
    runs = [outcome("9", False, 1), outcome("7", True, 1), outcome("8", False, 1),
            outcome("4", True, 2)]  # fmt: skip
    counts = Agreement.of(runs, full)
    assert (counts.hurt, counts.helped, counts.changed, counts.agreeing) == (1, 1, 1, 1)
    assert (counts.exits, counts.premature, counts.same_text) == (4, 3, 1)
    assert Outcome.unpacked(json.loads(json.dumps(runs[0].packed()))) == runs[0]


def test_questions_are_distinct_and_fit():
    tokenizer = Pupil().tokenizer
    drawn = draw(tokenizer, "chain", 10, 80)
    assert len({item.prompt for item in drawn.items}) == 10
    assert all(len(tokenizer.encode(item.answer)) < 80 for item in drawn.items)
    assert 0 < drawn.fitting < 1
    with pytest.raises(BadOption, match="do not fit a canvas of 8"):
        draw(tokenizer, "chain", 3, 8)


def test_skipped_questions_are_those_of_a_run_without_skipping():
    tokenizer = Pupil().tokenizer
    first, later = (draw(tokenizer, "chain", 5, 80, skip=skip) for skip in (0, 5))
    assert first.items + later.items == draw(tokenizer, "chain", 10, 80).items
    with pytest.raises(BadOption, match="skips 0 or more"):
        draw(tokenizer, "chain", 3, 80, skip=-1)


def test_full_and_latch_are_always_rows():
    assert [m.label for m in parse_methods("cvc")] == ["full", "cvc", "latch"]
    assert [m.label for m in parse_methods("all")] == ALL.split(",")
    for wrong in ("cvc,cvc", "nothing", "cvc:w=x", "eos_stop@tuned"):
        with pytest.raises(BadOption):
            parse_methods(wrong)


def test_latch_and_cvc_have_the_frozen_setting_by_default():
    chosen = frozen().chosen
    for name in ("latch", "cvc"):
        assert gates.find(chosen[name]).config == gates.find(name).config
    assert find_gate("sched@tuned").text == gates.find(chosen["sched"]).text
    assert frozen().provenance["split"] != "test" and len(frozen().provenance["tasks"]) == 2


@pytest.mark.parametrize(
    "wrong",
    [{"limit": 0}, {"skip": -1}, {"timed": 9, "limit": 3}, {"rivals": 0}, {"threads": 2},
     {"batch": 0}],
)  # fmt: skip
def test_settings_that_make_no_benchmark_are_refused(wrong):
    with pytest.raises(BadOption):
        BenchConfig(**wrong)


# -- settings chosen on recorded runs ----------------------------------------------------------


def setup_of(name: str, canvas: int, block: int = 8) -> Setup:
    plan = Plan(canvas=canvas, block=block)
    return Setup(denoiser=Pupil(), task=find_task(name), plan=plan, batch=4)


def test_a_gate_on_a_panel_exits_where_its_replay_does():
    texts = ["cvc", "cvc:w=2:tau=0.5:context=none", "sched:unchanged=false:high=3:low=1",
             "stable_and_confident:entropy=2", "prophet:suffix="]  # fmt: skip
    setup = setup_of("lookup", 32)
    items = draw(setup.denoiser.tokenizer, "lookup", 2, 32, "valid").items
    panel, tokenizer = Panel([gates.find(text) for text in texts]), setup.denoiser.tokenizer
    for _, _, recording in record(setup, items, find_sampler("low_confidence")):
        seats = replay(recording, panel, tokenizer, format=setup.format).steps[-1].told["seats"]
        for number, text in enumerate(texts):
            alone = replay(recording, text, tokenizer, format=setup.format)
            assert alone.exit_step == (seats[number].step if number in seats else None)
            if number in seats:
                assert alone.token_ids == seats[number].tokens.tolist()
    with pytest.raises(ValueError, match="more than to stop"):
        Panel([gates.find("latch")])


@pytest.mark.parametrize("order", ["low_confidence", "entropy", "threshold"])
def test_a_full_run_that_nobody_watches_to_its_end_tells_the_same(order):
    texts = ["full", "eos_stop", "oracle", "sched", "cvc:w=2", "cvc:w=8:fill=finish_block"]
    members = {text: gates.find(text) for text in texts}
    setup, sampler = setup_of("lookup", 32), find_sampler(order)
    items = draw(setup.denoiser.tokenizer, "lookup", 3, 32, "valid").items
    told = replayed(setup, items, sampler, members)
    tokenizer, lengths = setup.denoiser.tokenizer, []
    for number, (item, _, recording) in enumerate(record(setup, items, sampler)):
        for text, gate in members.items():
            whole = replay(recording, gate, tokenizer, format=setup.format)
            assert told[text][number] == setup.outcome(whole, item)
        lengths.append(recording.num_steps)
    watchers = Audience({text: members[text] for text in ("full", "oracle", "cvc:w=2")})
    few = [run.num_steps for _, _, run in record(setup, items, sampler, watchers)]
    assert all(short < long for short, long in zip(few, lengths, strict=True))


def test_the_rule_takes_the_cheapest_of_those_that_hurt_little():
    def trial(name: str, hurt: float, cost: float) -> Trial:
        return Trial(gate="cvc", setting=name, hurt=(0.0, hurt), nfe_share=(cost, cost))

    trials = [trial("slow", 0.0, 0.9), trial("right", 0.004, 0.3), trial("rash", 0.1, 0.1)]
    assert choose(trials, 0.005).setting == "right"
    assert choose(trials[2:], 0.005).setting == "rash"  # none is good: the one that hurts least


def test_tuning_finds_out_that_early_guesses_are_wrong():
    settings = {
        "cvc": ["cvc", "cvc:w=1:tau=0.5:context=none", "cvc:w=2:tau=0.9:context=none"],
        "sched": ["sched"],
    }
    config = TuneConfig(tasks=("lookup", "compare"), limit=2, canvases=(32, 8), block=8)
    local = ["w_b=1", "w_b=3:tau_lo=0.95"]
    tuning = tune(config, Pupil(), settings=settings, local=local)
    by_name = {trial.setting: trial for trial in tuning.trials}
    _, rash, right = (gates.find(text).text for text in settings["cvc"])
    assert by_name[rash].worst == 1.0
    assert by_name[right].worst == 0.0
    assert tuning.chosen["cvc"].setting == right
    written = tuning.frozen()
    tried = [trial for trial in tuning.trials if trial.gate == "latch"]
    assert [trial.setting for trial in tried] == [
        gates.find(f"{right.replace('cvc', 'latch')}:{way}").text for way in local
    ]
    assert written["chosen"]["latch"] == choose(tried, 0.005).setting
    assert written["provenance"]["tasks"] == ["lookup", "compare"]
    for wrong in ({"tasks": ()}, {"tasks": ("lookup",), "canvases": (1, 2)}):
        with pytest.raises(BadOption):
            TuneConfig(**wrong)


# -- a run as a picture ------------------------------------------------------------------------


def test_a_watched_gate_decides_as_it_does_alone_and_its_run_can_be_drawn():
    setup = setup_of("lookup", 32)
    item = draw(setup.denoiser.tokenizer, "lookup", 1, 32).items[0]
    sampler, gate = find_sampler("low_confidence"), gates.find("latch")
    (result,) = finished(setup.decoding([item], sampler, watched(gate)))
    (alone,) = generate(setup.denoiser, [item.prompt], format=setup.format, plan=setup.plan)
    assert (result.token_ids, result.nfe, result.gate) == (alone.token_ids, alone.nfe, alone.gate)
    drawn = film(result)
    colours = [getattr(part, "fill", None) for part in drawn.parts]
    filled = result.steps[-1].filled
    assert len(filled) == result.num_filled > 0 and set(filled) <= {*result.steps[-1].positions}
    assert colours.count("s7") == len(filled) + 1  # and the legend
    assert any(getattr(p, "width", 0) == 2.6 for p in drawn.parts)  # what was verified
    assert f"exit in step {result.exit_step}" in [getattr(p, "text", "") for p in drawn.parts]
