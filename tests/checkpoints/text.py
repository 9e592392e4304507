"""Models that read text only, as they are published."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer

from checkpoints import Family
from checkpoints._parts import (
    BYTES,
    language,
    write_byte_tokenizer,
    write_generation,
    write_llama_tokenizer,
    write_model,
)

# Content is a string here, and the template writes the begin token itself.
TEMPLATE = """\
{{- bos_token or '' -}}
{%- for message in messages -%}
{{ '<|' + message['role'] + '|>\\n' + message['content'] + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\\n' }}{%- endif -%}"""

SENTENCEPIECE = ("llama", "mistral", "phi3")  # with such a tokenizer

# What each writes into its config.json beside the common keys.
KINDS: dict[str, dict[str, Any]] = {
    "llama": {"mlp_bias": False, "attention_bias": False, "rope_theta": 10000.0},
    "mistral": {"sliding_window": None, "rope_theta": 1000000.0},
    "olmo2": {"rope_theta": 500000, "num_key_value_heads": 4},
    "phi3": {"sliding_window": None, "partial_rotary_factor": 1.0, "resid_pdrop": 0.0},
    "qwen2": {"use_sliding_window": False, "sliding_window": 32768, "max_window_layers": 3},
    "qwen3": {"use_sliding_window": False, "head_dim": 32, "tie_word_embeddings": True},
    "smollm3": {"no_rope_layer_interval": 2, "tie_word_embeddings": True},
}


def build(folder: Path, *, kind: str) -> None:
    """A checkpoint of this model type."""
    template = {"chat_template": TEMPLATE}
    unsaid = BYTES if kind in SENTENCEPIECE else range(0)
    if kind in SENTENCEPIECE:
        size = write_llama_tokenizer(folder, ["<|user|>", "<|assistant|>"], **template)
        ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    else:
        added = ["<|endoftext|>", "<|user|>", "<|assistant|>"]
        size = write_byte_tokenizer(
            folder, added, eos_token="<|endoftext|>", pad_token="<|endoftext|>", **template
        )
        ids = {"bos_token_id": None, "eos_token_id": size - 3, "pad_token_id": size - 3}
    write_generation(folder, **ids)
    shape = language(kind, -(-size // 64) * 64, tie_word_embeddings=False)
    config = {"torch_dtype": "float32", "use_cache": True, **ids, **shape, **KINDS[kind]}
    write_model(folder, config, AutoModelForCausalLM.from_config, [], unsaid)


FAMILIES = {
    f"text-{kind}": Family(
        build=partial(build, kind=kind),
        target="text",
        max_pictures=0,
        reference=AutoTokenizer.from_pretrained,
        typed="<|user|> or </s>" if kind in SENTENCEPIECE else "<|endoftext|>",
        is_variant=kind != "llama",
    )
    for kind in KINDS
}
