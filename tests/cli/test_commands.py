"""The other commands, on the tiny target."""

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny import save_tiny

import varifocal.decode
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.errors import BadOption, DrafterMismatch
from varifocal.training import recorder
from varifocal.training._files import make_folder
from varifocal.tree import DraftTree
from varifocal.verify import Verification, follow

# The packages' names `verify` and `train` are those of the commands.
verify_module = sys.modules["varifocal.cli.verify"]
train_module = sys.modules["varifocal.cli.train"]
SMALL = ("--drafter", "lookup", "--set", "nodes=4", "--dtype", "float32")


def test_bare_program_shows_help_and_version_shows_versions(run):
    bare = run()
    assert bare.exit_code == 2
    assert "generate" in bare.output
    assert re.search(r"^torch \d", run("--version").stdout, re.MULTILINE)


def test_misspelt_command_is_answered_with_the_right_one(run):
    result = run("generat")
    assert result.exit_code == 2
    assert "Did you mean 'generate'" in result.stderr


def test_lists_of_targets_and_drafters_are_json(run):
    targets = json.loads(run("targets", "--json", "-").stdout)["targets"]
    assert {"name", "model_types", "tested", "status"} == set(targets[0])
    drafters = json.loads(run("drafters", "--json", "-").stdout)["drafters"]
    assert {"plain", "lookup"} <= {row["name"] for row in drafters}
    assert all({"name", "trained", "needs", "pictures"} == set(row) for row in drafters)
    assert "lookup" in run("drafters").stdout


def _verify(run, tiny_folder, *args):
    return run("verify", "--target", tiny_folder, *SMALL, "--max-new-tokens", 10, *args)


def test_verify_passes_where_texts_are_identical(run, tiny_folder):
    result = _verify(run, tiny_folder, "--limit", 1, "--families", "chart,text", "--json", "-")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {
        "requests": 4, "identical": 4, "near_tie": 0, "different": 0,
        "dtype": "float32", "mismatches": [],
    }  # fmt: skip


def _gullible(tree: DraftTree, logits, sampling, position) -> Verification:
    """A faulty verification that accepts the first guess unseen."""
    right = follow(tree, logits, sampling, position)
    if len(tree) == 1 or right.num_accepted:
        return right
    return Verification([0, 1], [int(tree.tokens[1]), *right.tokens])


def test_verify_fails_where_a_text_differs(run, tiny_folder, picture_file, monkeypatch):
    monkeypatch.setattr(varifocal.decode, "follow", _gullible)
    monkeypatch.setattr(
        "varifocal.drafters.lookup._Text.continuation", lambda self, width: [40, 41][:width]
    )
    typed = ("--prompt", "x", "--image", picture_file, "--sampling", "greedy")
    result = _verify(run, tiny_folder, *typed, "--json", "-")
    assert result.exit_code == 1
    verdict = json.loads(result.stdout)
    assert verdict["different"] == 1
    (mismatch,) = verdict["mismatches"]
    assert mismatch["position"] == 1
    assert mismatch["drafted"] == 40 != mismatch["plain"]
    assert mismatch["margin"] > 0
    assert "DIFFERENT at token 1" in _verify(run, tiny_folder, *typed).stdout


def test_verify_keeps_the_limits_of_a_suite_unless_one_is_typed(
    run, tiny_folder, tmp_path, monkeypatch
):
    suite = tmp_path / "suite.jsonl"
    turns = [{"role": "user", "content": "What is it?"}]
    suite.write_text(json.dumps({"id": "a", "messages": turns, "max_new_tokens": 3}) + "\n")
    limits = []
    compare = verify_module.compare

    def watched(engine, requests, done):
        limits.extend(request.max_new_tokens for request in requests)
        return compare(engine, requests, done)

    monkeypatch.setattr(verify_module, "compare", watched)
    given = ("verify", "--target", tiny_folder, *SMALL, "--sampling", "greedy")
    for options in (
        ("--suite", suite),
        ("--suite", suite, "--max-new-tokens", 5),
        ("--suite", suite, "limits.max_new_tokens=4"),
    ):
        result = run(*given, *options)
        assert result.exit_code == 0, result.stderr
    assert limits == [3, 5, 4]


