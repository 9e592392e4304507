"""The code and the command of docs/sparse.md run, and it names every selector and predictor."""

import inspect
import re
from pathlib import Path

from checkpoints import built
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from varifocal.cli import app
from varifocal.sparse import PREDICTORS, SELECTORS

PAGE = (Path(__file__).parents[2] / "docs" / "sparse.md").read_text("utf-8")


def block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def test_the_code_of_the_page_on_sparse_attention_runs(capsys):
    code = block("python").replace("MODEL", str(built("text-llama")))
    code = code.replace("budget=2048", "budget=16").replace(
        "first=16, recent=64", "first=1, recent=1"
    )
    code = code.replace("A long text", "A long text, a long text" * 20)
    if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters:
        code = code.replace("past_key_values=", "cache=")
    names: dict = {}
    exec(code, names)
    assert names["output"].shape[1] > names["inputs"]["input_ids"].shape[1]
    said = capsys.readouterr().out
    assert "ema None" in said and "last 0" in said


def test_the_command_of_the_page_on_sparse_attention_runs():
    words = block("sh").replace("700", "7").split()
    assert words[0] == "varifocal"
    assert CliRunner().invoke(app, words[1:]).exit_code == 0


def test_the_page_names_every_selector_and_predictor():
    assert all(f"`{name}`" in PAGE for name in (*SELECTORS, *PREDICTORS))
