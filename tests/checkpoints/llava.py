"""LLaVA-1.5 and its relatives, as `llava-hf` publishes them."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import LlavaForConditionalGeneration

from checkpoints import Family
from checkpoints._parts import (
    BYTES,
    language,
    write_byte_tokenizer,
    write_generation,
    write_json,
    write_llama_tokenizer,
    write_model,
)

# transformers' names today -> names in the published files.
NAMES = [
    (r"model\.language_model\.", "language_model.model."),
    (r"lm_head\.", "language_model.lm_head."),
    (r"model\.vision_tower\.", "vision_tower.vision_model."),
    (r"model\.", ""),
]
SENTENCEPIECE = ("llama", "mistral")  # language models with such a tokenizer
PATCH, SIDE = 14, 56  # pixels of a patch and of the picture that the tower reads

VICUNA_TEMPLATE = """\
{%- for message in messages -%}
{%- if message['role'] != 'system' -%}{{ message['role'] | upper }}{{ ': ' }}{%- endif -%}
{%- for part in message['content'] if part['type'] == 'image' -%}{{ '<image>\\n' }}{%- endfor -%}
{%- for part in message['content'] if part['type'] == 'text' -%}
{{ part['text'] }}{{ ' ' }}
{%- endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}"""

CHATML_TEMPLATE = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['content'] is string -%}{{ message['content'] }}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{ '<image>\\n' }}{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"""


def tower(kind: str) -> dict[str, Any]:
    """Keys of a small tower's configuration, `clip` or `siglip`."""
    config = {
        "hidden_size": 32,
        "image_size": SIDE,
        "intermediate_size": 48,
        "model_type": f"{kind}_vision_model",
        "num_attention_heads": 2,
        "num_hidden_layers": 3,
        "patch_size": PATCH,
    }
    return config | ({"projection_dim": 32, "vocab_size": 1000} if kind == "clip" else {})


def write_tokenizer(folder: Path, kind: str) -> tuple[int, dict[str, Any]]:
    """Tokenizer, chat template and generation settings of a language model.

    Its vocabulary padded to a multiple of 64, and the ids that configurations name.
    """
    if kind in SENTENCEPIECE:
        size = write_llama_tokenizer(folder, ["<image>", "<pad>"], image_token="<image>")
        ids = {"image_token_index": size - 2, "pad_token_id": size - 1}
        write_json(folder / "chat_template.json", {"chat_template": VICUNA_TEMPLATE})
        write_generation(folder, bos_token_id=1, eos_token_id=2, pad_token_id=size - 1)
    else:
        added = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>"]
        size = write_byte_tokenizer(
            folder, added, eos_token="<|im_end|>", pad_token="<|endoftext|>", image_token="<image>"
        )
        ids = {"image_token_index": size - 2, "pad_token_id": size - 5}
        write_json(folder / "chat_template.json", {"chat_template": CHATML_TEMPLATE})
        ends = [size - 3, size - 5]
        write_generation(folder, eos_token_id=ends, pad_token_id=size - 5)
    return -(-size // 64) * 64, ids


def build(
    folder: Path,
    *,
    decoder: str = "llama",
    eyes: str = "clip",
    strategy: str = "default",
    layer: int | list[int] = -2,
) -> None:
    """A checkpoint with this language model, this tower, and features of this layer or layers."""
    vocab_size, ids = write_tokenizer(folder, decoder)
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "ignore_index": -100,
        "model_type": "llava",
        "projector_hidden_act": "gelu",
        "text_config": language(decoder, vocab_size, **no_window(decoder)),
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vision_config": tower(eyes),
        "vision_feature_layer": layer,
        "vision_feature_select_strategy": strategy,
        "vocab_size": vocab_size,
        **ids,
    }
    write_model(folder, config, LlavaForConditionalGeneration, NAMES, unsaid(decoder))
    write_json(folder / "preprocessor_config.json", _preprocessor(eyes))
    write_json(
        folder / "processor_config.json",
        {
            "image_token": "<image>",
            "num_additional_image_tokens": int(eyes == "clip"),
            "patch_size": PATCH,
            "processor_class": "LlavaProcessor",
            "vision_feature_select_strategy": strategy,
        },
    )


def unsaid(decoder: str) -> range:
    """Ids that a model with this tokenizer does not say."""
    return BYTES if decoder in SENTENCEPIECE else range(0)


def no_window(decoder: str) -> dict[str, Any]:
    """Mistral from v0.2 on has none."""
    return {"sliding_window": None} if decoder == "mistral" else {}


def _preprocessor(eyes: str) -> dict[str, Any]:
    common = {"do_normalize": True, "do_rescale": True, "do_resize": True, "resample": 3}
    if eyes == "siglip":
        return common | {
            "image_mean": [0.5] * 3,
            "image_processor_type": "SiglipImageProcessor",
            "image_std": [0.5] * 3,
            "processor_class": "LlavaProcessor",
            "size": {"height": SIDE, "width": SIDE},
        }
    return common | {
        "crop_size": {"height": SIDE, "width": SIDE},
        "do_center_crop": True,
        "do_convert_rgb": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_processor_type": "CLIPImageProcessor",
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "processor_class": "LlavaProcessor",
        "rescale_factor": 1 / 255,
        "size": {"shortest_edge": SIDE},
    }


def _variant(**settings: Any) -> Family:
    return Family(build=partial(build, **settings), target="llava", is_variant=True)


FAMILIES = {
    "llava": Family(build=build, target="llava"),
    "llava-clip-full": _variant(strategy="full", layer=[-2, -1]),
    "llava-siglip-full": _variant(eyes="siglip", strategy="full", layer=-1, decoder="qwen2"),
    "llava-siglip-default": _variant(eyes="siglip", layer=[1, -1], decoder="qwen3"),
    "llava-mistral": _variant(decoder="mistral"),
}
