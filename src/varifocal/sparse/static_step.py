"""A layer's decoding step in buffers of fixed size, one query a row: what a CUDA graph can hold.

Letters: R rows (a query each), H KV heads, G query heads of one KV head, U blocks, D head width, E
blocks attended to early, C blocks chosen.

It chooses, guesses and computes what `runtime.SparseAttention` does with `quest` and `ema` (`last`,
where beta is 0), by the operations over listed blocks. The board's first E places are for kept and
guessed blocks, the C after them for whatever selection adds. Each piece of work is launched without
a look at the device, so a NaN in the queries is not found here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.padded import Board, Kept, Merged, Operations, ranking
from varifocal.sparse.predictors import Average
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.streams import ATTEND, BEGIN, JOIN, PLAIN, Streams


@dataclass(frozen=True)
class Buffers:
    """What a step works in; all layers of a model may share them, as they follow each other."""

    kept: Kept
    count: int  # blocks chosen by score
    guesses: int | None  # blocks guessed; None: nothing is attended to early, which is plain
    queries: Queries  # write vectors and visible in place before a step
    ranks: Int64[Tensor, "R H U"]
    chosen: Int32[Tensor, "R H C"]
    found: Int32[Tensor, "R H C"]
    board: Board  # E + C places
    merged: Merged  # the result

    @classmethod
    def empty(
        cls,
        cache: BlockCache,
        reach: Reach,
        *,
        group: int,
        guesses: int | None,
        scale: float,
        units: int | None = None,
    ) -> Self:
        """For contexts of so many blocks, or of as many as the cache's page table has room for."""
        shape, room = cache.shape, cache.pages(0).table.shape[1]
        units = units or room
        if units > room:
            raise BadOption(f"the cache's page table has room for {room} blocks a row, not {units}")
        if cache.dtype == torch.float64:
            raise BadOption("a static step ranks blocks in float32: make the cache in no more")
        if reach.dense_layers:
            raise BadOption("a static step is sparse: attend to dense layers by other means")
        if guesses is not None and guesses < 0:
            raise BadOption(f"the number of guesses cannot be negative, got {guesses}")
        kept = Kept.of(reach, shape.block_size)
        count = min(reach.count(shape.block_size), units)
        guesses = None if guesses is None else min(guesses, units)
        early = 0 if guesses is None else kept.most + guesses
        rows, heads = shape.num_rows, shape.kv_heads
        queries = Queries(
            vectors=torch.zeros(
                rows, heads, group, shape.head_dim, dtype=cache.dtype, device=cache.device
            ),
            rows=torch.arange(rows, device=cache.device),
            visible=torch.ones(rows, dtype=torch.int64, device=cache.device),
            scale=scale,
        )
        chosen = torch.full(
            (rows, heads, kept.most + count), -1, dtype=torch.int32, device=cache.device
        )
        return cls(
            kept=kept,
            count=count,
            guesses=guesses,
            queries=queries,
            ranks=chosen.new_empty(rows, heads, units, dtype=torch.int64),
            chosen=chosen,
            found=torch.empty_like(chosen),
            board=Board.empty(queries, early + chosen.shape[-1]),
            merged=Merged.empty(queries),
        )

    @property
    def early(self) -> int:
        """Places for what is attended to before selection."""
        return self.board.places - self.chosen.shape[-1]


class Memory:
    """What a layer's rows chose so far: e <- beta e + (1 - beta) z, as predictor `ema` has it."""

    def __init__(self, buffers: Buffers, beta: float) -> None:
        if not 0 <= beta < 1:
            raise BadOption(f"beta must lie in [0, 1), got {beta}; 0 forgets all but the last")
        rows, heads, units = buffers.ranks.shape
        device = buffers.ranks.device
        self.numbers = torch.zeros(rows, heads, units, device=device)
        self._reached = torch.zeros(rows, dtype=torch.int64, device=device)  # blocks ever free
        self._beta = beta

    def guess(self, buffers: Buffers) -> Int64[Tensor, "R H guesses"]:
        """Keys of the likeliest free blocks."""
        assert buffers.guesses is not None
        is_free = buffers.kept.is_free(buffers.queries.visible, self.numbers.shape[-1])
        keys = ranking(self.numbers, is_free[:, None] & (self.numbers > 0))
        return keys.topk(buffers.guesses, sorted=False).values

    def learn(self, buffers: Buffers) -> None:
        """Take note of what was chosen. A block that becomes free enters as the best."""
        units = self.numbers.shape[-1]
        is_free = buffers.kept.is_free(buffers.queries.visible, units)
        is_new = is_free & (torch.arange(units, device=is_free.device) >= self._reached[:, None])
        best = self.numbers.amax(-1, keepdim=True)
        old = torch.where(is_new[:, None], best, self.numbers)
        places = buffers.chosen.long()  # what is no block goes to a last column, and is dropped
        places = places.masked_fill(places < 0, units)
        news = old.new_zeros(*old.shape[:-1], units + 1).scatter_(-1, places, 1.0)
        news = news[..., :units] * is_free[:, None]
        self.numbers.copy_(self._beta * old + (1 - self._beta) * news)
        reached = (is_free * (torch.arange(units, device=is_free.device) + 1)).amax(-1)
        self._reached.copy_(torch.maximum(self._reached, reached))

    def forget(self, row: int, units: int) -> None:
        """Rejected tokens: a row now has only so many blocks."""
        self.numbers[row, :, units:] = 0
        self._reached[row].clamp_(max=units)


