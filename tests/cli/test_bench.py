"""`varifocal bench` on the tiny target: cut off, gone on with, refused, written anew."""

import json

import pytest

from varifocal.evaluation.contestants import Contestant
from varifocal.evaluation.entries import everything
from varifocal.evaluation.report import JOURNAL


@pytest.fixture
def suite(tmp_path):
    """Three requests without pictures."""
    file = tmp_path / "suite.jsonl"
    lines = [
        {"id": name, "max_new_tokens": 4, "messages": [{"role": "user", "content": f"Say {name}"}]}
        for name in ("one", "two", "three")
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture
def bench(run, tiny_folder, suite):
    def invoke(*args):
        common = ("--target", tiny_folder, "--dtype", "float32", "--suite", suite, "--drafters",
                  "plain,lookup:nodes=4", "--repeats", 1, "--warm-up", 0)  # fmt: skip
        return run("bench", *common, *args)

    return invoke


def cut_after(monkeypatch, count):
    """Ctrl-C comes in the middle of the request after so many."""
    run, made = Contestant.run, []

    def cut(self, request):
        made.append(request.id)
        if len(made) == 2 * count + 2:
            raise KeyboardInterrupt
        return run(self, request)

    monkeypatch.setattr(Contestant, "run", cut)


def test_ctrl_c_says_how_to_go_on_and_the_same_command_does(bench, tmp_path, monkeypatch):
    folder = tmp_path / "report"
    cut_after(monkeypatch, 2)
    cut = bench("--report", folder)
    assert cut.exit_code == 130
    assert f"2 of 3 requests are kept in {folder / JOURNAL}" in cut.stderr.replace("\n", "")
    assert "same command goes on" in cut.stderr
    assert not (folder / "index.html").exists()
    monkeypatch.undo()

    done = bench("--report", folder, "--json", tmp_path / "out.json")
    assert done.exit_code == 0, done.stderr
    assert "2 of 3 requests are in" in done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["sittings"] == 2 and result["means"]["plain"]["identical"] == 3
    assert json.loads((folder / "bench.json").read_text()) == result
    page = (folder / "index.html").read_text()
    (folder / "index.html").unlink()

    monkeypatch.setattr(Contestant, "run", lambda self, request: 1 / 0)  # nothing is decoded
    again = bench("--report", folder)
    assert again.exit_code == 0 and "nothing is measured anew" in again.stderr
    assert (folder / "index.html").read_text() == page


def test_a_json_file_keeps_the_runs_beside_it_until_it_is_written(bench, tmp_path, monkeypatch):
    file, kept = tmp_path / "out.json", tmp_path / f"out.json.{JOURNAL}"
    cut_after(monkeypatch, 1)
    assert bench("--json", file).exit_code == 130
    assert kept.exists() and not file.exists()
    monkeypatch.undo()
    other = bench("--json", file, "--seed", 3)
    assert other.exit_code == 2
    assert "seed was 0, is 3" in other.stderr and "--fresh" in other.stderr
    assert bench("--json", file).exit_code == 0
    assert file.exists() and not kept.exists()
    assert bench("--json", file, "--seed", 3).exit_code == 0  # measured anew, as any command does


def test_another_command_in_the_same_folder_is_refused_unless_fresh(bench, tmp_path):
    folder = tmp_path / "report"
    assert bench("--report", folder, "--limit", 1).exit_code == 0
    refused = bench("--report", folder, "--limit", 2)
    assert refused.exit_code == 2
    assert "cases now has two" in refused.stderr
    fresh = bench("--report", folder, "--limit", 2, "--fresh")
    assert fresh.exit_code == 0, fresh.stderr
    rows = json.loads((folder / "bench.json").read_text())["rows"]
    assert [row["requests"] for row in rows] == [2, 2]


def test_a_folder_of_something_else_is_refused_before_the_target_is_loaded(run, tmp_path):
    (tmp_path / "thesis.tex").touch()
    refused = run("bench", "--target", "/nowhere", "--report", tmp_path)
    assert refused.exit_code == 2
    assert "thesis.tex" in refused.stderr and "--fresh" in refused.stderr


def test_fresh_without_a_place_is_refused(run):
    refused = run("bench", "--fresh", "--target", "/nowhere")
    assert refused.exit_code == 2
    assert "--report DIR or --json FILE" in refused.stderr


def test_nothing_is_kept_where_no_place_was_named(bench, tmp_path, monkeypatch):
    before = set(tmp_path.iterdir())
    cut_after(monkeypatch, 1)
    cut = bench("--json", "-")
    assert cut.exit_code == 130
    assert "nothing is kept without --report" in cut.stderr
    assert set(tmp_path.iterdir()) == before


def test_the_help_lists_what_all_stands_for(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(run("bench", "--help").stdout.replace("│", " ").split())
    listed = shown[shown.index("all: ") : shown.index("Left out: plain")]
    assert all(name in listed for name in [*everything(), "hf-generate", "hf-prompt-lookup"])
    assert "every trained one that is shipped" in listed
