"""Build, export and load the small LLaVA-NeXT model that the demo trains."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from transformers import (
    AutoModel,
    CLIPVisionConfig,
    CLIPVisionModel,
    GenerationConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
    PreTrainedTokenizerFast,
)
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from varifocal.demo.labels import PATCH, SIDE, TILE

MEAN = STD = 0.5  # of the pixel values, all three channels

# (height, width); the last two only serve pictures that a user brings along.
GRIDS = [(96, 192), (192, 96), (192, 192), (96, 288), (288, 96), (288, 288), (384, 384)]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of the model."""

    tower_layers: int = 6
    tower_width: int = 192
    tower_inner: int = 768  # width inside a feed-forward block of the tower
    tower_heads: int = 3
    layers: int = 8  # decoder layers; `grow` doubles them
    width: int = 256
    inner: int = 704
    heads: int = 4
    positions: int = 4096  # longest sequence


def tower_config(shape: Shape) -> CLIPVisionConfig:
    """The configuration of the vision tower."""
    config = CLIPVisionConfig(
        hidden_size=shape.tower_width,
        intermediate_size=shape.tower_inner,
        num_hidden_layers=shape.tower_layers,
        num_attention_heads=shape.tower_heads,
        image_size=TILE,
        patch_size=PATCH,
        hidden_act="gelu",
        projection_dim=shape.tower_width,
    )
    config._attn_implementation = "eager"  # SDPA on a CPU costs 42 % of a step at these lengths
    return config


def new_tower(shape: Shape, seed: int) -> CLIPVisionModel:
    """A vision tower with random weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tower = AutoModel.from_config(tower_config(shape))
    assert isinstance(tower, CLIPVisionModel)
    return tower.float()


def model_config(shape: Shape, tokenizer: PreTrainedTokenizerFast) -> LlavaNextConfig:
    """The configuration of the demo model for this vocabulary."""
    special = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=False,
        **special,
    )
    config = LlavaNextConfig(
        vision_config=tower_config(shape),
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,  # the class's default, -2, drops the last trained layer
        vision_feature_select_strategy="default",
        image_grid_pinpoints=[list(grid) for grid in GRIDS],
        image_seq_length=SIDE * SIDE,
        tie_word_embeddings=False,  # only the top-level flag is heeded
        **special,
    )
    config._attn_implementation = "eager"  # for the reason given above
    return config


def new_model(
    shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int
) -> LlavaNextForConditionalGeneration:
    """A model with random weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlavaNextForConditionalGeneration(model_config(shape, tokenizer))
    return model.float()


def new_processor(tokenizer: PreTrainedTokenizerFast) -> LlavaNextProcessor:
    """The processor that cuts a picture into the views which training used."""
    pictures = LlavaNextImageProcessorPil(
        size={"height": TILE, "width": TILE},
        crop_size={"height": TILE, "width": TILE},
        do_center_crop=False,
        image_mean=[MEAN] * 3,
        image_std=[STD] * 3,
        image_grid_pinpoints=[list(grid) for grid in GRIDS],
    )
    return LlavaNextProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,  # CLS, which the strategy "default" drops again
        chat_template=tokenizer.chat_template,
    )


def to_pixels(views: UInt8[Tensor, "B H W 3"]) -> Float[Tensor, "B 3 H W"]:
    """What the processor makes of views."""
    return views.permute(0, 3, 1, 2).float().div(255).sub(MEAN).div(STD)


def encode_views(tower: nn.Module, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B P D"]:
    """Features of the P patches of each view.

    The same numbers as the tower's `hidden_states[-1]` without CLS, but without the hooks that
    would collect every layer.
    """
    parts: Any = getattr(tower, "vision_model", tower)
    hidden: Tensor = parts.pre_layrnorm(parts.embeddings(pixels))
    for layer in parts.encoder.layers:
        hidden = layer(hidden, attention_mask=None)
    return hidden[:, 1:]


def export(
    model: LlavaNextForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, out: Path
) -> None:
    """Write a folder that plain `from_pretrained` loads: fp16 weights, processor, tokenizer.

    The folder is complete before it gets its name, so a reader never sees half of one.
    """
    fresh = out.with_name(out.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    half = LlavaNextForConditionalGeneration(model.config)
    half.load_state_dict(model.state_dict())
    half = half.to(torch.float16).eval()
    half.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=False
    )
    half.save_pretrained(fresh)
    new_processor(tokenizer).save_pretrained(fresh)
    for file in fresh.iterdir():
        file.chmod(0o644)  # safetensors makes its file private, which a package must not be
    stale = out.with_name(out.name + ".old")
    shutil.rmtree(stale, ignore_errors=True)
    if out.exists():
        out.rename(stale)
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh.rename(out)
    shutil.rmtree(stale, ignore_errors=True)