class StaticStep:
    """One layer's step over one cache, whose pages must not move any more."""

    def __init__(
        self,
        cache: BlockCache,
        layer: int,
        operations: Operations,
        buffers: Buffers,
        *,
        beta: float = Average.BETA,
    ) -> None:
        self.buffers, self.memory = buffers, Memory(buffers, beta)
        self._cache, self._layer, self._operations = cache, layer, operations
        self.pages = cache.pages(layer)

    def begin(self, streams: Streams) -> None:
        """Guess, once `visible` is set: it runs beside the layer's projections."""
        self._check()
        if self.buffers.guesses is not None:
            streams.run(BEGIN, self.works)

    def attend(self, streams: Streams) -> Float[Tensor, "R H G D"]:
        """Attend, once queries are set and keys appended; the caller's stream may read it next."""
        self._check()
        streams.run(PLAIN if self.buffers.guesses is None else ATTEND, self.works)
        return self.buffers.merged.output

    def join(self, streams: Streams) -> None:
        """Let the caller's stream wait for what was learned."""
        if self.buffers.guesses is not None:
            streams.run(JOIN, self.works)

    def forget(self, row: int, length: int) -> None:
        """Rejected tokens, after `join`: a row now has so many. The caller cuts the cache."""
        self.memory.forget(row, self._cache.num_blocks(length))

    @property
    def works(self) -> dict[str, Callable[[], None]]:
        """The pieces of work that plans name."""
        return {
            "predict": self._predict,
            "rank": self._rank,
            "select": self._select,
            "speculate": self._speculate,
            "diff": self._diff,
            "repair": self._repair,
            "merge": self._merge,
            "learn": lambda: self.memory.learn(self.buffers),
        }

    def _check(self) -> None:
        """Kernels read where the pages were when this step was made."""
        now, made = self._cache.pages(self._layer), self.pages
        pairs = ((now.table, made.table), (now.keys, made.keys))
        if any(a.data_ptr() != b.data_ptr() or a.shape != b.shape for a, b in pairs):
            raise BadRequest(
                "the cache has grown and its pages have moved: make it with enough pages "
                "(page_order), let a row reach its greatest length once, cut it back, and make the "
                "static step then"
            )

    def _predict(self) -> None:
        b = self.buffers
        picked = self.memory.guess(b)
        self._operations.list_blocks(picked, b.queries.visible, b.kept, self._listed)

    def _rank(self) -> None:
        b = self.buffers
        self._operations.rank(self.pages, b.queries, b.kept, b.ranks)

    def _select(self) -> None:
        b = self.buffers
        picked = b.ranks.topk(b.count, sorted=False).values
        self._operations.list_blocks(picked, b.queries.visible, b.kept, b.chosen)

    def _speculate(self) -> None:
        b = self.buffers
        self._operations.attend(self.pages, b.queries, b.board, 0, b.early)

    def _diff(self) -> None:
        b = self.buffers
        missing = b.board.blocks[:, :, b.early :]
        self._operations.find(self._listed, b.chosen, b.found, missing)

    def _repair(self) -> None:
        b = self.buffers
        self._operations.attend(self.pages, b.queries, b.board, b.early, b.chosen.shape[-1])

    def _merge(self) -> None:
        b = self.buffers
        self._operations.merge(b.board, b.found, b.merged)

    @property
    def _listed(self) -> Int32[Tensor, "R H E"]:
        return self.buffers.board.blocks[:, :, : self.buffers.early]
