"""The examples run, on the tiny target."""

import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_quickstart_says_that_the_texts_are_identical(tiny_folder, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("varifocal.engine.measure", lambda target, drafter: None)
    monkeypatch.setattr(sys, "argv", ["quickstart.py", "--target", str(tiny_folder)])
    runpy.run_path(str(EXAMPLES / "quickstart.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "tokens a target forward" in said
    assert "identical to plain decoding: " in said
