"""`varifocal diffusion ...` on a model that knows the answers: words, JSON, files, exit codes."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from pupil import Pupil

from varifocal.diffusion import tasks
from varifocal.diffusion.evaluation import tune as tune_module

SMALL = ("--canvas", 32, "--block", 8)


@pytest.fixture
def say(run, monkeypatch):
    """`varifocal diffusion ...`, with the pupil for every model that is named."""
    monkeypatch.setattr(
        "varifocal.diffusion.loading.load_denoiser", lambda place, **options: Pupil(str(place))
    )
    return lambda *words, **options: run("diffusion", *words, **options)


def test_generate_streams_what_steps_commit_and_says_what_was_verified(say):
    ran = say("generate", "--task", "lookup", *SMALL, "--threads", 1)
    item = tasks.find("lookup").draw(0, "test")
    assert ran.exit_code == 0
    *steps, last, text = ran.stdout.splitlines()
    assert all(line.split()[0].isdigit() for line in steps)
    assert last.endswith("exit") and item.reference in text
    assert f"answer    {item.reference} (right)" in ran.stderr
    assert f"{len(steps) + 1} of 32 planned; exit at step" in ran.stderr
    assert "verified  positions" in ran.stderr and "forward" in ran.stderr


def test_generate_writes_json_alone_to_standard_output(say, tmp_path):
    picture = tmp_path / "run.png"
    ran = say("generate", "--task", "lookup", "--number", 1, *SMALL, "--gate", "cvc:w=2",
              "--json", "-", "--picture", picture)  # fmt: skip
    told = json.loads(ran.stdout)
    assert told["is_right"] and told["gate"] == "cvc:w=2" and told["finish"] == "exit"
    assert told["nfe"] < told["planned_steps"] == 32
    assert set(told["seconds"]) == {"forward", "gate", "sample", "other", "total"}
    assert picture.read_bytes()[:4] == b"\x89PNG"


def test_a_text_is_answered_as_free_and_a_parser_that_never_matches_says_so(say, tmp_path):
    prompt = tasks.find("compare").draw(0, "test").prompt
    (tmp_path / "question.txt").write_text(prompt, "utf-8")
    asked = ("generate", "--canvas", 8, "--no-stream")
    ran = say(*asked, "--prompt-file", tmp_path / "question.txt")
    assert ran.exit_code == 0 and ran.stdout.strip() in ("yes", "no")
    never = say(*asked, "--prompt", prompt, "--format", "json")
    assert never.exit_code == 0
    assert "8 of 8 planned; ran to its end: the format's parser never found" in never.stderr
    assert "answer    none found" in never.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give one of --prompt TEXT"),
        (("--prompt", " "), "the prompt is empty"),
        (("--prompt", "a", "--task", "lookup"), "give one of"),
        (("--prompt", "a", "--format", "nothing"), "no format is called 'nothing'"),
        (("--prompt", "a", "--gate", "nothing"), "no gate is called 'nothing'"),
        (("--prompt", "a", "--gate", "oracle"), "record a full run and replay it"),
        (("--prompt", "a", "--sampler", "nothing"), "no sampler is called 'nothing'"),
        (("--task", "nothing"), "no task is called 'nothing'"),
        (("--prompt", "a", "--number", 1), "--number says which question of --task"),
        (("--prompt", "a", "--sampler", "entropy,random"), "wanted one sampler, got 2"),
        (("--prompt", "a", "--sampler", "own:eps=1"), "own takes no options"),
        (("--prompt", "a", "--device", "nowhere"), "the device 'nowhere' cannot be used here"),
        (("--task", "lookup", "--number", -1), "--number must be 0 or more"),
        (("--prompt", "a", "--canvas", 0), "canvas must be a count from 1"),
        (("--prompt", "a", "--canvas", 256), "reads 256 in all; give canvas=255 at most"),
        (("--prompt", "a", "--steps", 1), "1 steps cannot fill 8 blocks"),
        (("--prompt", "a", "--sampler", "threshold", "--steps", 9), "has no effect"),
        (("--prompt", "a", "--picture", "run.gif"), "--picture writes .png or .svg"),
        (("--prompt", "a", "--picture", "folder.png"), "wants a file, but folder.png is a folder"),
        (("--prompt-file", "/nowhere"), "cannot be read"),
    ],
)
def test_what_cannot_be_decoded_is_refused(say, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    ran = say("generate", *words)
    assert ran.exit_code == 2 and said in ran.stderr and "Traceback" not in ran.output


def test_a_model_that_is_no_diffusion_model_is_refused_by_name(run, tiny_folder):
    ran = run("diffusion", "generate", "--model", tiny_folder, "--prompt", "a")
    assert ran.exit_code == 2
    assert "is a 'llava_next' model" in ran.stderr and "`varifocal generate`" in ran.stderr


def test_steps_that_do_not_divide_are_shared_out(say):
    ran = say("generate", "--task", "lookup", "--canvas", 30, "--block", 8, "--steps", 13,
              "--gate", "full", "--no-stream", "--json", "-")  # fmt: skip
    assert json.loads(ran.stdout)["nfe"] == 13


def test_verify_holds_latch_to_full_decoding(say):
    common = ("verify", "--tasks", "lookup", "--limit", 2, "--sample", 1, *SMALL, "--json", "-")
    ran = say(*common)
    told = json.loads(ran.stdout)
    (check,) = told["checks"]
    assert ran.exit_code == 0 and told["is_good"]
    assert check["agreement"] == 1.0 and check["broken_rows"] == 0
    assert check["batch_equal"] == check["batch_checked"] == 1
    assert check["replay_equal"] == check["replay_checked"] == 1
    rash = say(*common, "--gate", "cvc:w=1:tau=0.5:context=none")
    (check,) = json.loads(rash.stdout)["checks"]
    assert rash.exit_code == 1
    assert (check["hurt"], check["premature"], check["is_within"]) == (2, 1.0, False)


def test_verify_sees_rows_that_depend_on_their_batch(say, monkeypatch):
    honest = Pupil.forward

    def leaking(self, canvas, window, *, caching=False):
        logits = honest(self, canvas, window, caching=caching)
        return logits.flip(-1) if len(canvas.tokens) > 1 else logits

    monkeypatch.setattr(Pupil, "forward", leaking)
    ran = say("verify", "--tasks", "compare", "--limit", 2, "--sample", 1, "--canvas", 8,
              "--tolerance", 100)  # fmt: skip
    assert ran.exit_code == 1 and "NOT good" in ran.stdout


def test_a_recorded_run_is_replayed_without_the_model(say, run, tmp_path):
    folder = tmp_path / "runs"
    ran = say("record", "--task", "lookup", "--limit", 2, "--out", folder, *SMALL)
    assert ran.exit_code == 0, ran.output
    replayed = run("diffusion", "replay", "--recorded", folder, "--gates", "full,sched,cvc,oracle",
                   "--json", "-")  # fmt: skip
    rows = {row["gate"]: row for row in json.loads(replayed.stdout)["rows"]}
    assert rows["full"]["nfe"] == 32 and rows["sched"]["hurt"] == 2
    assert rows["oracle"]["nfe"] < rows["cvc"]["nfe"] < 32 and rows["cvc"]["accuracy"] == 1.0
    again = say("record", "--task", "lookup", "--out", folder)
    assert again.exit_code == 2 and "new or empty folder" in again.stderr
    live = run("diffusion", "replay", "--recorded", folder, "--gates", "latch")
    assert live.exit_code == 2 and "cannot be replayed" in live.stderr
    (folder / "items.json").write_text("{}")
    broken = run("diffusion", "replay", "--recorded", folder)
    assert broken.exit_code == 2 and "record again" in broken.stderr


DAMAGE = [
    lambda runs: runs.__setitem__("0.argmax", runs["0.argmax"][:3]),
    lambda runs: runs["0.tokens"].__iadd__(100_000),
    lambda runs: runs["0.gap"].fill(np.nan),
    lambda runs: runs["0.fresh"].fill(False),
    lambda runs: runs["0.token_step"].fill(1000),
    lambda runs: runs.__setitem__("0.seconds", runs["0.seconds"][:, :2]),
    lambda runs: runs.__setitem__("header", np.array("[1]")),
]


def test_damaged_or_foreign_recordings_are_refused(say, run, tmp_path):
    whole = tmp_path / "runs"
    assert say("record", "--task", "lookup", "--limit", 1, "--out", whole, *SMALL).exit_code == 0
    stored = (whole / "runs.npz").read_bytes()
    for damage in DAMAGE:
        with np.load(whole / "runs.npz") as file:
            runs = dict(file)
        damage(runs)
        np.savez(whole / "runs.npz", **runs)
        ran = run("diffusion", "replay", "--recorded", whole, "--gates", "full")
        assert ran.exit_code == 2 and "record again" in ran.stderr, ran.output
        (whole / "runs.npz").write_bytes(stored)
    about = json.loads((whole / "items.json").read_text("utf-8"))
    about["items"] = [asdict(tasks.find("lookup").draw(7, "test"))]
    (whole / "items.json").write_text(json.dumps(about), "utf-8")
    ran = run("diffusion", "replay", "--recorded", whole, "--gates", "full")
    assert ran.exit_code == 2 and "do not belong together" in ran.stderr, ran.output


def test_an_interrupted_tuning_goes_on_from_its_pieces(say, tmp_path, monkeypatch):
    few = {"cvc": ["cvc", "cvc:w=2"], "sched": ["sched"]}
    monkeypatch.setattr("varifocal.diffusion.evaluation.tune.grids", lambda: few)
    file, honest = tmp_path / "frozen.json", tune_module.live
    words = ("tune", "--tasks", "compare", "--canvas", 8, "--limit", 2, "--samplers", "own",
             "--out", file)  # fmt: skip

    def interrupted(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr(tune_module, "live", interrupted)
    ran = say(*words)
    assert ran.exit_code == 130 and "the same command goes on" in ran.stderr and not file.exists()
    monkeypatch.setattr(tune_module, "live", honest)
    monkeypatch.setattr(tune_module, "record", interrupted)  # nothing recorded is recorded again
    ran = say(*words)
    assert ran.exit_code == 0, ran.output
    assert set(json.loads(file.read_text("utf-8"))["chosen"]) == {"cvc", "sched", "latch"}
    assert [path.name for path in tmp_path.iterdir()] == ["frozen.json"]


def test_bench_writes_rows_a_report_and_pieces_to_go_on_from(say, tmp_path):
    report, rows = tmp_path / "report", tmp_path / "rows.json"
    words = ("bench", "--models", "llada-tiny", "--tasks", "compare", "--canvas", 8, "--block", 4,
             "--gates", "cvc", "--samplers", "own", "--limit", 2, "--timed-items", 1)  # fmt: skip
    ran = say(*words, "--report", report, "--json", rows)
    assert ran.exit_code == 0, ran.output
    told = json.loads(rows.read_text("utf-8"))
    wanted = set(
        "model task gate sampler items accuracy accuracy_full agreement nfe nfe_full speedup "
        "gate_share".split()
    )
    assert [row["gate"] for row in told["rows"]] == ["full", "cvc", "latch"]
    assert all(wanted <= set(row) for row in told["rows"])
    assert {"index.html", "bench.md", "bench.png", "bench.json"} <= {
        path.name for path in report.iterdir()
    }
    assert "Settings were chosen once" in ran.stdout
    again = say(*words, "--report", report)
    assert again.exit_code == 0 and "pieces were in" in again.stderr
    beside = say(*words, "--json", tmp_path / "other.json")
    assert beside.exit_code == 0 and not list((tmp_path / "other.json.cells").glob("*"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("bench", "--limit", 0), "limit must be at least 1"),
        (("bench", "--tasks", "nothing"), "no task is called"),
        (("bench", "--tasks", "chain,chain"), "the task chain is given twice"),
        (("bench", "--limit", 10**9), "questions up to number 1000000"),
        (("verify", "--tasks", ","), "--tasks names no task"),
        (("verify", "--sampler", "entropy,random"), "wanted one sampler, got 2"),
        (("record", "--task", "chain", "--out", "x", "--sampler", "entropy,random"), "one sampler"),
        (("tune", "--loss", "nan"), "loss is in points, from 0 to 100"),
        (("tune", "--out", "nowhere/f.json"), "--out nowhere/f.json: there is no folder nowhere"),
        (("tune", "--out", "."), "--out wants a file, but . is a folder"),
        (("bench", "--gates", "nothing"), "no gate is called"),
        (("bench", "--samplers", "nothing"), "no sampler is called"),
        (("bench", "--samplers", "own,low_confidence"), "given twice"),
        (("bench", "--models", ""), "names no model"),
        (("bench", "--tasks", "chain", "--canvas", 8), "do not fit a canvas of 8"),
        (("bench", "--tasks", "compare", "--canvas", 300), "reads 256 in all"),
        (("bench", "--canvas", "x"), "--canvas wants numbers"),
        (("bench", "--fresh"), "--fresh forgets kept pieces"),
        (("verify", "--limit", 0), "--limit must be at least 1"),
        (("verify", "--tolerance", 101), "--tolerance is in points"),
        (("record", "--task", "lookup", "--limit", 0, "--out", "x"), "--limit must be at least 1"),
        (("replay", "--recorded", "/nowhere"), "there is no recording"),
        (("tune", "--split", "test"), "must not be chosen on what they are tested on"),
        (("tune", "--tasks", "broken", "--limit", 1), "no right answers"),
    ],
)
def test_bad_input_ends_in_one_message(say, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    ran = say(*words)
    assert ran.exit_code == 2 and said in ran.stderr, ran.output
    assert "Traceback" not in ran.output


def test_tasks_and_formats_are_listed(run):
    listed = json.loads(run("diffusion", "tasks", "--json", "-").stdout)["tasks"]
    assert [task["name"] for task in listed] == tasks.names()
    known = json.loads(run("diffusion", "formats", "--json", "-").stdout)["formats"]
    assert {task["format"] for task in listed} <= {one["name"] for one in known}
