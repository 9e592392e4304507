"""EAGLE-1 and EAGLE-2, and MSD, whose tensors have the same names."""

from typing import Any

from varifocal.drafters._published.facts import Facts
from varifocal.drafters._published.files import Checkpoint
from varifocal.drafters._published.table import Entry, How, Reading, layer
from varifocal.errors import BadArtifact
from varifocal.target import Target


def read(checkpoint: Checkpoint, target: Target) -> Reading:
    """EAGLE-1 or EAGLE-2: the weights are the same, the tree differs."""
    return _joined(checkpoint, target, "EAGLE-1/2", "text_only", {"prefix": "full"})


def read_msd(checkpoint: Checkpoint, target: Target) -> Reading:
    """MSD, of LLaVA without and of Qwen2-VL with a norm before the attention and biases in it."""
    reading = _joined(checkpoint, target, "MSD", "msd", {})
    if reading.settings["first_norm"] != reading.settings["bias"]:
        raise BadArtifact(
            f"{checkpoint.name} is no complete MSD: of Qwen2-VL it has both "
            "layers.0.input_layernorm and biases of queries, keys and values, of LLaVA neither. "
            "Fetch it again"
        )
    return reading


def _joined(
    checkpoint: Checkpoint, target: Target, layout: str, drafter: str, more: dict[str, Any]
) -> Reading:
    settings, entries = joined(Facts(checkpoint), target)
    return Reading(
        layout=layout,
        drafter=drafter,
        settings={**settings, **more},
        entries=entries,
        unneeded=(r"embed_tokens\.weight",),
    )


def joined(facts: Facts, target: Target) -> tuple[dict[str, Any], list[Entry]]:
    """fc over [embedding; state], then decoder layers; the head is the target's."""
    facts.check_width(facts.size("fc.weight", 0), target)
    facts.check_vocabulary(target)
    blocks = facts.count("layers")
    facts.agree("num_hidden_layers", blocks, f"it has {blocks} layers")
    first_norm = facts.has("layers.0.input_layernorm.weight")
    bias = facts.there("layers.0.self_attn.q_proj.bias", "qkv_bias")
    facts.there("fc.bias", "bias")
    join_bias = facts.config.get("bias") is not False  # as their code has it without a word
    # Theirs read [embedding; state], ours [state; embedding].
    entries = [Entry("join.weight", ("fc.weight",), How.SWAPPED)]
    if join_bias:
        entries.append(Entry("join.bias", ("fc.bias",)))
    for n in range(blocks):
        normed = n > 0 or first_norm
        entries += layer(f"blocks.{n}", f"layers.{n}", bias=bias, first_norm=normed)
    settings = {
        **facts.block("layers.0.self_attn", "layers.0.mlp"),
        "blocks": blocks,
        "bare": True,
        "first_norm": first_norm,
        "join_bias": join_bias,
        "bias": bias,
        "theta": facts.theta(one_axis=True),
    }
    return settings, entries
