"""DFlash as its authors publish it, and DSpark, which adds a term of the token before."""

from typing import Any

import torch

from varifocal.drafters._published.facts import Facts
from varifocal.drafters._published.files import Checkpoint
from varifocal.drafters._published.layers import taps_of_outputs
from varifocal.drafters._published.table import Entry, Reading, layer
from varifocal.errors import DrafterMismatch
from varifocal.target import Target

_MARKOV = "markov_head.markov_w1.weight"
_NEUTRAL = {"input_embedding_scale": 1.0, "output_multiplier": 1.0, "final_logit_softcapping": 0}


def read(checkpoint: Checkpoint, target: Target) -> Reading:
    """A block of masks; its config calls a layer by its output, counted from 0."""
    facts, inner = Facts(checkpoint), _settings_of(checkpoint)
    width = facts.size("fc.weight", 0)
    facts.check_width(width, target)
    facts.check_vocabulary(target)
    _refuse_what_ours_lacks(facts, inner)
    is_dspark = facts.has(_MARKOV) or "DSpark" in str(checkpoint.config.get("architectures"))
    size = int(inner.get("block_size", 16))
    taps = taps_of_outputs(facts, target, inner.get("target_layer_ids"))
    if width * len(taps) != facts.size("fc.weight", 1):
        checkpoint.refuse(
            f"its fc reads {facts.size('fc.weight', 1)} columns, and {len(taps)} layers of width "
            f"{width} are {width * len(taps)}"
        )
    ahead = size if is_dspark else size - 1  # DSpark's first row predicts too
    blocks = facts.count("layers")
    facts.agree("num_hidden_layers", blocks, f"it has {blocks} layers")
    bias = facts.there("layers.0.self_attn.q_proj.bias", "attention_bias")
    rank = facts.size(_MARKOV, 1) if facts.has(_MARKOV) else 0
    facts.agree("markov_rank", rank, f"{_MARKOV} has {rank} columns")
    head_width = facts.size("layers.0.self_attn.q_norm.weight", 0)
    return Reading(
        layout="DSpark" if is_dspark else "DFlash",
        drafter="block",
        settings={
            **facts.block("layers.0.self_attn", "layers.0.mlp", head_width=head_width),
            "blocks": blocks,
            "bias": bias,
            "theta": facts.theta(one_axis=True),
            "taps": taps,
            "ahead": ahead,
            "depth": min(8, ahead),
            "from_root": is_dspark,
            "causal": bool(inner.get("is_causal")),
            "head_norms": True,
            "rank": rank,
        },
        entries=_entries(blocks, bias=bias, has_markov=rank > 0),
        unneeded=(r"embed_tokens\.weight", r"lm_head\.weight", r"confidence_head\..*"),
        added={"mask": _mask(facts, inner.get("mask_token_id"), target)},
        notes="The head that guesses how much of a block will be accepted was left out."
        if any(name.startswith("confidence_head.") for name in checkpoint.tensors)
        else "",
    )


def _settings_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Those of the method, in a part of their own or beside the others."""
    return {**checkpoint.config, **checkpoint.config.get("dflash_config", {})}


def _refuse_what_ours_lacks(facts: Facts, inner: dict[str, Any]) -> None:
    checkpoint = facts.checkpoint
    for name, neutral in _NEUTRAL.items():
        if (said := inner.get(name)) is not None and float(said) != neutral:
            checkpoint.refuse(f"it has {name}={said}, which is not supported")
    if "sliding_attention" in (inner.get("layer_types") or ()):
        checkpoint.refuse("its layers read a sliding window of the context, and ours all of it")
    if str(inner.get("markov_head_type", "vanilla")) != "vanilla":
        checkpoint.refuse(
            f"its Markov head is {inner['markov_head_type']!r}, and ours is the plain one (vanilla)"
        )


def _entries(blocks: int, *, bias: bool, has_markov: bool) -> list[Entry]:
    entries = [
        Entry("fuse.weight", ("fc.weight",)),
        Entry("context_norm.weight", ("hidden_norm.weight",)),
        Entry("norm.weight", ("norm.weight",)),
    ]
    for n in range(blocks):
        ours, theirs = f"blocks.{n}", f"layers.{n}"
        entries += layer(ours, theirs, bias=bias)
        for kind, name in (("query", "q"), ("key", "k")):
            norm = f"{theirs}.self_attn.{name}_norm.weight"
            entries.append(Entry(f"{ours}.{kind}_norm.weight", (norm,)))
    if has_markov:
        entries += [
            Entry("markov_embed.weight", (_MARKOV,)),
            Entry("markov_head.weight", ("markov_head.markov_w2.weight",)),
        ]
    return entries


def _mask(facts: Facts, token: Any, target: Target) -> torch.Tensor:
    """What stands for a coming token: the target's embedding of the id reserved for it."""
    if token is None:
        facts.checkpoint.refuse("its config lacks mask_token_id")
    if not 0 <= int(token) < target.vocab_size:
        raise DrafterMismatch(
            f"{facts.checkpoint.name} masks with the token {token}, and {target.name!r} has "
            f"{target.vocab_size} tokens. Load it with the target that it was trained for"
        )
    if facts.has("lm_head.weight"):
        facts.check_same("lm_head.weight", lambda rows: _head_rows(target, rows), target)
    row = target.embed(torch.tensor([int(token)], device=target.device))[0]
    return row.detach().float().cpu()


def _head_rows(target: Target, rows: torch.Tensor) -> torch.Tensor:
    weight = target.readout.weight
    assert isinstance(weight, torch.Tensor)
    return weight[rows]
