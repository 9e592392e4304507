"""Turn a finished training into what is shipped: published layout, float16, scored, with recipe."""

import json
import os
import platform
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from transformers import PreTrainedTokenizerFast

from varifocal.diffusion._scoring import decode_accuracy
from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.loading import load_denoiser, write_checkpoint
from varifocal.diffusion.model import MaskedTransformer

_CANVASES = (64, 128)


def release(
    model: MaskedTransformer,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    training: Mapping[str, Any],
    *,
    items: int,
) -> dict[str, Any]:
    """Write the model to `out`, score what was written, and say in RECIPE.json how it was made.

    `training` is what the recipe says of the run. `items` of each task's test split are decoded.
    """
    end, mask = tokenizer.eos_token_id, tokenizer.mask_token_id
    vocabulary = Vocabulary(size=len(tokenizer), mask=mask, pad=end, stops=frozenset({end}))
    kind = "dream" if model.config.shift else "llada"
    write_checkpoint(deepcopy(model).half(), out, kind, vocabulary, tokenizer)
    written = load_denoiser(out, dtype=torch.float32, device="cpu").model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        accuracy = {
            str(canvas): decode_accuracy(written, tokenizer, "test", items, canvas)
            for canvas in _CANVASES
        }
    recipe = {
        **training,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "tokenizers": tokenizers.__version__,
        },
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "decoding": "low confidence, a token a step, blocks of 32, bfloat16",
        "test_items": items,
        "accuracy": accuracy,
    }
    (out / "RECIPE.json").write_text(json.dumps(recipe, indent=1) + "\n", encoding="utf-8")
    return recipe
