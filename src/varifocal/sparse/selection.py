"""Which units a query attends to: those always kept, and the best of the others up to a budget.

A unit is a block, or a token where selection is by token. Letters: Q queries, H KV heads, G query
heads of one KV head, U units, D head width, J heads of an indexer, I its width, C units chosen.
"""

import logging
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.blocks import BlockCache

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How far a query sees: `budget` tokens chosen by score, besides those always kept.

    Units are whole, so the budget is rounded down to them (a query never attends to more than
    `most_tokens`) and what is kept is rounded up (it is never cut).
    """

    budget: int = 2048  # tokens chosen by score; kept ones come on top
    first: int = 16  # tokens of the beginning that are always kept: attention sinks
    recent: int = 64  # newest tokens that are always kept, the query's own among them
    dense_layers: int = 0  # the first layers, which attend to everything

    def __post_init__(self) -> None:
        for name in ("budget", "first", "recent"):
            if (got := getattr(self, name)) < 1:
                raise BadOption(
                    f"{name} must be at least 1 token, got {got}: without its first and newest "
                    "tokens a text falls apart, and without a budget nothing is selected"
                )
        if self.dense_layers < 0:
            raise BadOption(f"dense_layers cannot be negative, got {self.dense_layers}")

    def count(self, unit: int) -> int:
        """Units of `unit` tokens that the budget holds."""
        if unit < 1:
            raise BadOption(f"a block has at least 1 token, got block_size={unit}")
        if self.budget < unit:
            raise BadOption(
                f"a budget of {self.budget} tokens does not hold one block of {unit}: choose a "
                "larger budget or smaller blocks"
            )
        return self.budget // unit

    def most_tokens(self, unit: int) -> int:
        """The most keys a query can attend to in a sparse layer: the effective figure."""
        first = -(-self.first // unit) * unit
        recent = ((self.recent - 2) // unit + 2) * unit  # however it lies across the units
        return self.count(unit) * unit + first + recent

    def kept(self, visible: Int64[Tensor, " Q"], unit: int, units: int) -> Bool[Tensor, "Q U"]:
        """The units that hold a first or recent token of what each query sees."""
        number = torch.arange(units, device=visible.device)
        oldest = (visible - self.recent).clamp(min=0) // unit
        is_first = number * unit < self.first
        is_recent = number >= oldest[:, None]
        return (is_first | is_recent) & seen(visible, unit, units)


@dataclass(frozen=True, kw_only=True)
class Queries:
    """Queries of one layer, each on its own: of several rows, or several of one row.

    `visible[q]` counts the keys that query q sees, always a row's first ones: with several drafted
    tokens in the cache, those behind a query's own are none of its business.
    """

    vectors: Float[Tensor, "Q H G D"]
    rows: Int64[Tensor, " Q"]
    visible: Int64[Tensor, " Q"]
    scale: float  # of the logits, 1 / sqrt(D) as a rule
    index: Float[Tensor, "Q J I"] | None = None  # an indexer's queries
    index_weights: Float[Tensor, "Q J"] | None = None  # and what its heads weigh

    def __len__(self) -> int:
        return len(self.vectors)

    def check(self, cache: BlockCache, layer: int) -> None:
        """Refuse what would give NaN or read keys that are not there."""
        shape = cache.shape
        if (self.vectors.shape[1], self.vectors.shape[3]) != (shape.kv_heads, shape.head_dim):
            raise BadRequest(
                f"wanted queries grouped under {shape.kv_heads} KV heads of width "
                f"{shape.head_dim}, got shape {tuple(self.vectors.shape)}"
            )
        if not self.vectors.isfinite().all():
            raise BadRequest(
                "queries hold NaN or infinity: the model overflows in this dtype (use bfloat16 or "
                "float32), or its weights are damaged"
            )
        lengths = cache.lengths(layer)[self.rows]
        if bool((self.visible < 1).any()) or bool((self.visible > lengths).any()):
            raise BadRequest(
                f"queries see {self.visible.tolist()} keys of rows that hold {lengths.tolist()}; "
                "append a token's key before attending, and let it see at least itself"
            )


def seen(visible: Int64[Tensor, " Q"], unit: int, units: int) -> Bool[Tensor, "Q U"]:
    """The units in which each query sees a token at least."""
    return torch.arange(units, device=visible.device) * unit < visible[:, None]


def best(
    scores: Float[Tensor, "*q U"], is_free: Bool[Tensor, "*q U"], count: int
) -> Bool[Tensor, "*q U"]:
    """The `count` best free units: by score, and among equal scores the lower number.

    Scores of zero abound where an indexer clips them, so the order of equals has to be fixed: a
    stable sort does it on every device.
    """
    low = torch.finfo(scores.dtype).min
    ranked = scores.nan_to_num(nan=low, neginf=low).clamp(min=low)
    ranked = ranked.masked_fill(~is_free, -torch.inf)
    order = ranked.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(is_free).scatter(-1, order, True) & is_free


def listed(is_chosen: Bool[Tensor, "*q U"]) -> Int64[Tensor, "*q C"]:
    """The numbers of the chosen units, ascending, padded with -1 to the longest list."""
    units = is_chosen.shape[-1]
    numbers = torch.arange(units, device=is_chosen.device)
    ascending = torch.where(is_chosen, numbers, units).sort(dim=-1).values
    longest = int(is_chosen.sum(-1).max()) if is_chosen.numel() else 0
    ascending = ascending[..., :longest]
    return ascending.masked_fill(ascending == units, -1)