def test_exact_rows_are_honoured(run, tiny_folder):
    options = ("--limit", 1, "--families", "chart", "--exact-rows", "--dtype", "bfloat16")
    result = _verify(run, tiny_folder, *options, "--json", "-")
    assert json.loads(result.stdout)["identical"] == 2


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--suite", "nowhere.jsonl"], "no suite nowhere.jsonl"),
        (["--families", "cats"], "no family cats"),
        (["--limit", "0"], "limit"),
        (["--prompt", "x", "--limit", "1"], "leave out the suite"),
        (["--sampling", "warm"], "--sampling"),
    ],
)
def test_bad_suite_is_refused(run, tiny_folder, args, named):
    result = _verify(run, tiny_folder, *args)
    assert result.exit_code == 2
    assert named in result.stderr


def test_demo_shows_and_writes_a_page(run, tiny_folder, tmp_path):
    result = run("demo", "--target", tiny_folder, *SMALL, "--out", tmp_path / "show",
                 "--families", "chart", "--repeats", 1,
                 "--json", tmp_path / "demo.json")  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert (tmp_path / "show" / "chart-test-0.png").exists()
    page = (tmp_path / "show" / "index.html").read_text()
    assert "does not look at pictures" in page
    for word in ("question", "plain", "lookup", "identical", "tau", "CPU"):
        assert word in result.stdout
    (example,) = json.loads((tmp_path / "demo.json").read_text())["examples"]
    assert example["identical"]
    assert example["tau"] >= 1


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--families", "cats"], "no family 'cats'"),
        (["--repeats", "0"], "repeats"),
        (["bogus"], "bogus"),
        (["score", "--limit", "0"], "limit"),
        (["score", "--target", "/nowhere"], "config.json"),
        (["build", "--tower-seconds", "-1"], "tower_seconds"),
    ],
)
def test_bad_demo_is_refused(run, args, named):
    result = run("demo", *args)
    assert result.exit_code == 2
    assert named in result.stderr


def test_record_train_and_generate_follow_on_each_other(run, tiny_folder, picture_file, tmp_path):
    target = ("--target", tiny_folder, "--dtype", "float32")
    recorded = run("record", *target, "--count", 4, "--max-new-tokens", 6, "--out",
                   tmp_path / "artifacts", "--json", "-")  # fmt: skip
    assert recorded.exit_code == 0, recorded.stderr
    assert json.loads(recorded.stdout)["samples"] == 4
    trained = run("train", "--drafter", "fovea", "--artifacts", tmp_path / "artifacts", "--out",
                  tmp_path / "drafter", "--steps", 1, "--batch", 2, "--held-out", "none",
                  "--set", "inner=32", "--json", "-")  # fmt: skip
    assert trained.exit_code == 0, trained.stderr
    assert json.loads(trained.stdout)["steps"] == 1  # on the target that was recorded
    answer = run("generate", *target, "--drafter", tmp_path / "drafter", "--set", "nodes=4",
                 "--image", picture_file, "--prompt", "x", "--max-new-tokens", 6,
                 "--json")  # fmt: skip
    assert json.loads(answer.stdout)["drafter"] == "fovea"


def test_train_refuses_a_target_that_was_not_recorded(tiny_folder, tmp_path):
    other = save_tiny(tmp_path / "other", seed=1)
    origin = SimpleNamespace(target=str(tiny_folder), fingerprint="0123")
    store = SimpleNamespace(folder=tmp_path, manifest=SimpleNamespace(origin=origin))
    out = Output(OutputOptions(quiet=True))
    for typed, loaded in (("", tiny_folder), (str(other), other)):
        model = train_module.RecordedTargetOptions(target=typed, device="cpu")
        with pytest.raises(DrafterMismatch, match="varifocal record") as refused:
            train_module._recorded(store, model, out)
        assert f"the target is {str(loaded)!r}" in str(refused.value)


