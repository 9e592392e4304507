"""The script that measures PRR on a GPU: the same code runs on this machine's CPU."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch

from varifocal.sparse.padded_torch import TorchOperations

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def prr_gpu(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import prr_gpu

    return prr_gpu


def dry_run(prr_gpu, *options: str) -> int:
    return prr_gpu.main(["--device", "cpu", "--small", *options])


def test_the_dry_run_measures_everything(prr_gpu, tmp_path, capsys):
    file = tmp_path / "prr.json"
    assert dry_run(prr_gpu, "--json", str(file)) == 0
    found = json.loads(file.read_text())
    rows = {row["what"]: row["value"] for row in found["rows"]}
    for dtype, limit in (("float32", 1e-6), ("float16", 1e-3), ("bfloat16", 1e-2)):
        name = f"PRR equals plain, {dtype}, blocks of 16, eager"
        assert rows[name] == 6 and rows[f"{name}: guesses reused"] > 0
        assert float(rows[f"to float64, {dtype}, ours"]) < limit
    spans = found["timelines"][0]["spans"]
    works = ["predict", "rank", "select", "speculate", "diff", "repair", "merge", "learn"]
    assert [*spans] == works and all(end > begin for begin, end in spans.values())
    times = {row["method"]: row for row in found["times"]}
    rates = ("0.0", "0.5", "0.9", "1.0")
    methods = {
        "dense",
        "dense, packed",
        "plain",
        "plain, gathered",
        *(f"PRR at {r}" for r in rates),
    }
    assert {*times} == methods | {f"phase {work}" for work in works}
    assert all(times[name]["alone_us"] > 0 and times[name]["layer_us"] > 0 for name in methods)
    assert [times[f"PRR at {rate}"]["rate"] for rate in rates] == [0, 0.5, 1, 1]  # of two blocks
    assert "112 tokens, batch 2, blocks of 16, PRR at 1.0: saved of plain's token" in rows
    assert "nothing failed" in capsys.readouterr().out


def test_bits_that_differ_are_a_failure(prr_gpu, monkeypatch, capsys):
    """A kernel that rounds otherwise where it repairs."""
    honest = TorchOperations.attend

    def attend(self, pages, queries, board, start, count):
        honest(self, pages, queries, board, start, count)
        if start:
            board.states.mass[:, :, start:] *= 1 + 2**-20

    monkeypatch.setattr(TorchOperations, "attend", attend)
    monkeypatch.setattr(prr_gpu, "check_times", lambda found, bench: None)
    assert dry_run(prr_gpu) == 1
    told = capsys.readouterr().out
    assert "FAILED: equality: PRR equals plain, float32, blocks of 16, eager:" in told


def test_a_missing_device_is_said_with_the_way_out(prr_gpu, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert prr_gpu.main([]) == 2
    assert "--device cpu --small" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_the_dry_run_passes_by_interpreted_kernels(tmp_path):
    file = tmp_path / "prr.json"
    done = subprocess.run(
        [sys.executable, SCRIPTS / "prr_gpu.py", "--device", "cpu", "--small",
         "--kernel", "triton", "--json", file],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["what"]: row["value"] for row in json.loads(file.read_text())["rows"]}
    assert rows["PRR equals plain, float16, blocks of 16, eager"] == 6
    assert not any("bfloat16" in what for what in rows)


@pytest.mark.gpu
def test_the_small_size_passes_on_a_gpu(prr_gpu, tmp_path):
    file = tmp_path / "prr.json"
    assert prr_gpu.main(["--small", "--json", str(file)]) == 0
    rows = {row["what"]: row["value"] for row in json.loads(file.read_text())["rows"]}
    assert rows["PRR equals plain, bfloat16, blocks of 16, graph"] == 6
