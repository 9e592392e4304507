"""Attention over listed blocks with fixed shapes: the operations, and a board for their states.

Letters: Q queries, H KV heads, G query heads of one KV head, U blocks, D head width, N places of a
board, C blocks chosen, K picked, M made out.

Lists of blocks are padded with -1, so no shape depends on what was chosen: nothing waits for the
device, and a graph can hold it all. A key ranks a block: its score, and among equal scores the
lower number, in one integer. So no two keys are alike, and the best K are the same on any device.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float, Int32, Int64
from torch import Tensor

from varifocal.sparse.blocks import BlockCache, Pages
from varifocal.sparse.kernels import Helping, Kernel
from varifocal.sparse.partials import Partials
from varifocal.sparse.selection import Queries, Reach, listed

UNRANKED = -(2**63)  # the key of what cannot be picked
_LOW = 2**31 - 1  # below the score's 32 bits a key holds _LOW - block


@dataclass(frozen=True)
class Board:
    """Places for states, and which block each place is for (-1: none, and its state is noise)."""

    blocks: Int32[Tensor, "Q H N"]
    states: Partials  # [Q, H, N, G]

    @classmethod
    def empty(cls, queries: Queries, places: int) -> Self:
        """Room for so many states of each query and KV head."""
        vectors = queries.vectors
        count, heads, group, width = vectors.shape
        like = vectors.new_empty(0, dtype=torch.float32)
        return cls(
            vectors.new_full((count, heads, places), -1, dtype=torch.int32),
            Partials(
                like.new_empty(count, heads, places, group),
                like.new_empty(count, heads, places, group),
                like.new_empty(count, heads, places, group, width),
            ),
        )

    @property
    def places(self) -> int:
        """How many."""
        return self.blocks.shape[-1]


@dataclass(frozen=True)
class Merged:
    """Where a merge puts its result."""

    state: Partials  # [Q, H, G]
    output: Float[Tensor, "Q H G D"]  # normalised, cast once

    @classmethod
    def empty(cls, queries: Queries) -> Self:
        """Room for one state of each query head."""
        vectors = queries.vectors
        like = vectors.new_empty(0, dtype=torch.float32)
        flat = vectors.shape[:-1]
        state = Partials(like.new_empty(flat), like.new_empty(flat), like.new_empty(vectors.shape))
        return cls(state, torch.empty_like(vectors))


@dataclass(frozen=True)
class Kept:
    """Which blocks are always attended to: `Reach` in the numbers that kernels work with."""

    first: int  # leading blocks
    recent: int  # tokens
    block_size: int

    @classmethod
    def of(cls, reach: Reach, block_size: int) -> Self:
        """Those that a reach keeps."""
        return cls(-(-reach.first // block_size), reach.recent, block_size)

    @property
    def recent_blocks(self) -> int:
        """In how many blocks the recent tokens can lie."""
        return (self.recent - 2) // self.block_size + 2

    @property
    def most(self) -> int:
        """Blocks that are kept at most."""
        return self.first + self.recent_blocks

    def is_free(self, visible: Int64[Tensor, " Q"], units: int) -> Bool[Tensor, "Q U"]:
        """Blocks that each query sees and that are left to selection."""
        number = torch.arange(units, device=visible.device)
        oldest = (visible - self.recent).clamp(min=0) // self.block_size
        return (number >= self.first) & (number < oldest[:, None])


class Operations(ABC):
    """What a step consists of. All of it is written to tensors that are given."""

    @abstractmethod
    def rank(
        self, pages: Pages, queries: Queries, kept: Kept, keys: Int64[Tensor, "Q H U"]
    ) -> None:
        """Keys of the first U blocks by Quest's bound; UNRANKED where a block is not free."""

    @abstractmethod
    def list_blocks(
        self,
        picked: Int64[Tensor, "Q H K"],
        visible: Int64[Tensor, " Q"],
        kept: Kept,
        blocks: Int32[Tensor, "Q H M"],
    ) -> None:
        """Kept blocks and those of the picked keys, ascending; M is `kept.most` + K."""

    @abstractmethod
    def attend(self, pages: Pages, queries: Queries, board: Board, start: int, count: int) -> None:
        """The states of the board's places from `start` on."""

    @abstractmethod
    def find(
        self,
        blocks: Int32[Tensor, "Q H N"],
        chosen: Int32[Tensor, "Q H C"],
        found: Int32[Tensor, "Q H C"],
        missing: Int32[Tensor, "Q H C"],
    ) -> None:
        """At which place a list has each chosen block.

        What it lacks goes to `missing`, at the same index, and is found at places after the list.
        """

    @abstractmethod
    def merge(self, board: Board, found: Int32[Tensor, "Q H C"], merged: Merged) -> None:
        """One state from those at the places found, in that order; -1 is none."""


class PaddedKernel(Kernel[Board]):
    """The kernel that the runtime asks for, by such operations."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations

    def compute(
        self, cache: BlockCache, layer: int, queries: Queries, wanted: Bool[Tensor, "Q H U"]
    ) -> Helping[Board]:
        """One state for every wanted block and query."""
        blocks = listed(wanted).int()
        board = Board.empty(queries, blocks.shape[-1])
        board.blocks.copy_(blocks)
        self._operations.attend(cache.pages(layer), queries, board, 0, board.places)
        return Helping(wanted, board)

    def combine(
        self,
        cache: BlockCache,
        layer: int,
        queries: Queries,
        helpings: tuple[Helping[Board], Helping[Board]],
        chosen: Bool[Tensor, "Q H U"],
    ) -> Partials:
        """The chosen blocks' states, merged in ascending order."""
        boards = [helping.states for helping in helpings]
        board = Board(
            torch.cat([board.blocks for board in boards], -1),
            Partials(
                torch.cat([board.states.peak for board in boards], 2),
                torch.cat([board.states.mass for board in boards], 2),
                torch.cat([board.states.total for board in boards], 2),
            ),
        )
        blocks = listed(chosen).int().contiguous()
        found, missing = torch.empty_like(blocks), torch.empty_like(blocks)
        self._operations.find(board.blocks, blocks, found, missing)
        merged = Merged.empty(queries)
        self._operations.merge(board, found, merged)
        return merged.state


def ranking(
    scores: Float[Tensor, "Q H U"], is_free: Bool[Tensor, "Q #H U"]
) -> Int64[Tensor, "Q H U"]:
    """Keys of scores in float32, whose order is that of `selection.best`."""
    low = torch.finfo(torch.float32).min
    finite = scores.nan_to_num(nan=low, neginf=low).clamp(min=low) + 0.0  # no zero is negative
    bits = finite.view(torch.int32)  # of negative floats, greater bits are lower values
    ordered = torch.where(bits < 0, bits ^ _LOW, bits).long()
    block = torch.arange(scores.shape[-1], device=scores.device)
    return (ordered * (_LOW + 1) + (_LOW - block)).masked_fill(~is_free, UNRANKED)


def ranked(keys: Int64[Tensor, "*q K"]) -> Int64[Tensor, "*q K"]:
    """The blocks that keys stand for; -1 for UNRANKED."""
    return (_LOW - (keys & _LOW)).masked_fill(keys == UNRANKED, -1)
