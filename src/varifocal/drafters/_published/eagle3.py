"""EAGLE-3 as its authors, SpecForge and AngelSlim write it, and as speculators does."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from varifocal.drafters._published.facts import PADDING, Facts
from varifocal.drafters._published.files import Checkpoint
from varifocal.drafters._published.layers import taps_of_inputs, taps_of_outputs
from varifocal.drafters._published.table import Entry, Reading, attention, feed_forward, layer
from varifocal.errors import BadArtifact, DrafterMismatch
from varifocal.target import Target

MIDLAYER, LAYER = "midlayer", "layers.0"  # what the first block is called
_FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_IDS = "eagle_aux_hidden_state_layer_ids"
# What a nested config leaves out where it is the default of transformers' LlamaConfig.
_LLAMA = {"num_attention_heads": 32}


def read(checkpoint: Checkpoint, target: Target) -> Reading:
    """The layout of EAGLE-3's authors, with one midlayer."""
    facts = Facts(checkpoint)
    nested = checkpoint.config.get("eagle_config") or {}
    if nested.get("use_aux_hidden_state", True) is not True:
        checkpoint.refuse("it reads the target's last state alone (use_aux_hidden_state)")
    if nested.get(_IDS) is not None:
        taps = taps_of_outputs(facts, target, nested[_IDS])
        facts.agree(_IDS, list(taps), f"its eagle_config, one below, says {nested[_IDS]}")
    else:
        taps = taps_of_inputs(facts, target, checkpoint.config.get(_IDS))
    first = MIDLAYER if facts.has(f"{MIDLAYER}.hidden_norm.weight") else LAYER
    return _fused(facts, target, taps, first, "EAGLE-3")


def read_speculators(checkpoint: Checkpoint, target: Target) -> Reading:
    """The layout of speculators, whose config keeps that of the layers apart."""
    kind = checkpoint.config.get("speculators_model_type")
    if kind != "eagle3":
        checkpoint.refuse(
            f"it is a {kind!r} in the layout of speculators, of which eagle3 alone is read"
        )
    inner = checkpoint.config.get("transformer_layer_config")
    if not isinstance(inner, Mapping):
        raise BadArtifact(f"the config of {checkpoint.name} lacks transformer_layer_config")
    if (model := inner.get("model_type", "llama")) != "llama":
        checkpoint.refuse(f"its layers are those of {model!r}, and ours those of llama")
    outer = {name: v for name, v in checkpoint.config.items() if v is not None}
    facts = Facts(checkpoint, {**_LLAMA, **inner, **outer})
    taps = taps_of_inputs(facts, target, checkpoint.config.get(_IDS))
    return _fused(facts, target, taps, LAYER, "EAGLE-3 (speculators)")


def entries(
    first: str, *, blocks: int, settings: Mapping[str, Any], is_reduced: bool
) -> list[Entry]:
    """Both ways: of a network of ours with these settings."""
    bias, normed = bool(settings["bias"]), bool(settings["norm_output"])
    table = [
        Entry("fuse.weight", ("fc.weight",)),
        Entry("blocks.0.token_norm.weight", (f"{first}.input_layernorm.weight",)),
        Entry("blocks.0.state_norm.weight", (f"{first}.hidden_norm.weight",)),
        *attention("blocks.0", f"{first}.self_attn", bias=bias),
        *feed_forward("blocks.0", first),
        Entry("norm.weight" if normed else "out_norm.weight", ("norm.weight",)),
        Entry("lm_head.weight", ("lm_head.weight",)),
    ]
    for n in range(1, blocks):
        table += layer(f"blocks.{n}", f"layers.{n}", bias=bias)
    if settings["norm_before_fc"]:
        table.append(Entry("feature_norm.weight", ("input_norm.weight",)))
    if settings["fc_norm"]:
        table += [
            Entry(f"feature_norm.norms.{n}.weight", (f"fc_norm.{n}.weight",)) for n in range(3)
        ]
    if is_reduced:
        table += [Entry("d2t", ("d2t",)), Entry("t2d", ("t2d",))]
    return table


