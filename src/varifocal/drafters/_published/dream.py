"""DREAM: self-attention, gated cross-attention to the target's states, self-attention."""

from varifocal.drafters._published.facts import Facts
from varifocal.drafters._published.files import Checkpoint
from varifocal.drafters._published.table import Entry, Reading, feed_forward, layer
from varifocal.target import Target


def read(checkpoint: Checkpoint, target: Target) -> Reading:
    """Its config tells neither that there are three layers nor which of them is which."""
    facts = Facts(checkpoint)
    facts.check_width(facts.size("norm.weight", 0), target)
    facts.check_vocabulary(target)
    head_width = facts.size("layers.1.cross_attn.q_norm.weight", 0)
    settings = facts.block("layers.0.self_attn", "layers.0.mlp", head_width=head_width)
    bias = facts.there("layers.0.self_attn.q_proj.bias", "qkv_bias")
    return Reading(
        layout="DREAM",
        drafter="dream",
        settings={
            **settings,
            "bias": bias,
            "token_norm": False,
            "prefix": "full",
            "theta": facts.theta(one_axis=True),
        },
        entries=[
            *layer("first", "layers.0", bias=bias, first_norm=False),
            *_cross(),
            *layer("last", "layers.2", bias=bias),
            Entry("norm.weight", ("norm.weight",)),
        ],
        unneeded=(r"embed_tokens\.weight",),
    )


def _cross() -> list[Entry]:
    ours, theirs = "cross", "layers.1"
    inner = f"{theirs}.cross_attn"
    return [
        Entry(f"{ours}.attention_norm.weight", (f"{theirs}.input_layernorm.weight",)),
        Entry(f"{ours}.query.weight", (f"{inner}.q_proj.weight",)),
        Entry(f"{ours}.keys_values.weight", (f"{inner}.k_proj.weight", f"{inner}.v_proj.weight")),
        Entry(f"{ours}.query_norm.weight", (f"{inner}.q_norm.weight",)),
        Entry(f"{ours}.key_norm.weight", (f"{inner}.k_norm.weight",)),
        Entry(f"{ours}.out.weight", (f"{inner}.o_proj.weight",)),
        Entry(f"{ours}.attention_gate", (f"{theirs}.cross_attn_attn_gate",)),
        *feed_forward(ours, theirs),
        Entry(f"{ours}.inner_gate", (f"{theirs}.cross_attn_mlp_gate",)),
    ]
