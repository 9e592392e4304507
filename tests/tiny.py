"""A tiny LLaVA-NeXT with random weights, its tokenizer and processor: seconds to build."""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from varifocal.demo.model import Shape, new_model, new_processor
from varifocal.demo.tokenizer import CHAT_TEMPLATE, END, IMAGE, PAD, SPECIAL
from varifocal.targets._hf import HFTarget
from varifocal.targets.llava_next import LlavaNextTarget

SHAPE = Shape(
    tower_layers=1,
    tower_width=32,
    tower_inner=64,
    tower_heads=2,
    layers=3,
    width=64,
    inner=96,
    heads=4,
    positions=4096,
)


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and a few merges."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(["the picture shows a red circle and a blue square"] * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        eos_token=END,
        chat_template=CHAT_TEMPLATE,
        extra_special_tokens={"image_token": IMAGE},
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def tiny_target(
    *,
    dtype: torch.dtype = torch.float32,
    exact_rows: bool = False,
    seed: int = 0,
    sharp: float = 4.0,
) -> HFTarget:
    """Random weights, scaled so that the choice of a token is not a near-tie."""
    model = new_model(SHAPE, tokenizer(), seed)
    with torch.no_grad():
        model.lm_head.weight.mul_(sharp * 20)
    model.generation_config.eos_token_id = tokenizer().eos_token_id
    model.config.text_config._attn_implementation = "sdpa"
    return LlavaNextTarget(
        model.to(dtype), new_processor(tokenizer()), "tiny", exact_rows=exact_rows
    )


def save_tiny(folder: Path, seed: int = 0) -> Path:
    """The same as a checkpoint folder."""
    target = tiny_target(seed=seed)
    target.model.save_pretrained(folder)
    target.processor.save_pretrained(folder)
    return folder


def picture(seed: int = 0, size: tuple[int, int] = (192, 96)) -> Image.Image:
    """Coloured noise."""
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 255, (size[1], size[0], 3), dtype=np.uint8))
