"""`varifocal sparse rates`, and `simulate --rates` with what it wrote."""

import json
from pathlib import Path

import pytest
from checkpoints import built
from typer.testing import CliRunner

from varifocal.cli import app

TEXT = "The quick brown fox jumps over the lazy dog. " * 40


def run(command, *words):
    return CliRunner().invoke(app, ["sparse", command, *map(str, words)])


def test_rates_are_measured_written_and_projected_with(tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT)
    made = {kind: tmp_path / f"rates.{kind}" for kind in ("json", "md", "png")}
    ran = run(
        *("rates", "--target", built("text-llama"), "--text", tmp_path / "fox.txt"),
        *("--contexts", 90, "--budgets", 16, "--block-size", 4, "--first", 4, "--recent", 8),
        *("--tokens", 3, "--selectors", "quest", "--predictors", "ema,ema:beta=0.9"),
        *("--json", made["json"], "--report", made["md"], "--figure", made["png"]),
    )
    assert ran.exit_code == 0, ran.stderr
    found = json.loads(made["json"].read_text())
    (row,) = found["rows"]
    assert list(row["predictors"]) == ["last", "ema", "ema:beta=0.9"]
    assert found["machine"]["torch"] and found["seed"] is None and row["texts"] == ["fox.txt"]
    report = made["md"].read_text()
    assert ran.stdout.strip() in report and f"`{found['command']}`" in report
    assert made["png"].read_bytes().startswith(b"\x89PNG")

    ran = run("simulate", "--rates", made["json"], "--predictors", "ema", "--json", "-")
    rows = json.loads(ran.stdout)["rows"]
    assert [r["rates"]["predictor"] for r in rows] == ["last", "ema"] * 3  # three contexts
    curve = row["predictors"]["ema"]["hit_rates"]
    rates = dict(zip(found["settings"]["guesses"], curve, strict=True))
    for projected in rows[1::2]:
        assert projected["rates"] == {"predictor": "ema", "context": 90, "budget": 16}
        assert projected["asked_rate"] == rates[1.0]
        if projected["guessed"] is not None:  # as many as a share of the 64 chosen ones
            assert projected["hit_rate"] == rates[projected["guessed"] / 64]
    table = run("simulate", "--rates", made["json"]).stdout
    assert "ema:beta=0.9" in table and "90/16" in table


def test_an_indexers_choices_are_judged_beside_others():
    words = ("--tasks", "copy", "--contexts", 200, "--samples", 1, "--budgets", 64, "--tokens", 6)
    chosen = ("--selectors", "quest,lightning", "--predictors", "last")
    ran = run("rates", "--target", "tiny", *words, *chosen, "--json", "-", "--quiet")
    assert ran.exit_code == 0, ran.stderr
    rows = {row["selector"]: row for row in json.loads(ran.stdout)["rows"]}
    assert rows["quest"]["chosen"] == rows["lightning"]["chosen"] > 0  # blocks, by their budget
    rates = [row["predictors"]["last"]["hit_rates"][-1] for row in rows.values()]
    assert rates[0] != rates[1] and min(rates) > 0
    refused = run("rates", "--target", "tiny", *words, "--indexer", "elsewhere")
    assert refused.exit_code == 2 and "quest, infllm reads none" in refused.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_what_was_measured_is_shown_where_the_disk_is_full_or_told_where_it_is_lost(monkeypatch):
    words = ("--tasks", "copy", "--contexts", 90, "--budgets", 16, "--tokens", 2, "--selectors",
             "quest", "--predictors", "last")  # fmt: skip
    ran = run("rates", *words, "--json", "/dev/full")
    assert ran.exit_code == 2 and "No space left on device: /dev/full" in ran.stderr
    assert "hit rate" in ran.stdout

    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("varifocal.sparse.rates.run_rates", interrupted)
    ran = run("rates", *words)
    assert ran.exit_code == 130 and "interrupted; nothing is kept" in ran.stderr


@pytest.mark.parametrize(
    "command,words,wrong",
    [
        ("rates", ("--contexts", "long"), "--contexts wants numbers"),
        ("rates", ("--budgets", "1.5"), "--budgets wants numbers"),
        ("rates", ("--report", "/none/b.md"), "there is no folder /none"),
        ("rates", ("--figure", "/none/b.png"), "there is no folder /none"),
        ("rates", ("--figure", "/"), "--figure wants a file, but / is a folder"),
        ("rates", ("--figure", "b.svg"), "--figure writes .png"),
        ("rates", ("--report", "/"), "--report wants a file, but / is a folder"),
        ("rates", ("--budgets", ","), "--budgets names none"),
        ("rates", ("--selectors", "quest,quest"), "selectors has one twice"),
        ("rates", ("--contexts", "90,90"), "contexts has one twice"),
        ("rates", ("--contexts", "90", "--tokens", "99999"), "ask for fewer tokens"),
        ("simulate", ("--predictors", "ema"), "give --rates FILE.json as well"),
        ("simulate", ("--rates", "/none/b.json"), "cannot be read as JSON"),
    ],
)
def test_what_is_mistyped_is_said_before_anything_is_measured(command, words, wrong):
    ran = run(command, *words)
    assert ran.exit_code == 2 and wrong in ran.stderr, ran.stderr
