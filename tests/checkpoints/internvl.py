"""InternVL in transformers' layout, as published with `-hf` behind the name."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import InternVLForConditionalGeneration

from checkpoints import Family
from checkpoints._parts import (
    language,
    write_byte_tokenizer,
    write_generation,
    write_json,
    write_model,
)

NAMES = [
    (r"model\.language_model\.", "language_model.model."),
    (r"lm_head\.", "language_model.lm_head."),
    (r"model\.", ""),
]
PATCH, TILE = 7, 28
SLOTS = (TILE // PATCH // 2) ** 2  # of a tile

ADDED = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"),
    *("<quad>", "</quad>", "<ref>", "</ref>", "<box>", "</box>", "<video>"),
]

TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{ '<IMG_CONTEXT>\\n' }}
{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


def build(folder: Path, *, decoder: str = "qwen2") -> None:
    """A checkpoint with this language model."""
    named = {
        "context_image_token": "<IMG_CONTEXT>",
        "end_image_token": "</img>",
        "start_image_token": "<img>",
        "video_token": "<video>",
    }
    size = write_byte_tokenizer(
        folder,
        ADDED,
        additional_special_tokens=ADDED[3:],
        eos_token="<|im_end|>",
        extra_special_tokens=named,
        pad_token="<|endoftext|>",
        **named,
    )
    first = size - len(ADDED)
    write_generation(folder, eos_token_id=[first + 2, first], pad_token_id=first)
    config = {
        "architectures": ["InternVLForConditionalGeneration"],
        "downsample_ratio": 0.5,
        "image_seq_length": SLOTS,
        "image_token_id": first + ADDED.index("<IMG_CONTEXT>"),
        "model_type": "internvl",
        "projector_hidden_act": "gelu",
        "text_config": language(
            decoder, -(-size // 64) * 64, tie_word_embeddings=False, **_decoder(decoder)
        ),
        "torch_dtype": "float32",
        "vision_config": _tower(),
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
    }
    own_head = {**config, "tie_word_embeddings": False}
    write_model(folder, own_head, InternVLForConditionalGeneration, NAMES)
    write_json(folder / "config.json", config)  # the published ones say it of the decoder alone
    write_json(folder / "preprocessor_config.json", _preprocessor())
    video = {"processor_class": "InternVLProcessor", "size": {"height": TILE, "width": TILE}}
    video["video_processor_type"] = "InternVLVideoProcessor"
    write_json(folder / "video_preprocessor_config.json", video)
    write_json(
        folder / "processor_config.json",
        {"image_seq_length": SLOTS, "processor_class": "InternVLProcessor"},
    )
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")


def _decoder(kind: str) -> dict[str, Any]:
    if kind != "qwen2":
        return {"head_dim": 16, "sliding_window": None}
    return {
        "max_window_layers": 1,
        "rope_scaling": {"factor": 2.0, "rope_type": "dynamic", "type": "dynamic"},
        "rope_theta": 10000.0,
        "sliding_window": 32768,
        "use_sliding_window": False,
    }


def _tower() -> dict[str, Any]:
    return {
        "attention_bias": True,
        "attention_dropout": 0.0,
        "dropout": 0.0,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": 32,
        "image_size": [TILE, TILE],
        "intermediate_size": 48,
        "layer_norm_eps": 1e-06,
        "layer_scale_init_value": 0.1,
        "model_type": "internvl_vision",
        "norm_type": "layer_norm",
        "num_attention_heads": 2,
        "num_channels": 3,
        "num_hidden_layers": 2,
        "patch_size": [PATCH, PATCH],
        "projection_dropout": 0.0,
        "use_absolute_position_embeddings": True,
        "use_mask_token": False,
        "use_mean_pooling": True,
        "use_qk_norm": False,
    }


def _preprocessor() -> dict[str, Any]:
    return {
        "crop_to_patches": False,  # the family's processor cuts all the same
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.485, 0.456, 0.406],
        "image_processor_type": "GotOcr2ImageProcessorFast",
        "image_std": [0.229, 0.224, 0.225],
        "max_patches": 6,
        "min_patches": 1,
        "processor_class": "InternVLProcessor",
        "resample": 3,
        "rescale_factor": 1 / 255,
        "size": {"height": TILE, "width": TILE},
    }


def _variant(decoder: str) -> Family:
    build_it = partial(build, decoder=decoder)
    return Family(build=build_it, target="internvl", typed=TYPED, is_variant=True)


TYPED = "<IMG_CONTEXT> in <img> and </img> or <video> <|im_end|>"
FAMILIES = {
    "internvl": Family(build=build, target="internvl", typed=TYPED),
    "internvl-llama": _variant("llama"),
    "internvl-qwen3": _variant("qwen3"),
}
