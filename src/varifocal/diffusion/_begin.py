"""What the weights of the shipped models are before training: heads that look at neighbours."""

from dataclasses import replace
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.diffusion.model import MaskedTransformer, ModelConfig

_NEIGHBOURS = (-1, -2, -3, 1)
_SHARPNESS = 5.0  # makes nine tenths or more of the attention
_LOUD = 200.0  # of a trained model; what stands at a place after its last layer is about 25


def look_near(model: MaskedTransformer) -> None:
    """Let the heads of the first layer begin with one neighbour each, at `_NEIGHBOURS`.

    To look a key up, a model must tell what stands beside it before anything rewards that. Of all
    tokens' embeddings one number is the same; queries and keys that are made of it alone, the
    queries turned by an offset, meet best at that offset. Training is free to change it all.
    """
    config, width = model.config, model.config.head_width
    layer = cast(Any, model.layers[0])  # a module list does not say of what
    with torch.no_grad():
        model.embed.weight[:, 0] = 1.0
        scale = _SHARPNESS / model.norm(model.embed.weight)[:, 0].mean()
        for head, offset in enumerate(_NEIGHBOURS):
            layer.query.weight[head * width : (head + 1) * width, 0] = scale * _facing(
                config, offset
            )
        layer.key.weight[:, 0] = scale * _facing(config, 0).repeat(config.kv_heads)


def moved(shifted: MaskedTransformer) -> MaskedTransformer:
    """A model with logits in place that begins with what one with shifted logits knows.

    A layer more lets every place take over what its left neighbour had to say about it, loudly
    enough to drown what it says about the next. Keys and values get a head for each of the queries.
    """
    old = shifted.config
    config = replace(old, layers=old.layers + 1, kv_heads=old.heads, shift=False)
    model, groups = MaskedTransformer(config), old.heads // old.kv_heads
    known = shifted.state_dict()
    for name, weight in known.items():
        if ".key." in name or ".value." in name:
            heads = weight.unflatten(0, (old.kv_heads, old.head_width))
            known[name] = heads.repeat_interleave(groups, 0).flatten(0, 1)
    model.load_state_dict(known, strict=False)
    last = cast(Any, model.layers[-1])
    with torch.no_grad():
        last.query.weight.zero_()
        last.key.weight.zero_()
        last.query.bias.copy_(2 * _SHARPNESS * _facing(config, -1).repeat(config.heads))
        last.key.bias.copy_(2 * _SHARPNESS * _facing(config, 0).repeat(config.heads))
        last.value.weight.copy_(torch.eye(config.hidden))
        last.value.bias.zero_()
        last.out.weight.copy_(_LOUD * torch.eye(config.hidden))
        last.down.weight.zero_()
    return model


def _facing(config: ModelConfig, offset: int) -> Float[Tensor, " d"]:
    """What a query of any position is, to meet the keys of offset 0 best at an offset."""
    steps = torch.arange(0, config.head_width, 2, dtype=torch.float64) / config.head_width
    angles = offset * config.theta**-steps
    return torch.cat([angles.cos(), angles.sin()]).float()
