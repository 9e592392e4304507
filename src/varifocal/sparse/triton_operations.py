"""The operations over listed blocks by Triton kernels: on CUDA, or in Triton's interpreter.

Letters: Q queries, H KV heads, G query heads of one KV head, U blocks, D head width, N places of a
board, C blocks chosen, K picked, M made out.

What a kernel is compiled with follows from shapes and dtype alone, nothing is tuned at run time: a
block attended to early and a block repaired go through one binary. Products and sums are not fused
into one rounding, so that none depends on what the compiler finds to fuse.
"""

from typing import Any

import torch
from jaxtyping import Int32, Int64
from torch import Tensor

from varifocal.errors import BadOption
from varifocal.sparse import triton_kernels as device
from varifocal.sparse.blocks import Pages
from varifocal.sparse.padded import Board, Kept, Merged, Operations
from varifocal.sparse.selection import Queries

RANKED = 32  # blocks that one program ranks
LISTED = 32  # list entries that one program sorts or finds
MERGED = 32  # columns that one program merges
MOST_GROUP = 64
MOST_BYTES = 1 << 16  # of a block's padded keys: with its values, what a Hopper's SM holds at once

# One stage: no kernel has a loop over tiles that a pipeline could fill.
_PINNED = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}
_PINNED_LARGE = {**_PINNED, "num_warps": 8}  # tiles in float32 would not fit 4 warps' registers
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class TritonOperations(Operations):
    """Each operation is one launch; tiles are padded to what tensor cores take."""

    def rank(
        self, pages: Pages, queries: Queries, kept: Kept, keys: Int64[Tensor, "Q H U"]
    ) -> None:
        """A program for each query, KV head and RANKED blocks."""
        check(pages, queries)
        count, heads, units = keys.shape
        group, width = queries.vectors.shape[2:]
        _launch(
            device.rank_kernel,
            (count * heads, _tiles(units, RANKED)),
            *(_as_keys(queries.vectors, pages), pages.least, pages.greatest),
            *(pages.table, queries.rows, queries.visible, keys),
            units=units,
            table_row=pages.table.stride(0),
            kept_first=kept.first,
            kept_recent=kept.recent,
            HEADS=heads,
            GROUP=group,
            GROUP_PAD=padded(group),
            SIZE=kept.block_size,
            WIDTH=width,
            WIDTH_PAD=padded(width),
            TILE=RANKED,
            **_PINNED,
        )

    def list_blocks(
        self,
        picked: Int64[Tensor, "Q H K"],
        visible: Int64[Tensor, " Q"],
        kept: Kept,
        blocks: Int32[Tensor, "Q H M"],
    ) -> None:
        """A program for each query, KV head and LISTED entries."""
        count, heads, places = blocks.shape
        _launch(
            device.list_kernel,
            (count * heads, _tiles(places, LISTED)),
            *(picked.contiguous(), visible, blocks),
            picked_count=picked.shape[-1],
            listed_count=places,
            listed_row=blocks.stride(1),
            kept_first=kept.first,
            kept_recent=kept.recent,
            HEADS=heads,
            SIZE=kept.block_size,
            RECENT=kept.recent_blocks,
            TILE=LISTED,
            **_PINNED,
        )

    def attend(self, pages: Pages, queries: Queries, board: Board, start: int, count: int) -> None:
        """A program for each query, KV head and place; those without a block end at once."""
        if not count:
            return
        check(pages, queries)
        number, heads, group, width = queries.vectors.shape
        size = pages.keys.shape[2]
        states = board.states
        _launch(
            device.attend_kernel,
            (number * heads, count),
            *(_as_keys(queries.vectors, pages), pages.keys, pages.values),
            *(pages.table, queries.rows, queries.visible, board.blocks),
            *(states.peak, states.mass, states.total, queries.scale),
            start=start,
            places=board.places,
            table_row=pages.table.stride(0),
            HEADS=heads,
            GROUP=group,
            GROUP_PAD=padded(group),
            SIZE=size,
            SIZE_PAD=padded(size),
            WIDTH=width,
            WIDTH_PAD=padded(width),
            **(_PINNED if _tile_bytes(pages) < MOST_BYTES else _PINNED_LARGE),
        )

    def find(
        self,
        blocks: Int32[Tensor, "Q H N"],
        chosen: Int32[Tensor, "Q H C"],
        found: Int32[Tensor, "Q H C"],
        missing: Int32[Tensor, "Q H C"],
    ) -> None:
        """A program for each query, KV head and LISTED chosen blocks."""
        count, heads, entries = chosen.shape
        _launch(
            device.find_kernel,
            (count * heads, _tiles(entries, LISTED)),
            *(blocks, chosen, found, missing),
            listed_count=blocks.shape[-1],
            listed_row=blocks.stride(1),
            chosen_count=entries,
            missing_row=missing.stride(1),
            TILE=LISTED,
            **_PINNED,
        )

    def merge(self, board: Board, found: Int32[Tensor, "Q H C"], merged: Merged) -> None:
        """A program for each query head and MERGED columns."""
        count, heads, group, width = merged.output.shape
        states, into = board.states, merged.state
        _launch(
            device.merge_kernel,
            (count * heads * group, _tiles(width, MERGED)),
            *(found, states.peak, states.mass, states.total),
            *(into.peak, into.mass, into.total, merged.output),
            places=board.places,
            chosen_count=found.shape[-1],
            GROUP=group,
            WIDTH=width,
            TILE=MERGED,
            **_PINNED,
        )


