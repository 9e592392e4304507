"""Several requests in one forward: their rows in one sequence, attention for each by itself.

Nothing is padded. Linear layers read their weights once for all rows; attention runs once for each
request, on its own keys, values and mask. A request's result is that of its single run up to the
order in which a kernel sums, which may depend on the number of rows; `_exact` takes that away.
"""

import copy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn
from transformers import AttentionInterface

from varifocal.cache import KVCache, Parts
from varifocal.targets._exact import EXACT_ROWS, exact_attention_name
from varifocal.targets._single import single_row_name
from varifocal.tree import DraftTree


@dataclass(frozen=True)
class Laid:
    """A tree as rows of a forward."""

    tokens: Int64[Tensor, " R"]
    positions: Int64[Tensor, " R"]
    mask: Float[Tensor, "1 1 R S"] | None  # None: a single row, which sees everything

    def __len__(self) -> int:
        return len(self.tokens)


def lay_out(
    tree: DraftTree, cache: KVCache, dtype: torch.dtype, *, rows: int = 0, masked: bool = False
) -> Laid:
    """The rows of a tree after what its cache holds, filled up to `rows` with idle ones.

    Idle rows see only themselves and the text. A single row has a mask only where `masked`.
    """
    n, length = len(tree), cache.length
    tokens, depth, ancestry = tree.tokens, tree.depth, tree.ancestry
    rows = max(rows, n)
    if rows > n:
        tokens = torch.cat([tokens, tokens[:1].expand(rows - n)])
        depth = torch.cat([depth, depth[:1].expand(rows - n)])
        padded = torch.eye(rows, dtype=torch.bool, device=tokens.device)
        padded[:n, :n] = ancestry
        ancestry = padded
    mask = None
    if rows > 1 or masked:
        # A float mask: eager attention would add a bool mask as numbers, silently.
        mask = torch.zeros(rows, length + rows, dtype=dtype, device=tokens.device)
        mask[:, length:].masked_fill_(~ancestry, torch.finfo(dtype).min)
        mask = mask[None, None]
    return Laid(tokens, length + cache.offset + depth, mask)


def lay_out_all(
    trees: Sequence[DraftTree], caches: Sequence[KVCache], dtype: torch.dtype, *, exact: bool
) -> list[Laid]:
    """The rows of every tree; where `exact`, the last is filled up to EXACT_ROWS together."""
    missing = max(EXACT_ROWS - sum(map(len, trees)), 0) if exact else 0
    last = len(trees[-1]) + missing
    counts = [*map(len, trees[:-1]), last]
    return [
        lay_out(tree, cache, dtype, rows=count, masked=exact)
        for tree, cache, count in zip(trees, caches, counts, strict=True)
    ]


def packed_decoder(decoder: nn.Module) -> nn.Module:
    """A second decoder on the same tensors, which attends to `Parts`: each request to its own.

    Modules and configuration are its own, so the first one stays as it is, also while both run.
    """
    owned: Any = decoder
    tensors = [t for m in decoder.modules() for t in vars(m).values() if isinstance(t, Tensor)]
    tensors += [*decoder.parameters(), *decoder.buffers()]
    twin: Any = copy.deepcopy(owned, {id(t): t for t in tensors})
    twin.config._attn_implementation = _packed_name(owned.config._attn_implementation)
    return twin  # type: ignore[no-any-return]


def _packed_name(base: str) -> str:
    return f"varifocal_packed_{base}"


def _packed_attention(
    module: Any, query: Tensor, key: Parts, value: Parts, _: Any, *, base: str, **kwargs: Any
) -> tuple[Tensor, None]:
    """The base attention for each request."""
    attend = _attention(base, module)
    own = zip(query.split(key.rows, 2), key.of, value.of, key.masks, strict=True)
    made = [attend(module, q, k, v, mask, **kwargs)[0] for q, k, v, mask in own]
    return torch.cat(made, 1), None


def _attention(base: str, module: Any) -> Callable[..., tuple[Tensor, Any]]:
    if base == "eager":  # each family's file has its own
        return sys.modules[type(module).__module__].eager_attention_forward  # type: ignore[no-any-return]
    return AttentionInterface()[base]  # type: ignore[no-any-return]


for _base in ("sdpa", "eager", exact_attention_name(), single_row_name()):
    AttentionInterface.register(_packed_name(_base), partial(_packed_attention, base=_base))
