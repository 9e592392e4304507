"""What only a process of its own shows: signals, pipes, and two at once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = [sys.executable, "-m", "varifocal"]
SOURCE = Path(__file__).parents[2] / "src"


def start(*args: object) -> subprocess.Popen:
    """`varifocal ...` as a user starts it, without a terminal."""
    path = os.pathsep.join(p for p in (str(SOURCE), os.environ.get("PYTHONPATH", "")) if p)
    env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    given = [*PROGRAM, *(str(a) for a in args)]
    pipe = subprocess.PIPE
    return subprocess.Popen(given, env=env, stdout=pipe, stderr=pipe, bufsize=0)


@pytest.fixture
def long_answer(tiny_folder, picture_file) -> list[object]:
    """A request that runs for many seconds."""
    return ["generate", "--target", tiny_folder, "--image", picture_file, "--prompt", "x",
            "--max-new-tokens", 3500, "--drafter", "plain", "--dtype", "float32"]  # fmt: skip


def test_ctrl_c_keeps_the_text_and_says_cancelled(long_answer, tmp_path):
    file = tmp_path / "out.json"
    with start(*long_answer, "--json", file) as process:
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


def test_ctrl_c_while_torch_is_imported_is_no_traceback():
    with start("--version") as process:
        wait_for_torch(process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")


def wait_for_torch(process: subprocess.Popen) -> None:
    """Until the process has its library in memory; Python runs many imports after that."""
    maps = Path(f"/proc/{process.pid}/maps")
    if not maps.exists():
        pytest.skip("needs /proc to see what a process imports")
    while process.poll() is None and "libtorch" not in maps.read_text():
        time.sleep(0.01)


def test_reader_that_goes_away_is_no_error(long_answer):
    with start(*long_answer) as process:
        process.stdout.read(10)
        process.stdout.close()
        errors = process.stderr.read()
    assert process.returncode == 141
    assert b"Traceback" not in errors
    assert b"BrokenPipe" not in errors


def test_two_runs_at_once_do_not_disturb_each_other(tiny_folder, tmp_path):
    common = ["generate", "--target", tiny_folder, "--prompt", "x", "--drafter", "plain",
              "--max-new-tokens", 50, "--json", tmp_path / "out.json"]  # fmt: skip
    with start(*common) as one, start(*common) as other:
        outputs = [process.communicate(timeout=300) for process in (one, other)]
    assert (one.returncode, other.returncode) == (0, 0), outputs
    assert len({said for said, _ in outputs}) == 1
    text = json.loads((tmp_path / "out.json").read_text())["text"]
    assert outputs[0][0].decode() == f"{text}\n"
    assert list(tmp_path.iterdir()) == [tmp_path / "out.json"]
    assert b"\x1b[" not in b"".join(errors for _, errors in outputs)  # no terminal, no colour
