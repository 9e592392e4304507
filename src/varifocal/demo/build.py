"""Build the demo's target model from nothing: tokenizer, tower, language model, depth, score.

Every stage resumes where it was cut off. Files of the run stay in one folder; the model itself is
exported to another, as `from_pretrained` wants it.
"""

import argparse
import json
import logging
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers import (
    AutoModelForImageTextToText,
    LlavaNextForConditionalGeneration,
    PreTrainedTokenizerFast,
)

from varifocal.demo.grow import doubled
from varifocal.demo.language import LanguagePlan, Progress, train_language
from varifocal.demo.lessons import Mix
from varifocal.demo.model import Shape, export, new_model, new_tower
from varifocal.demo.score import score
from varifocal.demo.tokenizer import train_tokenizer
from varifocal.demo.tower import TowerPlan, train_tower

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class BuildPlan:
    """What is spent on each stage; seconds are CPU seconds of the training process."""

    tower_seconds: float = 1500.0
    shallow_seconds: float = 4500.0  # with half of the layers
    deep_seconds: float = 5000.0  # with all of them
    deep_rate: float = 2e-3  # learning rate of that stage; less of it to train a finished model on
    again: tuple[str, ...] = ("yesno", "spatial", "diagram", "sums")  # drawn twice as often in it
    threads: int = 2
    score_items: int = 64  # test pictures a family
    shape: Shape = Shape()
    seed: int = 0


def build(run: Path, target: Path, plan: BuildPlan, *, start: Path | None = None) -> dict[str, Any]:
    """Train in `run`, export to `target`, score, and write the recipe; returns the recipe.

    With `start`, an exported model, only the last stage is trained, from those weights on.
    """
    torch.set_num_threads(plan.threads)
    recipe = _recipe(plan)
    if start is None:
        tokenizer = _tokenizer(run)
        model, at = _from_nothing(run, tokenizer, plan, recipe)
    else:
        tokenizer, model, at = _from_export(run, start, recipe)
    deep = LanguagePlan(
        cpu_seconds=plan.deep_seconds,
        rate=plan.deep_rate,
        warm_up=20,
        hold=0.1,
        mix=_late_mix(plan),
        seed=plan.seed,
    )
    at = train_language(model, tokenizer, deep, run, "deep", start_index=at.index)
    recipe["stages"].append(_stage("deep" if start is None else "more", at, deep))
    export(model, tokenizer, target)
    logger.info("exported %s; scoring", target)
    recipe["scores"] = score(target, limit=plan.score_items).to_json()
    (target / "RECIPE.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return recipe


def snapshot(run: Path, target: Path, plan: BuildPlan) -> None:
    """Export what the running stage has saved last, at full depth, without disturbing it."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(run / "tokenizer")
    is_deep = (run / "deep.pt").exists()
    model = new_model(plan.shape, tokenizer, plan.seed)
    if is_deep:
        model = doubled(model)
    state = torch.load(run / ("deep.pt" if is_deep else "shallow.pt"), weights_only=False)
    model.load_state_dict(state["model"])
    export(model if is_deep else doubled(model), tokenizer, target)


def _tokenizer(run: Path) -> PreTrainedTokenizerFast:
    folder = run / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        train_tokenizer().save_pretrained(folder)
    # Always the saved one: what is trained with is then what is shipped.
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


def _from_nothing(
    run: Path, tokenizer: PreTrainedTokenizerFast, plan: BuildPlan, recipe: dict[str, Any]
) -> tuple[LlavaNextForConditionalGeneration, Progress]:
    tower_plan = TowerPlan(cpu_seconds=plan.tower_seconds, seed=plan.seed)
    tower = new_tower(plan.shape, plan.seed)
    figures = train_tower(tower, plan.shape.tower_width, tower_plan, run)
    recipe["stages"].append({"name": "tower", "plan": asdict(tower_plan), **figures})
    model = new_model(plan.shape, tokenizer, plan.seed)
    model.model.vision_tower.load_state_dict(tower.state_dict())
    shallow = LanguagePlan(cpu_seconds=plan.shallow_seconds, hold=1.0, seed=plan.seed)
    at = train_language(model, tokenizer, shallow, run, "shallow")
    recipe["stages"].append(_stage("shallow", at, shallow))
    return doubled(model), at


def _from_export(
    run: Path, start: Path, recipe: dict[str, Any]
) -> tuple[PreTrainedTokenizerFast, LlavaNextForConditionalGeneration, Progress]:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(start)
    tokenizer.save_pretrained(run / "tokenizer")
    model = AutoModelForImageTextToText.from_pretrained(
        start, dtype=torch.float32, attn_implementation="eager"
    )
    before = json.loads((start / "RECIPE.json").read_text(encoding="utf-8"))
    recipe["stages"] = before["stages"]
    at = Progress()
    at.index = before["stages"][-1]["index"]  # pictures drawn so far: go on with new ones
    return tokenizer, model, at


def _late_mix(plan: BuildPlan) -> Mix:
    """Reading practice after the first stage: its share has fallen to the end."""
    mix = Mix()
    return replace(mix, first=mix.last, again=plan.again)


def _stage(name: str, at: Progress, plan: LanguagePlan) -> dict[str, Any]:
    return {
        "name": name,
        "steps": at.step,
        "pictures": at.pictures,
        "index": at.index,
        "cpu_seconds": round(at.spent, 1),
        "plan": asdict(plan),
        "checks": at.checks,
    }


def _recipe(plan: BuildPlan) -> dict[str, Any]:
    return {
        "command": "varifocal demo build",
        "seed": plan.seed,
        "plan": asdict(plan),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "stages": [],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m varifocal.demo.build`: the flags of a build, or of a snapshot of a running one."""
    default = BuildPlan()
    parser = argparse.ArgumentParser(description="Train the demo's target model from nothing.")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished model")
    parser.add_argument("--start", type=Path, help="train on from this exported model")
    parser.add_argument("--snapshot", action="store_true", help="export the last checkpoint only")
    for name in ("tower_seconds", "shallow_seconds", "deep_seconds"):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=float, default=getattr(default, name), help="CPU seconds")
    parser.add_argument("--deep-rate", type=float, default=default.deep_rate)
    parser.add_argument(
        "--again", nargs="*", default=default.again, help="families to draw more of"
    )
    for name in ("threads", "score_items", "seed"):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=getattr(default, name))
    given = vars(parser.parse_args(arguments))
    run, out, start = given.pop("run"), given.pop("out"), given.pop("start")
    is_snapshot = given.pop("snapshot")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    plan = replace(default, again=tuple(given.pop("again")), **given)
    if is_snapshot:
        snapshot(run, out, plan)
        return
    recipe = build(run, out, plan, start=start)
    logger.info("mean exact %.3f", recipe["scores"]["mean_exact"])


if __name__ == "__main__":
    main(sys.argv[1:])
