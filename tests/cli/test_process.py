"""What only a process of its own shows: signals, pipes, and two at once."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-c", "from varifocal.cli import main; main()"]
SOURCE = Path(__file__).parents[2] / "src"


def start(*args: object, **options) -> subprocess.Popen:
    """`varifocal ...` as a user starts it, without a terminal."""
    path = os.pathsep.join(p for p in (str(SOURCE), os.environ.get("PYTHONPATH", "")) if p)
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    given = [*PROGRAM, *(str(a) for a in args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    return subprocess.Popen(given, env=env, **pipes)


@pytest.fixture
def long_answer(tiny_folder, picture_file) -> list[object]:
    """A request that runs for many seconds."""
    return ["generate", "--target", tiny_folder, "--image", picture_file, "--prompt", "x",
            "--max-new-tokens", 3500, "--drafter", "plain", "--dtype", "float32"]  # fmt: skip


def test_ctrl_c_keeps_the_text_and_says_cancelled(long_answer, tmp_path):
    file = tmp_path / "out.json"
    process = start(*long_answer, "--json", file)
    first = process.stdout.read(20)  # the answer is under way
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    result = json.loads(file.read_text())
    assert result["finish_reason"] == "cancelled"
    assert 0 < len(result["token_ids"]) < 3500
    assert result["spec"]["mean_acceptance_length"] == 1.0
    assert (first + rest).decode() == result["text"] + "\n"


def test_reader_that_goes_away_is_no_error(long_answer):
    process = start(*long_answer)
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert b"Traceback" not in (errors := process.stderr.read())
    assert b"BrokenPipe" not in errors


def test_two_runs_at_once_do_not_disturb_each_other(tiny_folder, tmp_path):
    common = ["demo", "--target", tiny_folder, "--families", "chart", "--repeats", 1, "--drafter",
              "lookup", "--set", "nodes=4", "--dtype", "float32", "--out", tmp_path / "show",
              "--json", tmp_path / "demo.json"]  # fmt: skip
    both = [start(*common), start(*common)]
    outputs = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert json.loads((tmp_path / "demo.json").read_text())["examples"][0]["identical"]
    assert not list(tmp_path.glob(".demo.json.*"))
    for said, errors in outputs:
        assert b"\x1b[" not in said + errors  # no terminal, no colour
