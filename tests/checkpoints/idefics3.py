"""Idefics3 as SmolVLM is published, and SmolVLM2."""

from functools import partial
from pathlib import Path

from transformers import (
    AutoImageProcessor,
    AutoTokenizer,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    SmolVLMForConditionalGeneration,
)

from checkpoints import Family
from checkpoints._parts import (
    language,
    write_byte_tokenizer,
    write_generation,
    write_json,
    write_model,
)

PATCH, TILE, SCALE = 4, 24, 2
LONGEST = 3 * TILE

ADDED = [
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)),
    *("<fake_token_around_image>", "<image>", "<end_of_utterance>"),
]

TEMPLATE = """\
{{- '<|im_start|>' -}}
{%- for message in messages -%}
{{ message['role'] | capitalize + ':' }}
{%- if message['content'][0]['type'] != 'image' -%}{{ ' ' }}{%- endif -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'image' -%}{{ '<image>' }}{%- else -%}{{ part['text'] }}{%- endif -%}
{%- endfor -%}
{{ '<end_of_utterance>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"""


def build(folder: Path, *, is_newer: bool = False, decoder: str = "llama") -> None:
    """SmolVLM (an Idefics3), or SmolVLM2."""
    kind = "SmolVLM" if is_newer else "Idefics3"
    model_class = SmolVLMForConditionalGeneration if is_newer else Idefics3ForConditionalGeneration
    settings = {
        "bos_token": "<|im_start|>",
        "eos_token": "<end_of_utterance>",
        "pad_token": "<|im_end|>",
        "tokenizer_class": "GPT2Tokenizer",
        "unk_token": "<|endoftext|>",
    }
    size = write_byte_tokenizer(folder, ADDED, **settings)
    ids = {"bos_token_id": size - len(ADDED) + 1, "pad_token_id": size - len(ADDED) + 2}
    write_generation(folder, eos_token_id=size - 1, **ids)
    text = language(decoder, size, sliding_window=None, tie_word_embeddings=False, **ids)
    config = {
        "architectures": [model_class.__name__],
        "image_token_id": size - 2,
        "model_type": kind.lower(),
        "scale_factor": SCALE,
        "text_config": text,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "use_cache": True,
        "vision_config": {
            "hidden_size": 32,
            "image_size": TILE,
            "intermediate_size": 48,
            "max_image_size": {"longest_edge": TILE},
            "model_type": "smolvlm_vision" if is_newer else "idefics3",
            "num_attention_heads": 2,
            "num_hidden_layers": 2,
            "patch_size": PATCH,
            "size": {"longest_edge": LONGEST},
            "tie_word_embeddings": False,
            "use_base_siglip": False,
        },
        "vocab_size": size,
    }
    write_model(folder, config, model_class, [])
    write_json(
        folder / "preprocessor_config.json",
        {
            "do_convert_rgb": True,
            "do_image_splitting": True,
            "do_normalize": True,
            "do_pad": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5] * 3,
            "image_processor_type": f"{kind}ImageProcessor",
            "image_std": [0.5] * 3,
            "max_image_size": {"longest_edge": TILE},
            "processor_class": f"{kind}Processor",
            "resample": 1,
            "rescale_factor": 1 / 255,
            "size": {"longest_edge": LONGEST},
        },
    )
    slots = (TILE // PATCH // SCALE) ** 2
    write_json(
        folder / "processor_config.json",
        {"image_seq_len": slots, "processor_class": f"{kind}Processor"},
    )
    write_json(folder / "chat_template.json", {"chat_template": TEMPLATE})


def processor(folder: Path) -> Idefics3Processor:
    """Of SmolVLM2, whose own class asks for a video processor even where it renders text.

    Both classes say a picture in the same way.
    """
    images, tokenizer = (k.from_pretrained(folder) for k in (AutoImageProcessor, AutoTokenizer))
    slots = (TILE // PATCH // SCALE) ** 2
    return Idefics3Processor(images, tokenizer, image_seq_len=slots, chat_template=TEMPLATE)


TYPED = "<image> or <fake_token_around_image><global-img> <row_1_col_1><end_of_utterance>"
FAMILIES = {
    "idefics3": Family(build=build, target="idefics3", typed=TYPED),
    "smolvlm": Family(
        build=partial(build, is_newer=True), target="idefics3", typed=TYPED, reference=processor
    ),
}
