"""Watch a target's attention during its own prefill: the entropy of each layer, nothing altered.

H_l(i) = mean over heads of -sum_j A_ij log A_ij. [DREAM; methods.md 4.2] Layers count from 1: layer
l's entropy goes with the state leaving layer l, transformers' hidden_states[l].
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

_NAME = "varifocal_watched"
_CHUNK = 256  # rows whose attention is held at once


@dataclass
class Watch:
    """Entropies of the rows from `start` on, in the first `num_layers` layers."""

    num_layers: int
    start: int
    attend: Any  # the attention that the target uses anyway
    entropies: dict[int, Tensor] = field(default_factory=dict)

    @property
    def by_layer(self) -> Float[Tensor, "R L"]:
        """One column a layer; valid after the prefill."""
        return torch.stack([self.entropies[k] for k in range(self.num_layers)], -1)


_watch: ContextVar[Watch] = ContextVar("watch")


@contextmanager
def watched(text_config: Any, num_layers: int, start: int) -> Iterator[Watch]:
    """Record entropies of prefills inside the block; one sequence a forward.

    The states come from the same attention as ever (from SDPA where the target runs "eager").
    """
    used = text_config._attn_implementation
    usual = "sdpa" if used == "eager" else used
    AttentionInterface.register(_NAME, _attend_watched)
    AttentionMaskInterface.register(_NAME, ALL_MASK_ATTENTION_FUNCTIONS[usual])
    watch = Watch(num_layers, start, ALL_ATTENTION_FUNCTIONS[usual])
    token = _watch.set(watch)
    text_config._attn_implementation = _NAME
    try:
        yield watch
    finally:
        text_config._attn_implementation = used
        _watch.reset(token)


def entropy_of(
    query: Float[Tensor, "H R d"], key: Float[Tensor, "H S d"], scale: float
) -> Float[Tensor, " R"]:
    """Entropy of causal attention over S keys, averaged over heads; the queries are the last R."""
    first = key.shape[1] - query.shape[1]
    columns = torch.arange(key.shape[1], device=key.device)
    parts = []
    for at in range(0, query.shape[1], _CHUNK):
        rows = query[:, at : at + _CHUNK]
        scores = rows.float() @ key.float().mT * scale
        position = first + at + torch.arange(rows.shape[1], device=key.device)
        log_p = scores.masked_fill(columns > position[:, None], -torch.inf).log_softmax(-1)
        p = log_p.exp()
        parts.append(-(p * log_p.masked_fill(p == 0, 0)).sum(-1).mean(0))
    return torch.cat(parts)


def _attend_watched(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    watch = _watch.get()
    if module.layer_idx < watch.num_layers:
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        keys = key[0].repeat_interleave(query.shape[1] // key.shape[1], 0)
        watch.entropies[module.layer_idx] = entropy_of(query[0, :, watch.start :], keys, scale)
    out: tuple[Tensor, Tensor | None] = watch.attend(
        module, query, key, value, attention_mask, scaling=scaling, **kwargs
    )
    return out
