"""The scripts run: on this machine's CPU, and on a GPU where there is one."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.fixture
def gpu_check(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(SCRIPTS)
    import gpu_check

    return gpu_check


def parts(file: Path) -> dict[str, str]:
    """The value of everything that was measured."""
    rows = json.loads(file.read_text())["rows"]
    return {row["what"]: row["value"] for row in rows}


def test_the_dry_run_measures_everything_but_the_graph(gpu_check, tmp_path, capsys):
    file = tmp_path / "check.json"
    assert gpu_check.main(["--device", "cpu", "--size", "small", "--json", str(file)]) == 0
    found = parts(file)
    for drafter in ("lookup", "fovea", "oracle"):
        assert "0 different" in found[f"{drafter} in float32"]
        assert "0 different" in found[f"{drafter} in bfloat16"]
        assert found[f"{drafter} in bfloat16, exact rows"].startswith("2 identical")
    assert found["oracle in float32: tokens a round"] > 2  # accepted paths are part of the check
    for length in (300, 3000):
        for what in ("plain step", "tree of 40", "draft step", "prefill"):
            assert found[f"{what} at {length} tokens"] > 0
        assert found[f"plain step with StaticCache at {length} tokens, eager: equal tokens"] > 0
    assert found["CUDA graph"] == "there is none on cpu"
    assert "nothing failed" in capsys.readouterr().out


def test_a_text_that_differs_and_a_part_that_breaks_off_are_named(gpu_check, monkeypatch, capsys):
    def differs(report, target, size):
        report.failures.append("texts: lookup in bfloat16: Mismatch")

    def breaks(report, target, size):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gpu_check, "check_texts", differs)
    monkeypatch.setattr(gpu_check, "check_costs", breaks)
    monkeypatch.setattr(gpu_check, "check_graph", lambda report, target, size: None)
    monkeypatch.setattr(gpu_check, "cache_milliseconds", lambda: (1.0, 1.0))
    assert gpu_check.main(["--device", "cpu", "--size", "small"]) == 1
    told = capsys.readouterr().out
    assert "FAILED: texts: lookup in bfloat16" in told
    assert "FAILED: costs broke off with RuntimeError: out of memory" in told
    assert "this process" in told  # the parts after it were still run


def test_a_near_tie_is_no_failure_and_a_difference_is(gpu_check, monkeypatch):
    from random_model import SIZES, build

    from varifocal.drafters import load_drafter
    from varifocal.engine import Engine
    from varifocal.evaluation.compare import Comparison, Mismatch
    from varifocal.request import ask

    target = build(SIZES["small"], torch.float32, torch.device("cpu"))
    engine = Engine(target, load_drafter("plain", target))

    def mismatch(near_tie):
        return Mismatch(
            id="a", position=1, plain=2, drafted=3, margin=0.1, tolerance=0.2,
            near_tie=near_tie, temperature=0.0,
        )  # fmt: skip

    for near_tie in (True, False):
        verdict = Comparison(
            requests=1, identical=0, near_tie=int(near_tie), different=int(not near_tie),
            dtype="bfloat16", mismatches=(mismatch(near_tie),),
        )  # fmt: skip
        monkeypatch.setattr(gpu_check, "compare", lambda *_, verdict=verdict: verdict)
        report = gpu_check.Report()
        gpu_check.check_text(report, engine, [ask("a", max_new_tokens=2)], "plain")
        assert bool(report.failures) is not near_tie


def test_a_missing_device_is_said_with_the_way_out(gpu_check, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_check.main([]) == 2
    assert "--device cpu --size small" in capsys.readouterr().err


def test_appending_and_keeping_a_tree_costs_little_at_3000_tokens(gpu_check):
    fastest, median = gpu_check.cache_milliseconds()
    assert fastest <= median
    assert fastest < 10  # 1.2 on an AMD EPYC; a copy of all entries would take 70


@pytest.mark.gpu
def test_the_small_size_passes_on_a_gpu(gpu_check, tmp_path):
    file = tmp_path / "check.json"
    assert gpu_check.main(["--size", "small", "--json", str(file)]) == 0
    assert parts(file)["plain step with StaticCache at 300 tokens, CUDA graph"] > 0
