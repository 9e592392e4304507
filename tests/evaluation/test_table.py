import io
from dataclasses import replace

import pytest
from rich.console import Console

from varifocal.evaluation.figures import BenchResult, Mean, Row
from varifocal.evaluation.table import lines, markdown, table

FEW = {  # what the table does not show
    "acceptance_by_kind": {}, "acceptance_by_source": {}, "acceptance_by_stage": {},
    "draft_memory_mib": 1.0, "draft_weights_mib": 1.0, "draft_state_mib": 0.0, "round_cost": 2.0,
    "acceptance_histogram": [1],
}  # fmt: skip


def row(drafter, family, **other):
    made = Row(
        drafter=drafter, family=family, baseline="plain", requests=20, tokens=400, rounds=100,
        tau=3.9, decode_speedup=2.125, decode_speedup_ci95=(2.0, 2.2), end_to_end_speedup=1.75,
        identical=20, near_tie=0, different=0, is_compared=True,
        share={"draft": 0.25, "verify": 0.5, "other": 0.25}, acceptance_by_position=[],
        prefill_share=0.125, seconds={"decode": 1.0, "total": 2.0}, ngram_tau=2.39, repeats=3,
        **FEW,
    )  # fmt: skip
    return replace(made, **other)


def mean(**other):
    made = Mean(
        tau=3.9, decode_speedup=2.125, decode_speedup_ci95=(2.0, 2.2), end_to_end_speedup=1.75,
        min_decode_speedup=2.0, ngram_tau=2.39, identical=40, near_tie=0, different=0,
        is_compared=True, **FEW,
    )  # fmt: skip
    return replace(made, **other)


@pytest.fixture
def result():
    return BenchResult(
        machine={"cpu": "EPYC", "threads": 1, "torch": "2", "transformers": "5"},
        commit="abc", seed=0, clock="cpu", dtype="bfloat16", target="demo", suite="demo",
        sampling={"temperature": 0.0}, repeats=3, ngram_tau=2.39, lead=None,
        rows=(
            row("fovea", "chart"),
            row("fovea", "text", identical=19, near_tie=1),
            row("bad", "chart", identical=18, different=2),
            row("bad", "text"),
            row("hf-generate", "chart", is_compared=False, identical=0),
        ),
        means={
            "fovea": mean(identical=39, near_tie=1),
            "bad": mean(identical=38, different=2),
            "hf-generate": mean(is_compared=False),
        },
    )  # fmt: skip


def test_mean_follows_several_families_only(result):
    assert [(x.cells[0], x.cells[1]) for x in lines(result)] == [
        ("fovea", "chart"), ("fovea", "text"), ("fovea", "mean"),
        ("bad", "chart"), ("bad", "text"), ("bad", "mean"),
        ("hf-generate", "chart"),
    ]  # fmt: skip


def test_verdict_stands_beside_each_speedup(result):
    text = markdown(result)
    assert "| 2.12 | 2.00–2.20 | 1.75 | 20/20 same | 25% / 50% / 25% |" in text
    assert "19/20 same, 1 near-tie" in text
    assert "other random draws" in text


def test_speedup_is_struck_out_where_texts_differ(result):
    struck = [line for line in markdown(result).splitlines() if "~~" in line]
    assert len(struck) == 2 and all("2 DIFFER" in line and "bad" in line for line in struck)
    assert all("~~2.12~~" in line and "~~1.75~~" in line for line in struck)


def test_rule_and_table_of_word_pieces_are_printed(result):
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(table(result))
    printed = console.export_text()
    for text in (printed, markdown(result)):
        assert "plain averages" in text and "tau 2.39" in text
        assert "Struck out" in text and "near-ties are counted and allowed" in text
        assert "greedy" in text and "EPYC" in text


def test_clean_result_has_no_warnings(result):
    clean = replace(result, rows=result.rows[:1], means={"fovea": mean()})
    assert "Struck" not in markdown(clean) and "hf-*" not in markdown(clean)


def test_a_few_requests_are_said_to_be_few(result):
    few = replace(result, rows=(row("fovea", "chart", requests=4),))
    assert "4 requests in a family the intervals say little" in markdown(few)
    assert "say little" not in markdown(result)


def test_pipe_in_an_entry_does_not_break_the_table(result):
    odd = replace(result, rows=(row("a|b", "chart"),), means={"a|b": mean()})
    assert "a\\|b" in markdown(odd)
