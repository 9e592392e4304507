"""`varifocal suite`: what it imports, lists and checks, and with which exit codes."""

import json

import published
import pytest
from tiny import picture

from varifocal.evaluation.importers import layout_names

NUM = 4


@pytest.fixture
def mmspec(tmp_path):
    """The published folder of MMSpec, with four records."""
    published.mmspec(tmp_path / "MMSpec", NUM)
    return tmp_path / "MMSpec"


def test_an_import_is_a_suite_that_check_and_verify_read(run, tiny_folder, mmspec, tmp_path):
    out = tmp_path / "suite"
    made = run("suite", "import", "mmspec", "--from", mmspec, "--out", out)
    assert made.exit_code == 0, made.stderr
    assert made.stdout == f"4 of 4 requests of MMSpec are in {out}\n"
    assert "4 later turns are not asked" in made.stderr
    checked = run("suite", "check", out, "--json", "-")
    assert checked.exit_code == 0
    assert json.loads(checked.stdout) == {
        "suite": str(out / "suite.jsonl"), "lines": NUM, "bad": [],
        "families": {"general_vqa": 2, "multi_turn_conversation": 2},
    }  # fmt: skip
    verified = run("verify", "--target", tiny_folder, "--suite", out, "--limit", 1, "--drafter",
                   "lookup", "--dtype", "float32", "--max-new-tokens", 4, "--sampling", "greedy",
                   "--json")  # fmt: skip
    assert verified.exit_code == 0, verified.stderr
    assert json.loads(verified.stdout)["identical"] == 2


def test_the_json_of_an_import_is_its_source_and_again_nothing_is_done(run, mmspec, tmp_path):
    command = ("suite", "import", "mmspec", "--from", mmspec, "--out", tmp_path / "suite",
               "--limit", 1, "--json")  # fmt: skip
    first = json.loads(run(*command).stdout)
    source = json.loads((tmp_path / "suite/source.json").read_text())
    assert first == {"out": str(tmp_path / "suite"), "new": True, **source}
    assert first["records"] == {"read": NUM, "chosen": 2, "written": 2}
    again = run(*command)
    assert again.exit_code == 0
    assert json.loads(again.stdout) == first | {"new": False}
    quiet = run(*command[:-1], "--quiet")
    assert quiet.stderr == ""
    assert quiet.stdout.endswith("suite, as it was there before\n")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (["vqa"], "there is no layout 'vqa'"),
        (["mmspec", "--split", "train"], "never trained on"),
        (["mmspec", "--split", "dev"], "--split must be one of"),
        (["mmspec", "--limit", "0"], "limit must be at least 1"),
        (["mmspec", "--images", "/nowhere"], "check --images"),
        (["mathvista"], "holds no file of MathVista"),
        (["mmspec", "--bogus"], "--bogus"),
    ],
)
def test_a_bad_import_is_one_message_and_leaves_nothing(run, mmspec, tmp_path, change, named):
    result = run("suite", "import", *change, "--from", mmspec, "--out", tmp_path / "suite")
    assert result.exit_code == 2
    assert named in result.stderr and "Traceback" not in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["MMSpec"]


def test_what_is_left_out_is_told_and_counted(run, tmp_path):
    published.ocr_json(tmp_path / "OCR", NUM)
    (tmp_path / "OCR/EN_part/d/2.png").write_bytes(b"no picture")
    made = run("suite", "import", "ocrbench_v2", "--from", tmp_path / "OCR", "--split", "all",
               "--out", tmp_path / "suite")  # fmt: skip
    assert made.exit_code == 0, made.stderr
    assert made.stdout.startswith("3 of 4 requests")
    assert "1 left out with a picture that cannot be used: 2: wanted PNG" in made.stderr


def test_an_import_is_configured_like_every_command(run, mmspec, tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(f"suite: {{layout: mmspec, source: {mmspec}, limit: 1}}\n")
    made = run("suite", "import", "--config", config, "--out", tmp_path / "suite")
    assert made.exit_code == 0, made.stderr
    assert made.stdout.startswith("2 of 2 requests")


def test_the_list_names_every_layout_with_its_files_and_fields(run):
    rows = json.loads(run("suite", "list", "--json", "-").stdout)["layouts"]
    assert [row["name"] for row in rows] == layout_names()
    for row in rows:
        assert row["verified"] and row["split"] in ("drawn", "official", "whole")
        assert all(form["files"] and form["fields"] and form["prompt"] for form in row["forms"])
    shown = run("suite", "list").stdout
    assert all(name in shown for name in layout_names())


def test_a_bare_suite_shows_the_help(run):
    bare = run("suite")
    assert bare.exit_code == 2
    assert "import" in bare.output and "check" in bare.output


def test_a_check_counts_families_lists_every_bad_line_and_ends_with_2(run, tmp_path):
    picture().save(tmp_path / "a.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:200])
    asked = [{"role": "user", "content": "?"}]
    lines = [{"family": "x", "messages": asked, "images": [name]} for name in
             ("a.png", "a.png", "cut.png", "gone.png")]  # fmt: skip
    suite = tmp_path / "suite.jsonl"
    suite.write_text("\n".join(["{"] * 30 + [json.dumps(line) for line in lines]))
    result = run("suite", "check", suite)
    assert result.exit_code == 2
    assert "32 of 34 lines are bad" in result.stdout
    assert all(f"line {number}: not JSON" in result.stdout for number in range(1, 31))
    assert "line 33: images[0]" in result.stdout and "line 34: images[0]" in result.stdout
    found = json.loads(run("suite", "check", suite, "--json", "-").stdout)
    assert found["families"] == {"x": 2}
    assert [row["line"] for row in found["bad"]] == [*range(1, 31), 33, 34]


def test_a_check_of_what_is_not_there_is_one_message(run, tmp_path):
    for name in (tmp_path / "gone.jsonl", tmp_path):
        result = run("suite", "check", name)
        assert result.exit_code == 2
        assert "suite" in result.stderr and "Traceback" not in result.stderr
