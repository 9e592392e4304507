"""Attention whose result does not depend on where entries lie in the cache."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

# One-row products take another kernel path than wider ones; from eight rows on all agree.
EXACT_ROWS = 8
_LONG = 1024  # entries from which heads are taken in turn: all at once outgrow a core's cache


def exact_attention_name() -> str:
    """The name under which transformers finds this attention."""
    return "varifocal_exact"


def _exact_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Softmax and sum over entries in float64, rounded once: their order no longer shows.

    A prefill (no entries before it) is the same call for every method and takes the fast kernel.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    if attention_mask is None and query.shape[-2] == key.shape[-2]:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1
        )
        return out.transpose(1, 2).contiguous(), None
    asked = query.shape[-2]
    if asked < EXACT_ROWS:  # a short tree of a batch
        query, attention_mask = _widened(query, attention_mask)
    batch, heads, rows, width = query.shape
    grouped = query.reshape(batch, key.shape[1], groups * rows, width)
    scores = exact_scores(grouped, key).mul_(scale)
    if attention_mask is not None:
        scores.unflatten(2, (groups, rows)).add_(attention_mask[:, :, None])
    out = _exact_mixture(scores, value).reshape(batch, heads, rows, width)
    return out[:, :, :asked].transpose(1, 2).contiguous(), None


def _widened(query: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """EXACT_ROWS rows, the last of them again and again."""
    more = EXACT_ROWS - query.shape[-2]
    query = torch.cat([query, query[:, :, -1:].expand(-1, -1, more, -1)], 2)
    if mask is not None:
        mask = torch.cat([mask, mask[:, :, -1:].expand(-1, -1, more, -1)], 2)
    return query, mask


def exact_scores(
    query: Float[Tensor, "B H N W"], key: Float[Tensor, "B H S W"]
) -> Float[Tensor, "B H N S"]:
    """Products of rows and entries, each the same wherever its row and its entry stand.

    A score sums over the head's width alone, so on a CPU float32 keeps this: its kernels take the
    width in one order for all rows and entries. Other devices may split it by shape: float64.
    """
    wide = torch.float32 if query.device.type == "cpu" else torch.float64
    return query.to(wide) @ key.to(wide).transpose(-1, -2)


def _exact_mixture(
    scores: Float[Tensor, "B H N S"], value: Float[Tensor, "B H S W"]
) -> Float[Tensor, "B H N W"]:
    """The values weighted by the softmax of the scores, rounded once to the values' precision."""
    together = value.shape[1] if value.shape[-2] <= _LONG else 1
    parts = zip(scores.split(together, 1), value.split(together, 1), strict=True)
    mixed = [(s.softmax(-1, dtype=torch.float64) @ v.double()).to(v.dtype) for s, v in parts]
    return torch.cat(mixed, 1)


AttentionInterface.register(exact_attention_name(), _exact_attention)
AttentionMaskInterface.register(exact_attention_name(), sdpa_mask)
