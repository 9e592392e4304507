"""Attention whose result does not depend on where entries lie in the cache."""

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

# One-row products take another kernel path than wider ones; from eight rows on all agree.
EXACT_ROWS = 8


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
    """Scores, softmax and sum in float64, rounded once: order of summation no longer shows.

    A prefill (no entries before it) is the same call for every method and takes the fast kernel.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    groups = query.shape[1] // key.shape[1]
    if attention_mask is None and query.shape[-2] == key.shape[-2]:
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, scale=scale, enable_gqa=groups > 1
        )
        return out.transpose(1, 2).contiguous(), None
    batch, _, rows, width = query.shape
    grouped = query.reshape(batch, key.shape[1], groups * rows, width).double()
    scores = grouped @ key.double().transpose(-1, -2) * scale
    if attention_mask is not None:
        scores += attention_mask.double().repeat(1, 1, groups, 1)
    out = scores.softmax(-1) @ value.double()
    out = out.to(query.dtype).reshape(batch, -1, rows, width)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(exact_attention_name(), _exact_attention)
AttentionMaskInterface.register(exact_attention_name(), sdpa_mask)
