"""Tiny random checkpoints in the layouts in which LLaDA and Dream are published."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from diffusion.tiny import END, MASK, SPECIAL, TURN, Kind, byte_tokenizer
from safetensors.torch import save_file
from torch import Tensor

LAYERS, HIDDEN, INNER, HEADS, VOCAB = 2, 32, 48, 4, 304

# Every key of the published config.json that says something about the model, with small sizes.
LLADA: dict[str, Any] = {
    "activation_type": "silu",
    "alibi": False,
    "alibi_bias_max": 8.0,
    "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0,
    "attention_layer_norm": False,
    "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"},
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": HIDDEN,
    "embedding_size": VOCAB,
    "flash_attention": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "max_sequence_length": 128,
    "mlp_hidden_size": INNER,
    "mlp_ratio": 4,
    "model_type": "llada",
    "multi_query_attention": None,
    "n_heads": HEADS,
    "n_kv_heads": HEADS,
    "n_layers": LAYERS,
    "precision": "amp_bf16",
    "rms_norm_eps": 1e-05,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500000.0,
    "scale_logits": False,
    "transformers_version": "4.46.3",
    "use_cache": False,
    "vocab_size": VOCAB,
    "weight_tying": False,
}
DREAM: dict[str, Any] = {
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoModel": "modeling_dream.DreamModel"},
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "initializer_range": 0.02,
    "intermediate_size": INNER,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "model_type": "Dream",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.46.2",
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": VOCAB,
}


def published_ids(kind: Kind) -> dict[str, int]:
    """Of the special tokens: Dream, like Qwen2, has them behind all words."""
    begin = 0 if kind == "llada" else len(byte_tokenizer()) - len(SPECIAL)
    return {token: begin + i for i, token in enumerate(SPECIAL)}


def published_config(kind: Kind) -> dict[str, Any]:
    """With the ids of the tests' tokenizer."""
    ids = published_ids(kind)
    given = {"mask_token_id": ids[MASK], "pad_token_id": ids[END], "eos_token_id": ids[END]}
    return (LLADA if kind == "llada" else DREAM) | given


def published_tensors(kind: Kind, seed: int = 0) -> dict[str, Tensor]:
    """Random weights under the published names."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "llada":
        inside = {
            "q_proj.weight": (HIDDEN, HIDDEN),
            "k_proj.weight": (HIDDEN, HIDDEN),
            "v_proj.weight": (HIDDEN, HIDDEN),
            "attn_out.weight": (HIDDEN, HIDDEN),
            "ff_proj.weight": (INNER, HIDDEN),
            "up_proj.weight": (INNER, HIDDEN),
            "ff_out.weight": (HIDDEN, INNER),
            "attn_norm.weight": (HIDDEN,),
            "ff_norm.weight": (HIDDEN,),
        }
        names = {
            f"model.transformer.blocks.{layer}.{name}": shape
            for layer in range(LAYERS)
            for name, shape in inside.items()
        } | {
            "model.transformer.wte.weight": (VOCAB, HIDDEN),
            "model.transformer.ln_f.weight": (HIDDEN,),
            "model.transformer.ff_out.weight": (VOCAB, HIDDEN),
        }
    else:
        inside = {
            "self_attn.q_proj.weight": (HIDDEN, HIDDEN),
            "self_attn.q_proj.bias": (HIDDEN,),
            "self_attn.k_proj.weight": (HIDDEN // 2, HIDDEN),
            "self_attn.k_proj.bias": (HIDDEN // 2,),
            "self_attn.v_proj.weight": (HIDDEN // 2, HIDDEN),
            "self_attn.v_proj.bias": (HIDDEN // 2,),
            "self_attn.o_proj.weight": (HIDDEN, HIDDEN),
            "mlp.gate_proj.weight": (INNER, HIDDEN),
            "mlp.up_proj.weight": (INNER, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INNER),
            "input_layernorm.weight": (HIDDEN,),
            "post_attention_layernorm.weight": (HIDDEN,),
        }
        names = {
            f"model.layers.{layer}.{name}": shape
            for layer in range(LAYERS)
            for name, shape in inside.items()
        } | {
            "model.embed_tokens.weight": (VOCAB, HIDDEN),
            "model.norm.weight": (HIDDEN,),
            "lm_head.weight": (VOCAB, HIDDEN),
        }
    made = {n: torch.randn(shape, generator=generator) for n, shape in names.items()}
    return {n: t if t.dim() == 1 else t * 2 * t.shape[1] ** -0.5 for n, t in made.items()}


def write_published(
    folder: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    shards: int = 1,
) -> Path:
    """As one finds it on the hub; several shards come with their index."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    if shards == 1:
        save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    else:
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        placed = {name: files[i % shards] for i, name in enumerate(names)}
        for file in files:
            save_file({n: tensors[n] for n in names if placed[n] == file}, folder / file)
        index = {"metadata": {"total_size": 0}, "weight_map": placed}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    if config.get("model_type") == "Dream":
        _write_dream_tokenizer(folder)
    else:
        byte_tokenizer().save_pretrained(folder)
    return folder


def _write_dream_tokenizer(folder: Path) -> None:
    """Dream has no tokenizer.json: Qwen2's files, and a class that only its own code knows."""
    state = json.loads(byte_tokenizer().backend_tokenizer.to_str())
    vocabulary = sorted(state["model"]["vocab"].items(), key=lambda item: item[1])
    words = {word: i for i, (word, _) in enumerate(w for w in vocabulary if w[0] not in SPECIAL)}
    special = published_ids("dream")
    (folder / "vocab.json").write_text(json.dumps(words))
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n")
    known = {
        str(i): {"content": word, "special": True, "normalized": False, "lstrip": False,
                 "rstrip": False, "single_word": False}
        for word, i in special.items()
    }  # fmt: skip
    settings = {
        "added_tokens_decoder": known,
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "tokenizer_class": "DreamTokenizer",
        "eos_token": END,
        "pad_token": END,
        "mask_token": MASK,
        "additional_special_tokens": [TURN],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