def test_training_that_is_cut_off_says_how_to_go_on(tmp_path, capsys):
    out = Output(OutputOptions())
    with pytest.raises(KeyboardInterrupt), train_module._saying_how_to_go_on(tmp_path, out):
        raise KeyboardInterrupt
    said = capsys.readouterr().err
    assert "--resume" in said
    assert str(tmp_path) in said


def test_ctrl_c_in_record_says_what_is_kept_and_how_to_go_on(
    run, tiny_folder, tmp_path, monkeypatch
):
    take, calls = recorder._Session.take, []

    def interrupted(session, group, writer):
        calls.append(group)
        if len(calls) == 3:
            raise KeyboardInterrupt
        take(session, group, writer)

    monkeypatch.setattr(recorder._Session, "take", interrupted)
    command = ("record", "--target", tiny_folder, "--dtype", "float32", "--count", 4, "--batch", 1,
               "--max-new-tokens", 2, "--out", tmp_path / "out")  # fmt: skip
    result = run(*command)
    assert result.exit_code == 130
    assert f"2 samples are kept in {tmp_path / 'out'}" in result.stderr
    assert "same command goes on" in result.stderr
    assert "4 samples with" in run(*command).stdout


def test_train_refuses_what_cannot_learn_and_what_is_missing(run, tmp_path):
    missing = run("train", "--artifacts", tmp_path / "none", "--held-out", "none")
    assert missing.exit_code == 2
    assert "varifocal record" in missing.stderr
    assert run("train", "--valid", "1").exit_code == 2
    assert "'given'" in run("record", "--answers", "given").stderr


def test_train_and_record_refuse_an_out_that_is_no_folder(run, tiny_folder, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    for command in (("record", "--target", tiny_folder), ("train", "--held-out", "none")):
        for out in (file, file / "below"):
            said = run(*command, "--out", out)
            assert said.exit_code == 2
            assert "a folder is wanted" in said.stderr and f"{file} is a file" in said.stderr
            assert "Name a new folder" in said.stderr
    assert file.read_text() == "mine"


def test_an_out_that_cannot_be_made_is_named_with_the_way_out(tmp_path, monkeypatch):
    def refused(path, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refused)
    with pytest.raises(BadOption, match=r"out cannot be made \(Permission denied\); name one in"):
        make_folder(tmp_path / "out")


def test_train_writes_no_drafter_among_the_artifacts_and_tells_of_no_scores_where_are_none(
    run, tiny_folder, tmp_path
):
    artifacts = tmp_path / "artifacts"
    recorded = run("record", "--target", tiny_folder, "--dtype", "float32", "--count", 2,
                   "--answers", "reference", "--out", artifacts)  # fmt: skip
    assert recorded.exit_code == 0, recorded.stderr
    before = sorted(artifacts.iterdir())
    common = ("train", "--drafter", "text_only", "--artifacts", artifacts, "--steps", 1,
              "--batch", 2, "--held-out", "none", "--valid", 0, "--set", "inner=32")  # fmt: skip
    same = run(*common, "--out", tmp_path / "x" / ".." / "artifacts")
    assert same.exit_code == 2
    assert "holds a recording" in same.stderr and "choose another one" in same.stderr
    assert sorted(artifacts.iterdir()) == before
    done = run(*common, "--out", tmp_path / "drafter")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"text_only after 1 updates in {tmp_path / 'drafter'}"


def test_bench_refuses_what_it_does_not_know_before_it_loads(run):
    assert "there is no preset 'hasty'" in run("bench", "--preset", "hasty").stderr
    unknown = run("bench", "--drafters", "plain,nope", "--limit", 1, "--families", "chart")
    assert unknown.exit_code == 2
    assert "'nope'" in unknown.stderr
