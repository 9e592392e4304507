"""The operations over listed blocks in PyTorch: the reference for kernels, and what CPUs run.

Letters: Q queries, H KV heads, G query heads of one KV head, U blocks, D head width, N places of a
board, C blocks chosen, K picked, M made out.
"""

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from varifocal.sparse.blocks import Pages
from varifocal.sparse.padded import Board, Kept, Merged, Operations, ranked, ranking
from varifocal.sparse.partials import Partials, attend_blocks, fold, merge
from varifocal.sparse.selection import Queries


class TorchOperations(Operations):
    """Each operation by elementwise sums in one tree, so that padding changes no bit."""

    def rank(
        self, pages: Pages, queries: Queries, kept: Kept, keys: Int64[Tensor, "Q H U"]
    ) -> None:
        """max over the group of sum over d of max(q_d least_d, q_d greatest_d), as keys."""
        units = keys.shape[-1]
        at = pages.table[queries.rows, :units]
        least, greatest = (b[at].transpose(1, 2).float() for b in (pages.least, pages.greatest))
        query = queries.vectors.float()[:, :, :, None]
        products = torch.maximum(query * least[:, :, None], query * greatest[:, :, None])
        scores = fold(products, -1).amax(2)
        keys.copy_(ranking(scores, kept.is_free(queries.visible, units)[:, None]))

    def list_blocks(
        self,
        picked: Int64[Tensor, "Q H K"],
        visible: Int64[Tensor, " Q"],
        kept: Kept,
        blocks: Int32[Tensor, "Q H M"],
    ) -> None:
        """The newest blocks counted back from the query's own, sorted with the others."""
        first = torch.arange(kept.first, device=visible.device)
        first = torch.where(first * kept.block_size < visible[:, None], first, -1)
        back = torch.arange(kept.recent_blocks, device=visible.device)
        recent = (visible[:, None] - 1) // kept.block_size - back
        oldest = (visible - kept.recent).clamp(min=0) // kept.block_size
        recent = torch.where(recent >= oldest.clamp(min=kept.first)[:, None], recent, -1)
        certain = torch.cat([first, recent], -1)[:, None].expand(-1, picked.shape[1], -1)
        every = torch.cat([certain, ranked(picked)], -1)
        last = torch.iinfo(torch.int64).max
        ascending = every.masked_fill(every < 0, last).sort(-1).values
        blocks.copy_(ascending.masked_fill(ascending == last, -1))

    def attend(self, pages: Pages, queries: Queries, board: Board, start: int, count: int) -> None:
        """All places at once; a place without a block gets the identity of merging."""
        listed = board.blocks[:, :, start : start + count].long()
        number, head = (
            torch.arange(listed.shape[dim], device=listed.device).view(shape).expand_as(listed)
            for dim, shape in ((0, (-1, 1, 1)), (1, (-1, 1)))
        )
        number, head = number.flatten(), head.flatten()
        block = listed.clamp(min=0).flatten()
        at = pages.table[queries.rows[number], block]
        size = pages.keys.shape[2]
        places = block[:, None] * size + torch.arange(size, device=block.device)
        is_seen = (places < queries.visible[number][:, None]) & (listed.flatten() >= 0)[:, None]
        made = attend_blocks(
            queries.vectors[number, head],
            pages.keys[at, head],
            pages.values[at, head],
            is_seen,
            queries.scale,
        )
        span = slice(start, start + count)
        states, shape = board.states, listed.shape
        states.peak[:, :, span] = made.peak.unflatten(0, shape)
        states.mass[:, :, span] = made.mass.unflatten(0, shape)
        states.total[:, :, span] = made.total.unflatten(0, shape)

    def find(
        self,
        blocks: Int32[Tensor, "Q H N"],
        chosen: Int32[Tensor, "Q H C"],
        found: Int32[Tensor, "Q H C"],
        missing: Int32[Tensor, "Q H C"],
    ) -> None:
        """Each chosen block is compared with all that are listed."""
        number = torch.arange(blocks.shape[-1], device=blocks.device)
        is_same = (chosen[..., None] == blocks[:, :, None]) & (chosen >= 0)[..., None]
        place = torch.where(is_same, number, -1)
        place = place.amax(-1) if blocks.shape[-1] else torch.full_like(chosen, -1)
        is_missing = (chosen >= 0) & (place < 0)
        after = blocks.shape[-1] + torch.arange(chosen.shape[-1], device=blocks.device)
        missing.copy_(torch.where(is_missing, chosen, -1))
        found.copy_(torch.where(is_missing, after, place))

    def merge(self, board: Board, found: Int32[Tensor, "Q H C"], merged: Merged) -> None:
        """All pairs' places laid end to end, the identity behind them."""
        pairs = found.shape[0] * found.shape[1]
        states = board.states
        laid = Partials(
            states.peak.flatten(0, 2), states.mass.flatten(0, 2), states.total.flatten(0, 2)
        )
        none = Partials(laid.peak[:0], laid.mass[:0], laid.total[:0])
        first = torch.arange(pairs, device=found.device).view(*found.shape[:2], 1) * board.places
        state = merge(laid.joined(none), torch.where(found < 0, -1, found + first))
        merged.state.peak.copy_(state.peak)
        merged.state.mass.copy_(state.mass)
        merged.state.total.copy_(state.total)
        merged.output.copy_(state.output())