def check(pages: Pages, queries: Queries) -> None:
    """Refuse what these kernels cannot compute, or would compute wrongly."""
    dtype, where = pages.keys.dtype, pages.keys.device
    if dtype not in _DTYPES:
        raise BadOption(
            f"Triton kernels take float32, float16 and bfloat16, got {dtype}: choose the torch "
            "kernel, which computes in any dtype"
        )
    if device.INTERPRETED and dtype == torch.bfloat16:
        raise BadOption(
            "Triton's interpreter computes wrong numbers in bfloat16 and does not say so: use "
            "float16 or float32 under TRITON_INTERPRET=1, or a CUDA device without it"
        )
    if device.INTERPRETED and device.IS_LATE:
        raise BadOption(
            "TRITON_INTERPRET=1 was set after triton had been imported, by torch perhaps: set it "
            "in the shell that starts Python"
        )
    if not device.INTERPRETED and where.type != "cuda":
        raise BadOption(
            f"Triton kernels run on CUDA, the cache is on {where}: choose the torch kernel, or set "
            "TRITON_INTERPRET=1 in the shell that starts Python to have them interpreted"
        )
    group = queries.vectors.shape[2]
    if group > MOST_GROUP or _tile_bytes(pages) > MOST_BYTES:
        raise BadOption(
            f"Triton kernels take groups of {MOST_GROUP} heads and blocks of "
            f"{MOST_BYTES // 1024} KiB of keys a head at most, padded to powers of two; got a "
            f"group of {group} and {_tile_bytes(pages) // 1024} KiB: choose smaller blocks, or the "
            "torch kernel"
        )


def _launch(kernel: Any, grid: tuple[int, int], *tensors: Any, **numbers: int | bool) -> None:
    """On the device of the tensors, which need not be torch's current one."""
    with torch.cuda.device_of(tensors[0]):
        kernel[grid](*tensors, **numbers)


def padded(size: int) -> int:
    """The power of two that a tile of so much takes; 16 is the least that can be multiplied."""
    return max(16, 1 << (size - 1).bit_length())


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


def _tile_bytes(pages: Pages) -> int:
    size, width = pages.keys.shape[2:]
    return padded(size) * padded(width) * pages.keys.element_size()


def _as_keys(vectors: Tensor, pages: Pages) -> Tensor:
    return vectors.to(pages.keys.dtype).contiguous()