def _fused(facts: Facts, target: Target, taps: tuple[int, ...], first: str, layout: str) -> Reading:
    checkpoint, width = facts.checkpoint, facts.size("norm.weight", 0)
    if (theirs := facts.config.get("target_hidden_size")) not in (None, width):
        checkpoint.refuse(f"it is {width} wide and its target {theirs}; ours share one width")
    facts.check_width(width, target)
    facts.check_vocabulary(target)
    if len(taps) != 3 or facts.size("fc.weight", 1) != 3 * width:
        checkpoint.refuse(
            f"its fc reads {facts.size('fc.weight', 1)} columns of {len(taps)} layers, and ours "
            f"three layers of {width}"
        )
    if facts.has(f"{first}.self_attn.q_norm.weight"):
        checkpoint.refuse("its attention norms queries and keys head by head, and ours does not")
    blocks = 1 if first == MIDLAYER else facts.count("layers")
    facts.agree("num_hidden_layers", blocks, f"it has {blocks} layers")
    settings: dict[str, Any] = {
        **facts.block(f"{first}.self_attn", f"{first}.mlp"),
        **_flags(facts),
        "blocks": blocks,
        "bias": facts.there(f"{first}.self_attn.q_proj.bias", "attention_bias"),
        "theta": facts.theta(one_axis=False),
        "taps": taps,
        "prefix": "full",
    }
    added, dropped = vocabulary(facts, target)
    taken = {"lm_head.weight", "d2t", "t2d"}
    table = entries(first, blocks=blocks, settings=settings, is_reduced=False)
    return Reading(
        layout=layout,
        drafter="eagle3",
        settings={**settings, "draft_vocab": len(added["lm_head.weight"])},
        entries=[entry for entry in table if entry.ours not in taken],
        unneeded=(r"embed_tokens\.weight",),
        added=added,
        taken=tuple(sorted(taken & set(checkpoint.tensors))),
        notes=f"{dropped} tokens that {target.name} never says were left out of its vocabulary."
        if dropped
        else "",
    )


def _flags(facts: Facts) -> dict[str, bool]:
    flags = {name: bool(facts.config.get(name)) for name in _FLAGS}
    for flag, tensor in (("norm_before_fc", "input_norm.weight"), ("fc_norm", "fc_norm.0.weight")):
        flags[flag] = facts.there(tensor, flag)
    return flags


# -- vocabulary --------------------------------------------------------------------------------


def vocabulary(facts: Facts, target: Target) -> tuple[dict[str, Tensor], int]:
    """Head and maps of the vocabulary, and how many tokens were left out of them.

    Left out are those that the target never says (pictures' slots, padding): their rows could only
    be masked.
    """
    head = facts.tensor("lm_head.weight")
    size = facts.size("lm_head.weight", 0, "draft_vocab_size")
    if not facts.has("d2t"):
        if facts.has("t2d"):
            raise BadArtifact(f"{facts.checkpoint.name} has t2d without d2t; fetch it again")
        if size != target.vocab_size:
            raise DrafterMismatch(
                f"{facts.checkpoint.name} has a head of {size} tokens and no d2t, so they are all "
                f"of its target's, but {target.name!r} has {target.vocab_size}. Load it with the "
                "target that it was trained for"
            )
        return {"lm_head.weight": head}, 0
    ids = _ids(facts, size, target)
    _check_members(facts, ids, target)
    allowed = torch.tensor([i not in target.banned_ids for i in ids.tolist()], dtype=torch.bool)
    ids, head, total = ids[allowed], head[allowed], target.vocab_size
    if len(ids) == total - len(target.banned_ids & set(range(total))):
        # All that may be said: a head over the target's own ids, which needs no map.
        whole = head.new_zeros(total, head.shape[1])
        whole[ids] = head
        return {"lm_head.weight": whole}, 0
    member = torch.zeros(total, dtype=torch.bool)
    member[ids] = True
    offsets = ids - torch.arange(len(ids))
    return {"lm_head.weight": head, "d2t": offsets, "t2d": member}, int((~allowed).sum())


def _ids(facts: Facts, size: int, target: Target) -> Tensor:
    """The target's id of each of the drafter's tokens."""
    d2t, name = facts.tensor("d2t"), facts.checkpoint.name
    if d2t.shape != (size,) or d2t.is_floating_point() or d2t.dtype is torch.bool:
        raise BadArtifact(
            f"d2t of {name} is {tuple(d2t.shape)} of {d2t.dtype}, wanted one offset for each of "
            f"the {size} rows of its head; fetch it again"
        )
    ids = d2t.long() + torch.arange(size)
    outside = ids[(ids < 0) | (ids >= target.vocab_size)].tolist()
    if outside:
        raise DrafterMismatch(
            f"d2t of {name} leads {len(outside)} tokens outside the {target.vocab_size} of "
            f"{target.name!r}, such as to {outside[0]}. It holds offsets (id - own id); load it "
            "with the target that it was trained for"
        )
    if len(ids.unique()) != size:
        raise BadArtifact(f"d2t of {name} leads to some ids twice; fetch it again")
    return ids


def _check_members(facts: Facts, ids: Tensor, target: Target) -> None:
    """t2d, where it is there, marks the ids that d2t leads to."""
    if not facts.has("t2d"):
        return
    t2d, name = facts.tensor("t2d").bool(), facts.checkpoint.name
    if t2d.dim() != 1 or abs(len(t2d) - target.vocab_size) > PADDING:
        raise DrafterMismatch(
            f"t2d of {name} is {tuple(t2d.shape)}, and {target.name!r} has {target.vocab_size} "
            "tokens. Load it with the target that it was trained for"
        )
    marked = t2d.nonzero()[:, 0]
    if not torch.equal(marked, ids.sort().values):
        raise BadArtifact(
            f"t2d of {name} marks {len(marked)} ids, and d2t leads to {len(ids)} that are not "
            "these; fetch it again"
        )
