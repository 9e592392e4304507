"""Build the draft model for the demo's target: a small ordinary model for `ensemble`. [TABED, 4.1]

It has the target's tokenizer, vision tower and lessons, and two layers of language model. Some
lessons come without their picture, with its caption or nothing in its place, as the views T and C
of the drafter will ask.
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

import torch
import transformers
from transformers import AutoModelForImageTextToText, PreTrainedTokenizerFast

from varifocal.demo.language import LanguagePlan, train_language
from varifocal.demo.lessons import Mix
from varifocal.demo.model import Shape, export, new_model
from varifocal.demo.score import score
from varifocal.targets import load_target

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DraftPlan:
    """What is spent; seconds are CPU seconds of the training process."""

    seconds: float = 2200.0
    rate: float = 3e-3
    blind: float = 0.3  # share of lessons without a picture
    threads: int = 1
    score_items: int = 64  # test pictures a family
    layers: int = 2
    width: int = 160
    inner: int = 432  # width inside a feed-forward block
    heads: int = 5
    seed: int = 0


def build_draft_model(run: Path, target: Path, out: Path, plan: DraftPlan) -> dict[str, Any]:
    """Train in `run` with the tower of the model in `target`, export to `out`, score.

    Resumes where it was cut off. Returns the recipe, which is also written beside the weights.
    """
    torch.set_num_threads(plan.threads)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(target)
    tokenizer.save_pretrained(run / "tokenizer")
    large = AutoModelForImageTextToText.from_pretrained(target, dtype=torch.float32)
    model = new_model(_shape(large.config.vision_config, plan), tokenizer, plan.seed)
    model.model.vision_tower.load_state_dict(large.model.vision_tower.state_dict())
    del large
    mix = Mix(first=0.3, blind=plan.blind)
    lessons = LanguagePlan(cpu_seconds=plan.seconds, rate=plan.rate, mix=mix, seed=plan.seed)
    at = train_language(model, tokenizer, lessons, run, "draft")
    export(model, tokenizer, out)
    recipe = {
        "command": "varifocal demo build-draft",
        "seed": plan.seed,
        "plan": asdict(plan),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "stages": [
            {
                "name": "draft",
                "steps": at.step,
                "pictures": at.pictures,
                "cpu_seconds": round(at.spent, 1),
                "plan": asdict(lessons),
                "checks": at.checks,
            }
        ],
        "target": {"fingerprint": load_target(str(target)).fingerprint},
        "scores": score(out, limit=plan.score_items).to_json(),
    }
    (out / "RECIPE.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return recipe


def _shape(tower: Any, plan: DraftPlan) -> Shape:
    return Shape(
        tower_layers=tower.num_hidden_layers,
        tower_width=tower.hidden_size,
        tower_inner=tower.intermediate_size,
        tower_heads=tower.num_attention_heads,
        layers=plan.layers,
        width=plan.width,
        inner=plan.inner,
        heads=plan.heads,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m varifocal.demo.draft_model`: the same with all settings as flags."""
    default = DraftPlan()
    parser = argparse.ArgumentParser(description="Train the draft model of the demo's target.")
    parser.add_argument("--run", type=Path, required=True, help="folder of checkpoints and logs")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target model")
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished model")
    for name, value in asdict(default).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    given = vars(parser.parse_args(arguments))
    run, target, out = given.pop("run"), given.pop("target"), given.pop("out")
    run.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    recipe = build_draft_model(run, target, out, replace(default, **given))
    logger.info("mean exact %.3f", recipe["scores"]["mean_exact"])


if __name__ == "__main__":
    main(sys.argv[1:])
