"""The page for transformers users: its code runs as it stands, on a tiny model."""

import re
from pathlib import Path

from checkpoints import built
from drop_in import target_of
from tiny import picture

from varifocal.drafters.fovea import FoveaDrafter

PAGE = Path(__file__).parent.parent / "docs" / "transformers.md"


def test_the_code_of_the_page_runs_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    picture(0, (60, 40)).save("receipt.png")
    sizes = FoveaDrafter.Config(nodes=8, depth=3, inner=32, memory_width=16, bottleneck=8)
    trained = FoveaDrafter(target_of("llava_next"), sizes)
    trained.save_pretrained("my-drafter", seed=0, steps=0)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 7
    names = {}
    for block in blocks:
        code = re.sub(r'MODEL = ".*"', f"MODEL = {str(built('llava_next'))!r}", block)
        exec(compile(code, str(PAGE), "exec"), names)
    assert "tokens per forward" in capsys.readouterr().out
    assert {p.name for p in Path("a-copy").iterdir()} == {
        "config.json",
        "model.safetensors",
        "README.md",
    }
