import json
from dataclasses import replace

import pytest
import torch
from ticking import Ticks
from tiny import picture, save_tiny, tiny_target

from varifocal.errors import BadOption
from varifocal.evaluation import bench
from varifocal.evaluation.bench import BenchConfig, run_bench
from varifocal.evaluation.contestants import Contestant
from varifocal.evaluation.suites import Case
from varifocal.plan import CostModel
from varifocal.request import ask
from varifocal.sampling import Sampling

QUICK = BenchConfig(drafters="lookup:nodes=4", suite="file", repeats=2, draws=50)


def case(name, family, prompt, images=(), tokens=12):
    return Case(id=name, family=family, request=ask(prompt, images, max_new_tokens=tokens))


@pytest.fixture(scope="module")
def target():
    return tiny_target(dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def cases():
    return [
        case("a", "first", "What is this?"),
        case("b", "second", "the picture shows a red circle", [picture()]),
        case("c", "first", "a blue square", tokens=20),
    ]


@pytest.fixture(scope="module")
def result(target, cases):
    drafters = "lookup:nodes=4,lookup:nodes=4:fast=true"
    return run_bench(replace(QUICK, drafters=drafters), cases, target, clock=Ticks())


def rows(result, drafter):
    return [r for r in result.rows if r.drafter == drafter]


def test_every_entry_has_a_row_for_every_family(result):
    entries = ["plain", "plain:fast=true", "lookup:nodes=4", "lookup:nodes=4:fast=true"]
    assert [(r.drafter, r.family) for r in result.rows] == [
        (e, f) for e in entries for f in ("first", "second")
    ]
    assert list(result.means) == entries
    assert [r.requests for r in rows(result, "plain")] == [2, 1]
    assert {r.repeats for r in result.rows} == {2}


def test_plain_is_its_own_measure(result):
    for row in rows(result, "plain"):
        assert row.tau == row.decode_speedup == row.end_to_end_speedup == 1.0
        assert row.decode_speedup_ci95 == (1.0, 1.0)
        assert row.acceptance_histogram == [row.rounds]
        assert row.baseline == "plain"


def test_with_equal_rounds_the_speedup_is_tau(result):
    # Each round looks at the clock four times, so it takes three seconds in every method; the
    # drafter's start takes one more per request.
    for row in rows(result, "lookup:nodes=4"):
        assert row.tau > 1
        assert row.tokens - row.requests == pytest.approx(row.tau * row.rounds)
        plain_seconds = 3 * (row.tokens - row.requests) + row.requests
        assert row.seconds["decode"] == 3 * row.rounds + row.requests
        assert row.decode_speedup == pytest.approx(plain_seconds / row.seconds["decode"])
        assert sum(row.share.values()) == pytest.approx(1)
        assert 0 < row.prefill_share < 1


def test_texts_are_the_same_and_packed_runs_meet_packed_plain(result):
    assert all(r.identical == r.requests for r in result.rows)
    assert {r.baseline for r in rows(result, "lookup:nodes=4:fast=true")} == {"plain:fast=true"}
    assert result.is_good


def test_json_has_the_promised_fields(result):
    made = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {"machine", "commit", "seed", "clock", "dtype", "rows", "means"} <= set(made)
    assert {"cpu", "threads", "torch", "transformers"} <= set(made["machine"])
    assert {
        "drafter", "family", "requests", "tokens", "tau", "decode_speedup", "end_to_end_speedup",
        "identical", "near_tie", "different", "share", "decode_speedup_ci95",
        "acceptance_histogram", "acceptance_by_position", "prefill_share", "draft_memory_mib",
        "repeats", "ngram_tau", "round_cost", "draft_weights_mib", "draft_state_mib",
        "acceptance_by_kind", "acceptance_by_source", "acceptance_by_stage",
    } <= set(made["rows"][0])  # fmt: skip
    assert {
        "tau", "decode_speedup", "end_to_end_speedup", "min_decode_speedup", "identical",
        "different", "ngram_tau", "acceptance_by_kind", "round_cost",
    } <= set(made["means"]["plain"])  # fmt: skip
    assert made["lead"]["drafter"] == "lookup:nodes=4" and made["sittings"] == 1
    # The entry on packed weights is compared with another loop.
    assert set(made["lead"]["over"]) == {"plain", "plain:fast=true"}
    assert made["dtype"] == "bfloat16" and made["machine"]["threads"] == 1


def test_tokens_of_each_division_add_up_to_those_after_the_prefill(result):
    for row in result.rows:
        accepted = sum(j * count for j, count in enumerate(row.acceptance_histogram))
        for counts in (row.acceptance_by_kind, row.acceptance_by_stage):
            assert sum(c["tokens"] for c in counts.values()) == row.tokens - row.requests
            assert sum(c["drafted"] for c in counts.values()) == accepted
        assert sum(c["rounds"] for c in row.acceptance_by_stage.values()) == row.rounds
        assert row.acceptance_by_source == {}  # this suite does not say what needs the picture
    assert accepted > 0


def test_memory_of_a_request_is_measured(result):
    for row in rows(result, "lookup:nodes=4"):
        assert row.draft_weights_mib == 0 and 0 < row.draft_state_mib < 1
    assert {r.draft_state_mib for r in rows(result, "plain")} == {0}


def test_order_rotates_and_nothing_counts_before_warm_up(target, cases, monkeypatch):
    order = []
    run = Contestant.run
    monkeypatch.setattr(
        Contestant,
        "run",
        lambda self, request: order.append((self.entry.name, request.id)) or run(self, request),
    )
    run_bench(QUICK, cases[:2], target, clock=Ticks())
    assert order == [
        ("plain", "a"), ("lookup", "a"),
        ("plain", "a"), ("lookup", "a"), ("lookup", "a"), ("plain", "a"),
        ("lookup", "b"), ("plain", "b"), ("plain", "b"), ("lookup", "b"),
    ]  # fmt: skip


def test_automatic_entries_are_measured_first(target, cases, monkeypatch):
    asked = []

    def known(target, drafter):
        asked.append(drafter.name)
        return CostModel(verify=(1.0,) * 41, step=0.0, start=0.0, other=0.0)

    monkeypatch.setattr("varifocal.cost.cost_model", known)
    config = replace(QUICK, drafters="plain,lookup,lookup:nodes=3")
    run_bench(config, cases[:1], target, clock=Ticks())
    assert asked == ["lookup"]


def test_sampled_texts_follow_the_seed(target, cases):
    config = replace(QUICK, sampling=Sampling(temperature=1.0), seed=7, repeats=1)
    made = run_bench(config, cases[:1], target, clock=Ticks())
    assert made.sampling["seed"] == 7
    assert made.means["lookup:nodes=4"].identical == 1


def test_a_text_that_differs_is_counted(target, cases, monkeypatch):
    monkeypatch.setattr(bench, "judge", fake_judge)
    made = run_bench(QUICK, cases[:1], target, clock=Ticks())
    assert made.means["lookup:nodes=4"].different == 1
    assert made.means["plain"].identical == 1
    assert not made.is_good


def fake_judge(target, request, plain, drafted):
    from varifocal.evaluation.compare import Mismatch

    if drafted.drafter == "plain":
        return None
    return Mismatch(
        id="a", position=0, plain=1, drafted=2, margin=1.0, tolerance=0.0, near_tie=False,
        temperature=0.0,
    )  # fmt: skip


def test_demo_suite_trains_the_table_on_demo_answers(target, cases, monkeypatch):
    monkeypatch.setattr(bench, "demo_answers", lambda: ("What is this?",))
    seen = []

    def watched(target, cases, answers, training):
        seen.append(training)
        return [bench.Walk(6, 2)] * len(cases)

    monkeypatch.setattr(bench, "ngram_walks", watched)
    made = run_bench(replace(QUICK, suite="demo"), cases[:2], target, clock=Ticks())
    assert seen == [("What is this?",)]
    assert made.ngram_tau == 3.0 and {r.ngram_tau for r in made.rows} == {3.0}


def test_length_may_be_set_for_all(target, cases):
    config = replace(QUICK, max_new_tokens=3, repeats=1)
    made = run_bench(config, cases[:1], target, clock=Ticks())
    assert made.rows[0].tokens <= 3


def test_an_assistant_is_measured_against_plain(target, cases, tmp_path):
    folder = save_tiny(tmp_path / "small", seed=1)
    entry = f"hf-assistant:model={folder}"
    made = run_bench(replace(QUICK, drafters=entry, repeats=1), cases[:2], target, clock=Ticks())
    own = made.means[entry]
    assert own.different == 0 and own.identical + own.near_tie == 2
    assert own.draft_weights_mib > 0 and own.draft_state_mib is None
    assert made.lead is None and made.is_good


def test_threads_are_restored(target, cases):
    before = torch.get_num_threads()
    with pytest.raises(BadOption):
        run_bench(replace(QUICK, drafters="hf-assistant"), cases[:1], target)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"threads": 2}, "threads"),
        ({"repeats": 0}, "repeats"),
        ({"clock": "sun"}, "clock"),
        ({"max_new_tokens": -1}, "max_new_tokens"),
    ],
)
def test_bad_settings_are_refused(settings, said):
    # The type hints of the tests' import hook refuse some of them first.
    with pytest.raises(Exception, match=said):
        BenchConfig(**settings)


def test_an_empty_suite_is_refused(target):
    with pytest.raises(BadOption, match="no requests"):
        run_bench(QUICK, [], target)


def test_packing_without_effect_is_refused(cases):
    with pytest.raises(BadOption, match="no effect"):
        run_bench(replace(QUICK, drafters="plain:fast=true"), cases, tiny_target())
