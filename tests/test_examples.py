"""The examples run as they stand, on the embedded model."""

import runpy
from pathlib import Path

import pytest

from varifocal.targets import demo_folder

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_an_example_runs(path, capsys, monkeypatch, tmp_path):
    demo_folder()  # names what is missing
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    shown = capsys.readouterr().out
    assert shown.strip() and "False" not in shown
