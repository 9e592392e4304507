"""Folders converted from one layout into another, as files."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from varifocal.drafters._published import build, card_of, is_published, understood
from varifocal.drafters._published.eagle3 import LAYER, entries
from varifocal.drafters._published.files import CONFIG, name_of, read_checkpoint, read_config
from varifocal.drafters._published.gate import Agreement, check_agreement
from varifocal.drafters._weights import (
    CARD,
    WEIGHTS,
    load_trained,
    read_weights,
    save_trained,
)
from varifocal.drafters.eagle3 import Eagle3Drafter
from varifocal.errors import BadOption
from varifocal.target import Target
from varifocal.training._files import check_folder, make_folder, write_atomically

LAYOUTS = ("varifocal", "speculators")
_VERSION = "0.3.0"  # of speculators, whose layout this is


@dataclass(frozen=True)
class Converted:
    """What became of a folder."""

    source: str
    drafter: str
    layout: str  # of the source
    agreement: Agreement | None = None  # None where it was not tried


def convert(
    source: Path,
    out: Path,
    target: Target,
    *,
    layout: str = "varifocal",
    check: bool = True,
    family: str = "",
    command: str = "",
) -> Converted:
    """Write what `source` holds into the folder `out`, in another layout.

    From a published layout into ours: a folder that belongs to this target and is loaded without a
    trial from then on. From an eagle3 of ours into that of speculators: bit for bit, and back.
    Raises BadOption for what cannot be represented, BadArtifact or DrafterMismatch as on loading.
    """
    check_place(out, layout)
    read_config(source)  # or what is no drafter at all would be taken for one of ours
    if is_published(source) == (layout == "speculators"):
        raise BadOption(
            f"{source} is in a published layout, and can be converted into varifocal's alone"
            if layout == "speculators"
            else f"{source} is in varifocal's layout already; --layout speculators writes an "
            "eagle3 in that of speculators"
        )
    if layout == "speculators":
        return _to_speculators(source, out, target)
    checkpoint = read_checkpoint(source)
    reading = understood(checkpoint, target, family)
    found = None
    if check:
        tried = build(checkpoint, reading, target, {})
        tried.prepare()
        found = check_agreement(tried, checkpoint.name)
        del tried  # before there is another one: it has other weights, in the target's precision
    drafter = build(checkpoint, reading, target, {})
    make_folder(out)
    card = replace(card_of(checkpoint, reading, found), command=command)
    save_trained(drafter, out, card=card, dtype=checkpoint.dtype)
    return Converted(checkpoint.name, reading.drafter, reading.layout, found)


def check_place(out: Path, layout: str) -> None:
    """Before the target is loaded, which takes a while. Raises BadOption."""
    if layout not in LAYOUTS:
        raise BadOption(f"layout must be {' or '.join(LAYOUTS)}, got {layout!r}")
    check_folder(out)
    if out.exists() and any(out.iterdir()):
        raise BadOption(f"{out} is no empty folder; name a new one for the result")


def _to_speculators(source: Path, out: Path, target: Target) -> Converted:
    drafter = load_trained(source, target, {})
    if not isinstance(drafter, Eagle3Drafter):
        raise BadOption(
            f"{source} is a {drafter.name}, for which speculators has no layout; eagle3 alone can "
            "be written"
        )
    config = drafter.config
    if config.norms != "rms":
        raise BadOption(
            f"{source} was trained with LayerNorm (norms={config.norms!r}), and speculators has "
            "RMSNorm alone; train one with `varifocal train --drafter eagle3 --set norms=rms`"
        )
    if config.bias:
        raise BadOption(
            f"{source} has biases of queries, keys and values but none of the output, and "
            "speculators has all or none; train one with `--set bias=false`, which is the default"
        )
    if config.prefix != "full":
        raise BadOption(
            f"{source} reads text alone (prefix={config.prefix!r}), and speculators feeds all "
            "slots; train one with `--set prefix=full`, which is the default"
        )
    shape = drafter.network.shape
    _, ours = read_weights(source / WEIGHTS)
    rows = {"q_proj": shape.heads, "k_proj": shape.kv_heads, "v_proj": shape.kv_heads}
    sizes = {name: count * shape.head_width for name, count in rows.items()}
    sizes |= {"gate_proj": shape.inner, "up_proj": shape.inner}
    table = entries(
        LAYER,
        blocks=config.blocks,
        settings=asdict(config),
        is_reduced=drafter.network.is_reduced,
    )
    theirs: dict[str, Tensor] = {}
    for entry in table:
        theirs |= entry.part(ours[entry.ours], sizes)
    assert {entry.ours for entry in table} == set(ours), "a table that is incomplete"
    _write(out, _config_of(drafter), theirs, _card_of(source, target))
    return Converted(name_of(source), drafter.name, "varifocal")


def _config_of(drafter: Eagle3Drafter) -> dict[str, Any]:
    config, shape, target = drafter.config, drafter.network.shape, drafter.target
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": _VERSION,
        "draft_vocab_size": drafter.network.lm_head.out_features,
        "target_hidden_size": None,
        # Ids of transformers' hidden_states, which are the layers as they are counted here.
        "eagle_aux_hidden_state_layer_ids": list(drafter.want.layers),
        "norm_before_residual": config.norm_before_residual,
        "norm_before_fc": config.norm_before_fc,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "embed_requires_grad": False,
        "transformer_layer_config": {
            "model_type": "llama",
            "attention_bias": False,
            "head_dim": shape.head_width,
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.inner,
            "max_position_embeddings": target.context_length,
            "mlp_bias": False,
            "num_attention_heads": shape.heads,
            "num_hidden_layers": config.blocks,
            "num_key_value_heads": shape.kv_heads,
            "rms_norm_eps": shape.eps,
            "rope_theta": shape.theta,
            "tie_word_embeddings": False,
            "vocab_size": target.vocab_size,
        },
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.depth}],
            "verifier": {"name_or_path": target.name, "architectures": []},
        },
    }


def _card_of(source: Path, target: Target) -> str:
    return (
        f"# EAGLE-3 draft for {target.name}\n\nConverted by varifocal from `{name_of(source)}`, "
        f"which belongs to `{target.name}` (fingerprint `{target.fingerprint}`), into the layout "
        "of speculators. Embeddings are the target's.\n"
    )


def _write(out: Path, config: dict[str, Any], tensors: Mapping[str, Tensor], card: str) -> None:
    make_folder(out)
    whole = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    write_atomically(out / WEIGHTS, save(whole, metadata={"format": "pt"}))
    write_atomically(out / CARD, card.encode())
    write_atomically(out / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
