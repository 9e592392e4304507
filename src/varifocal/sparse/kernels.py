"""The attention of chosen units in two helpings: states made early, states made late, one merge.

Letters: Q queries, H KV heads, G query heads of one KV head, U units, D head width, n units
computed, C units chosen.

What a unit leaves behind, its state, is a function of the query and the unit alone, and the merge
reads exactly the states of the chosen units in ascending order. So it does not matter which of them
were made early, nor what else was: units computed in vain are not read. [PRR]
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.partials import Partials, attend_blocks, fold, merge, weigh, working_dtype
from varifocal.sparse.selection import Queries, listed, seen

States = TypeVar("States")  # what one unit leaves behind


@dataclass(frozen=True)
class Helping(Generic[States]):
    """The states of some units, one after the other in the order of `is_computed.nonzero()`."""

    is_computed: Bool[Tensor, "Q H U"]
    states: States


class Kernel(ABC, Generic[States]):
    """How the states of units are made and merged; holds nothing of a request."""

    @abstractmethod
    def compute(
        self, cache: BlockCache, layer: int, queries: Queries, wanted: Bool[Tensor, "Q H U"]
    ) -> Helping[States]:
        """The states of the wanted units."""

    @abstractmethod
    def combine(
        self,
        cache: BlockCache,
        layer: int,
        queries: Queries,
        helpings: tuple[Helping[States], Helping[States]],
        chosen: Bool[Tensor, "Q H U"],
    ) -> Partials:
        """The state [Q, H, G] of all chosen units, each of which is in exactly one helping."""


class BlockKernel(Kernel[Partials]):
    """States (m, l, acc) per block: keys and values are read early."""

    def compute(
        self, cache: BlockCache, layer: int, queries: Queries, wanted: Bool[Tensor, "Q H U"]
    ) -> Helping[Partials]:
        """One state for every wanted block and query."""
        query, head, block = wanted.nonzero(as_tuple=True)
        if not len(block):
            return Helping(wanted, _nothing(cache, queries))
        keys, values = cache.read_blocks(layer, queries.rows[query], head, block)
        size = cache.shape.block_size
        places = block[:, None] * size + torch.arange(size, device=block.device)
        is_seen = places < queries.visible[query][:, None]
        vectors = queries.vectors[query, head]
        states = attend_blocks(vectors, keys, values, is_seen, queries.scale)
        return Helping(wanted, states)

    def combine(
        self,
        cache: BlockCache,
        layer: int,
        queries: Queries,
        helpings: tuple[Helping[Partials], Helping[Partials]],
        chosen: Bool[Tensor, "Q H U"],
    ) -> Partials:
        """The chosen blocks' states, merged in ascending order."""
        early, late = helpings
        units = listed(chosen)
        return merge(early.states.joined(late.states), _slots(early, late, units))


class TokenKernel(Kernel[Float[Tensor, "n G"]]):
    """Logits per token: keys are read early, values when the choice is known.

    A single token's (m, l, acc) would hold its whole value; its logit is one number a head.
    """

    RUN = 32  # chosen tokens that are weighted together, before runs are merged

    def compute(
        self, cache: BlockCache, layer: int, queries: Queries, wanted: Bool[Tensor, "Q H U"]
    ) -> Helping[Float[Tensor, "n G"]]:
        """One logit for every wanted token and query head."""
        query, head, token = wanted.nonzero(as_tuple=True)
        keys = cache.read_token("keys", layer, queries.rows[query], head, token)
        work = working_dtype(cache.dtype)
        vectors = queries.vectors[query, head].to(cache.dtype).to(work)
        return Helping(wanted, fold(vectors * keys.to(work)[:, None], -1) * queries.scale)

    def combine(
        self,
        cache: BlockCache,
        layer: int,
        queries: Queries,
        helpings: tuple[Helping[Float[Tensor, "n G"]], Helping[Float[Tensor, "n G"]]],
        chosen: Bool[Tensor, "Q H U"],
    ) -> Partials:
        """Softmax over the chosen tokens in runs of ascending order, then the runs merged."""
        early, late = helpings
        tokens = listed(chosen)
        tokens = torch.nn.functional.pad(tokens, (0, -tokens.shape[-1] % self.RUN), value=-1)
        logits = torch.cat([early.states, late.states, late.states.new_zeros(1, _group(queries))])
        logits = logits[_slots(early, late, tokens)].masked_fill(
            (tokens < 0)[..., None], -torch.inf
        )
        count, heads, length = tokens.shape
        rows = queries.rows[:, None, None].expand_as(tokens)
        head = torch.arange(heads, device=tokens.device)[:, None].expand_as(tokens)
        values = cache.read_token("values", layer, rows, head, tokens.clamp(min=0))
        runs = count * heads * (length // self.RUN)
        states = weigh(
            logits.reshape(runs, self.RUN, -1).mT.contiguous(),
            values.to(logits.dtype).reshape(runs, self.RUN, -1),
        )
        slots = torch.arange(runs, device=tokens.device).view(count, heads, -1)
        return merge(states, slots)


def dense(cache: BlockCache, layer: int, queries: Queries) -> Partials:
    """Every visible key, by the same kernel: what sparse attention is when everything fits."""
    units = cache.num_blocks(int(queries.visible.max()))
    is_seen = seen(queries.visible, cache.shape.block_size, units)[:, None]
    wanted = is_seen.expand(-1, cache.shape.kv_heads, -1)
    kernel = BlockKernel()
    all_of_it = kernel.compute(cache, layer, queries, wanted)
    none = kernel.compute(cache, layer, queries, torch.zeros_like(wanted))
    return kernel.combine(cache, layer, queries, (all_of_it, none), wanted)


def _slots(
    early: Helping[States], late: Helping[States], units: Int64[Tensor, "Q H C"]
) -> Int64[Tensor, "Q H C"]:
    """Where the states of these units stand when both helpings are laid end to end; -1: none."""
    is_early, is_late = early.is_computed, late.is_computed
    slots = torch.full(is_early.shape, -1, device=units.device)
    num_early = int(is_early.sum())
    slots[is_early] = torch.arange(num_early, device=units.device)
    slots[is_late] = torch.arange(int(is_late.sum()), device=units.device) + num_early
    return slots.gather(-1, units.clamp(min=0)).masked_fill(units < 0, -1)


def _nothing(cache: BlockCache, queries: Queries) -> Partials:
    """No states, without the trouble of computing them."""
    none = queries.vectors.new_zeros(0, _group(queries), dtype=working_dtype(cache.dtype))
    return Partials(none, none, none[..., None].expand(-1, -1, cache.shape.head_dim))


def _group(queries: Queries) -> int:
    return queries.vectors.shape[2]
