"""Qwen2-VL and Qwen2.5-VL, whose configurations are flat and whose towers lie beside the model."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2VLForConditionalGeneration

from checkpoints import Family
from checkpoints._parts import (
    language,
    write_byte_tokenizer,
    write_generation,
    write_json,
    write_model,
)

NAMES = [(r"model\.language_model\.", "model."), (r"model\.visual\.", "visual.")]
PATCH, MERGE = 14, 2
SQUARE = PATCH * MERGE  # pixels of a visual token
MIN_PIXELS, MAX_PIXELS = 4 * SQUARE**2, 16 * SQUARE**2

ADDED = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
]
TYPED = "<|image_pad|> and <|vision_start|> or <|video_pad|> <|im_end|>"


def chat_template(system: str = "") -> str:
    """ChatML with framed pictures; `system` is said where the conversation says nothing."""
    return (
        "{%- for message in messages -%}"
        + (
            "{%- if loop.first and message['role'] != 'system' -%}"
            f"{{{{ '<|im_start|>system\\n{system}<|im_end|>\\n' }}}}"
            "{%- endif -%}"
            if system
            else ""
        )
        + """{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{ '<|vision_start|><|image_pad|><|vision_end|>' }}
{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""
    )


def write_tokenizer(folder: Path) -> tuple[int, dict[str, Any]]:
    """Tokenizer and generation settings; the padded vocabulary and the ids of configurations."""
    size = write_byte_tokenizer(
        folder, ADDED, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=131072
    )
    first = size - len(ADDED)
    ids = {token: first + k for k, token in enumerate(ADDED)}
    ends = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    write_generation(folder, eos_token_id=ends, pad_token_id=ids["<|endoftext|>"])
    names = {
        "image_token_id": "<|image_pad|>",
        "video_token_id": "<|video_pad|>",
        "vision_end_token_id": "<|vision_end|>",
        "vision_start_token_id": "<|vision_start|>",
    }
    return -(-size // 64) * 64, {key: ids[token] for key, token in names.items()}


def build(folder: Path, *, is_newer: bool = True, **settings: Any) -> None:
    """A Qwen2.5-VL, or a Qwen2-VL; `settings` are of the language model."""
    vocab_size, ids = write_tokenizer(folder)
    model_class = (
        Qwen2_5_VLForConditionalGeneration if is_newer else Qwen2VLForConditionalGeneration
    )
    config = {
        "architectures": [model_class.__name__],
        "attention_dropout": 0.0,
        "bos_token_id": ids["image_token_id"] - 6,
        "eos_token_id": ids["image_token_id"] - 4,
        "max_window_layers": 1,
        "rope_scaling": {"mrope_section": [2, 3, 3], "type": "mrope"},
        "rope_theta": 10000.0,
        "sliding_window": 32768,
        "tie_word_embeddings": not is_newer,
        "torch_dtype": "float32",
        "use_cache": True,
        "use_sliding_window": False,
        "vision_token_id": ids["image_token_id"] - 1,
        **ids,
        **language("", vocab_size),
        **settings,
        "model_type": "qwen2_5_vl" if is_newer else "qwen2_vl",
        "vision_config": _newer_tower() if is_newer else _older_tower(),
    }
    write_model(folder, config, model_class, NAMES)
    name = model_class.__name__.removesuffix("ForConditionalGeneration")
    write_json(
        folder / "preprocessor_config.json",
        {
            "image_mean": [0.48145466, 0.4578275, 0.40821073],
            "image_processor_type": "Qwen2VLImageProcessor",
            "image_std": [0.26862954, 0.26130258, 0.27577711],
            "max_pixels": MAX_PIXELS,
            "merge_size": MERGE,
            "min_pixels": MIN_PIXELS,
            "patch_size": PATCH,
            "processor_class": f"{name}Processor",
            "temporal_patch_size": 2,
        },
    )
    template = chat_template("You are a helpful assistant.")
    write_json(folder / "chat_template.json", {"chat_template": template})


def _newer_tower() -> dict[str, Any]:
    return {
        "depth": 2,
        "fullatt_block_indexes": [1],
        "hidden_act": "silu",
        "hidden_size": 32,
        "in_chans": 3,
        "intermediate_size": 48,
        "model_type": "qwen2_5_vl",
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "spatial_patch_size": PATCH,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "window_size": 2 * SQUARE,
    }


def _older_tower() -> dict[str, Any]:
    return {
        "depth": 2,
        "embed_dim": 32,
        "hidden_size": 64,
        "in_chans": 3,
        "mlp_ratio": 2,
        "model_type": "qwen2_vl",
        "num_heads": 2,
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "spatial_patch_size": PATCH,
        "temporal_patch_size": 2,
    }


FAMILIES = {
    "qwen2_5_vl": Family(build=build, target="qwen2_vl", typed=TYPED),
    "qwen2_vl": Family(build=partial(build, is_newer=False), target="qwen2_vl", typed=TYPED),
}
