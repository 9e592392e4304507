"""Tiny models of transformers that attend sparsely, and how they decode."""

import inspect

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from varifocal.sparse import Reach
from varifocal.sparse.huggingface import SparseCache, use
from varifocal.sparse.indexer import Indexer, IndexerConfig

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": None,
    "bos_token_id": 0,
    "pad_token_id": 0,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SMALL = Reach(budget=8, first=2, recent=4)
PROMPT = torch.arange(40)[None] * 7 % 97
KEYWORD = (
    "cache"
    if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    else "past_key_values"
)


def tiny(family="llama", **changes) -> PreTrainedModel:
    torch.manual_seed(3)
    config, cls = FAMILIES[family]
    return cls(config(**SIZES | changes)).eval().double()


def random_indexer(**changes) -> Indexer:
    torch.manual_seed(5)
    sizes = {"num_layers": 2, "hidden_size": 32, "heads": 3, "width": 6, "rotary": 4}
    return Indexer(IndexerConfig(**sizes | changes)).requires_grad_(requires_grad=False)


def sparse(family="llama", reach=SMALL, **options) -> tuple[PreTrainedModel, SparseCache]:
    model = tiny(family)
    use(model)
    if options.get("selector", "quest").startswith("lightning"):
        options.setdefault("indexer", random_indexer())
    return model, SparseCache(model, reach, block_size=4, **options)


def generated(model, cache, tokens=PROMPT, **options):
    given = {} if cache is None else {KEYWORD: cache}
    return model.generate(
        tokens,
        attention_mask=options.pop("attention_mask", torch.ones_like(tokens)),
        max_new_tokens=12,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        **given,
        **options,
    )
