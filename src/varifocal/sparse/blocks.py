"""Keys and values in pages of one block each, with summaries; tokens come and are taken back.

Letters: L layers, R rows (sequences), H KV heads, S tokens of a block, D head width, P pages, T new
tokens, B blocks of a row, I width of an index key, n things picked out.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.partials import working_dtype
from varifocal.sparse.summaries import extremes, part_means


@dataclass(frozen=True, kw_only=True)
class CacheShape:
    """Sizes of a cache; all of them are checked here."""

    num_rows: int  # sequences decoded together
    num_layers: int
    kv_heads: int
    head_dim: int
    block_size: int  # tokens of a block, which is a page
    stride: int = 0  # tokens of each mean that InfLLM's selection reads; 0: no means
    index_dim: int = 0  # width of the index keys that lightning selection reads; 0: none

    def __post_init__(self) -> None:
        for name in ("num_rows", "num_layers", "kv_heads", "head_dim", "block_size"):
            if (got := getattr(self, name)) < 1:
                raise BadOption(f"{name} must be at least 1, got {got}")
        if self.stride < 0 or self.index_dim < 0:
            raise BadOption("stride and index_dim cannot be negative; 0 leaves them out")
        if self.stride and self.block_size % self.stride:
            raise BadOption(
                f"a block of {self.block_size} tokens does not hold whole parts of "
                f"{self.stride}: choose block_size as a multiple of stride"
            )


@dataclass(frozen=True)
class Pages:
    """One layer's stores in place, for kernels that look pages up; until pages are added."""

    table: Int64[Tensor, "R B"]  # the page of each row's blocks
    keys: Float[Tensor, "P H S D"]
    values: Float[Tensor, "P H S D"]
    least: Float[Tensor, "P H D"]
    greatest: Float[Tensor, "P H D"]


class BlockCache:
    """A paged KV cache of several sequences. All layers share one page table.

    `page_order` hands out the first pages in that order; by default 0, 1, 2, ... Nothing that is
    read back depends on it. Pages are added when none is free.
    """

    def __init__(
        self,
        shape: CacheShape,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        page_order: Sequence[int] = (),
    ) -> None:
        if sorted(page_order) != list(range(len(page_order))):
            raise BadOption(f"page_order must name pages 0, 1, ... once each, got {page_order}")
        self.shape, self.dtype, self.device = shape, dtype, torch.device(device)
        self._free: list[int] = []  # taken from the end
        self._pages: list[list[int]] = [[] for _ in range(shape.num_rows)]
        self._table = torch.zeros(shape.num_rows, 0, dtype=torch.int64, device=device)
        self._lengths = [[0] * shape.num_rows for _ in range(shape.num_layers)]
        self._stores = self._empty(0)
        self._grow(len(page_order))
        self._free = [*reversed(page_order)]

    def _empty(self, pages: int) -> dict[str, Tensor]:
        """Pages of zeros: what was never written is masked, but must not be NaN."""
        s = self.shape
        work = working_dtype(self.dtype)

        def zeros(*sizes: int, dtype: torch.dtype = self.dtype) -> Tensor:
            return torch.zeros(s.num_layers, pages, *sizes, dtype=dtype, device=self.device)

        stores = {
            "keys": zeros(s.kv_heads, s.block_size, s.head_dim),
            "values": zeros(s.kv_heads, s.block_size, s.head_dim),
            "least": zeros(s.kv_heads, s.head_dim),
            "greatest": zeros(s.kv_heads, s.head_dim),
        }
        if s.stride:
            parts = s.block_size // s.stride
            stores["means"] = zeros(s.kv_heads, parts, s.head_dim, dtype=work)
        if s.index_dim:
            stores["index"] = zeros(s.block_size, s.index_dim)
        return stores

    def _grow(self, pages: int) -> None:
        have = self._stores["keys"].shape[1]
        more = self._empty(pages)
        self._stores = {k: torch.cat([v, more[k]], dim=1) for k, v in self._stores.items()}
        self._free = [*reversed(range(have, have + pages)), *self._free]

    def copy(self) -> "BlockCache":
        """The same tokens in pages of their own."""
        twin = copy(self)
        twin._free, twin._table = [*self._free], self._table.clone()
        twin._pages = [[*pages] for pages in self._pages]
        twin._lengths = [[*lengths] for lengths in self._lengths]
        twin._stores = {name: store.clone() for name, store in self._stores.items()}
        return twin

    # ── lengths and bytes ────────────────────────────────────────────────────────────────────

    def length(self, row: int, layer: int = 0) -> int:
        """Tokens of a row that a layer holds."""
        return self._lengths[layer][row]

    def lengths(self, layer: int = 0) -> Int64[Tensor, " R"]:
        """Tokens of every row that a layer holds."""
        return torch.tensor(self._lengths[layer], dtype=torch.int64, device=self.device)

    def num_blocks(self, tokens: int) -> int:
        """Blocks that so many tokens fill or begin."""
        return -(-tokens // self.shape.block_size)

    @property
    def nbytes(self) -> int:
        """Memory of all pages, free ones and summaries included."""
        return sum(store.nbytes for store in self._stores.values())

    # ── writing ──────────────────────────────────────────────────────────────────────────────

    def append(
        self,
        layer: int,
        counts: Sequence[int],
        keys: Float[Tensor, "T H D"],
        values: Float[Tensor, "T H D"],
        index: Float[Tensor, "T I"] | None = None,
    ) -> None:
        """Add `counts[r]` tokens to each row r, those of row 0 first; T is their sum."""
        self._check(counts, keys, values, index)
        before = self._lengths[layer]
        after = [old + new for old, new in zip(before, counts, strict=True)]
        for row, length in enumerate(after):
            self._reserve(row, self.num_blocks(length))
        pages, offsets = self._places(before, after)
        stores = self._layer(layer)
        stores["keys"][pages, :, offsets] = keys
        stores["values"][pages, :, offsets] = values
        if index is not None:
            stores["index"][pages, offsets] = index.to(self.dtype)
        self._lengths[layer] = after
        self._summarise(slice(layer, layer + 1), before, after)

    def _check(
        self, counts: Sequence[int], keys: Tensor, values: Tensor, index: Tensor | None
    ) -> None:
        s = self.shape
        if len(counts) != s.num_rows or min(counts) < 0:
            raise BadRequest(f"wanted a count for each of {s.num_rows} rows, got {list(counts)}")
        wanted = (sum(counts), s.kv_heads, s.head_dim)
        if keys.shape != wanted or values.shape != wanted:
            raise BadRequest(
                f"wanted keys and values of shape {wanted} (tokens, KV heads, head width), got "
                f"{tuple(keys.shape)} and {tuple(values.shape)}"
            )
        if keys.dtype != self.dtype or values.dtype != self.dtype:
            raise BadRequest(
                f"the cache holds {self.dtype}, got {keys.dtype} and {values.dtype}; "
                "make the cache with the model's dtype"
            )
        if (index is None) == bool(s.index_dim) or (
            index is not None and index.shape != (sum(counts), s.index_dim)
        ):
            got = "none" if index is None else tuple(index.shape)
            raise BadRequest(f"wanted index keys of width {s.index_dim} a token, got {got}")
        parts = {"keys": keys, "values": values, "index keys": index}
        for name, part in parts.items():
            if part is not None and not part.isfinite().all():
                raise BadRequest(
                    f"{name} hold NaN or infinity, so no block can be ranked or left out; the "
                    "model overflows in this dtype (use bfloat16 or float32), or its weights are "
                    "damaged"
                )

    def _reserve(self, row: int, blocks: int) -> None:
        pages = self._pages[row]
        while len(pages) < blocks:
            if not self._free:
                self._grow(max(8, self._stores["keys"].shape[1]))
            pages.append(self._free.pop())
            if len(pages) > self._table.shape[1]:
                rows, width = self._table.shape
                more = self._table.new_zeros(rows, max(8, width))
                self._table = torch.cat([self._table, more], dim=1)
            self._table[row, len(pages) - 1] = pages[-1]

    def _places(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> tuple[Int64[Tensor, " n"], Int64[Tensor, " n"]]:
        """Page and offset of the tokens from starts[r] to stops[r] of each row r."""
        size = self.shape.block_size
        spans = [
            torch.arange(start, stop, device=self.device)
            for start, stop in zip(starts, stops, strict=True)
        ]
        pages = [self._table[row, span // size] for row, span in enumerate(spans)]
        return torch.cat(pages), torch.cat(spans) % size

    def _summarise(self, layers: slice, starts: Sequence[int], stops: Sequence[int]) -> None:
        """Renew the summaries of the blocks that hold the tokens from starts[r] to stops[r]."""
        size = self.shape.block_size
        pages, filled = [], []
        for row, (start, stop) in enumerate(zip(starts, stops, strict=True)):
            for block in range(start // size, self.num_blocks(stop) if stop > start else 0):
                pages.append(self._pages[row][block])
                filled.append(min(size, stop - block * size))
        if not pages:
            return
        where, counts = self._tensor(pages), self._tensor(filled)
        stores = {name: store[layers] for name, store in self._stores.items()}
        keys = stores["keys"][:, where]  # layers, blocks, H S D
        counts = counts.repeat(len(keys))
        least, greatest = extremes(keys.flatten(0, 1), counts)
        stores["least"][:, where] = least.unflatten(0, keys.shape[:2])
        stores["greatest"][:, where] = greatest.unflatten(0, keys.shape[:2])
        if self.shape.stride:
            means = part_means(keys.flatten(0, 1), counts, self.shape.stride)
            stores["means"][:, where] = means.unflatten(0, keys.shape[:2])

    # ── taking back ──────────────────────────────────────────────────────────────────────────

    def truncate(self, row: int, length: int) -> None:
        """Forget a row's tokens after `length`, in all layers, as if they had never come."""
        shortest = min(lengths[row] for lengths in self._lengths)
        if not 0 <= length <= shortest:
            raise BadRequest(f"row {row} holds {shortest} tokens and cannot be cut to {length}")
        if all(lengths[row] == length for lengths in self._lengths):
            return
        size = self.shape.block_size
        blocks = self.num_blocks(length)
        self._free += reversed(self._pages[row][blocks:])
        del self._pages[row][blocks:]
        starts, stops = [0] * self.shape.num_rows, [0] * self.shape.num_rows
        starts[row], stops[row] = length // size * size, length  # the open block, if there is one
        for lengths in self._lengths:
            lengths[row] = length
        self._summarise(slice(None), starts, stops)

    def keep(self, row: int, start: int, path: Sequence[int]) -> None:
        """Of the tokens after `start` keep those `path` names (0 is the first), moved together.

        This is how a verified tree leaves its accepted path behind.
        """
        drafted = min(lengths[row] for lengths in self._lengths) - start
        if [*path] != sorted({*path}) or any(not 0 <= node < drafted for node in path):
            raise BadRequest(f"a path must rise within 0 and {drafted - 1}, got {[*path]}")
        kept = [start + node for node in path]
        moved = [self._tokens(layer, row, kept) for layer in range(self.shape.num_layers)]
        self.truncate(row, start)
        counts = [0] * self.shape.num_rows
        counts[row] = len(path)
        for layer, (keys, values, index) in enumerate(moved):
            self.append(layer, counts, keys, values, index)

    def _tokens(
        self, layer: int, row: int, positions: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        at = self._tensor(positions)
        size, stores = self.shape.block_size, self._layer(layer)
        pages, offsets = self._table[row, at // size], at % size
        index = stores["index"][pages, offsets] if self.shape.index_dim else None
        return stores["keys"][pages, :, offsets], stores["values"][pages, :, offsets], index

    # ── reading ──────────────────────────────────────────────────────────────────────────────

    def tokens(self, layer: int, row: int) -> tuple[Float[Tensor, "T H D"], Float[Tensor, "T H D"]]:
        """All keys and values of a row in their order; a copy."""
        keys, values, _ = self._tokens(layer, row, range(self._lengths[layer][row]))
        return keys, values

    def pages(self, layer: int) -> Pages:
        """A layer's stores, and where the blocks of rows are in them; nothing is copied."""
        store = self._layer(layer)
        names = ("keys", "values", "least", "greatest")
        return Pages(self._table, *(store[name] for name in names))

    def read_blocks(
        self,
        layer: int,
        rows: Int64[Tensor, " n"],
        heads: Int64[Tensor, " n"],
        blocks: Int64[Tensor, " n"],
    ) -> tuple[Float[Tensor, "n S D"], Float[Tensor, "n S D"]]:
        """Keys and values of blocks, each of one row and head; finite behind its tokens too."""
        stores, pages = self._layer(layer), self._table[rows, blocks]
        return stores["keys"][pages, heads], stores["values"][pages, heads]

    def read_token(
        self,
        store: str,
        layer: int,
        rows: Int64[Tensor, "*n"],
        heads: Int64[Tensor, "*n"],
        positions: Int64[Tensor, "*n"],
    ) -> Float[Tensor, "*n D"]:
        """The `keys` or `values` of single tokens, each of one row and head."""
        size = self.shape.block_size
        return self._layer(layer)[store][
            self._table[rows, positions // size], heads, positions % size
        ]

    def bounds(
        self, layer: int, rows: Int64[Tensor, " n"], blocks: int
    ) -> tuple[Float[Tensor, "n H B D"], Float[Tensor, "n H B D"]]:
        """Least and greatest key of the first blocks of each row."""
        stores, pages = self._layer(layer), self._table[rows, :blocks]
        return stores["least"][pages].transpose(1, 2), stores["greatest"][pages].transpose(1, 2)

    def means(
        self, layer: int, rows: Int64[Tensor, " n"], blocks: int
    ) -> Float[Tensor, "n H parts D"]:
        """Means of `stride` keys each, over the first blocks of each row, in order."""
        if not self.shape.stride:
            raise BadOption("this cache keeps no means: give CacheShape a stride")
        means = self._layer(layer)["means"][self._table[rows, :blocks]]  # n B H parts D
        return means.transpose(1, 2).flatten(2, 3)

    def index_keys(
        self, layer: int, rows: Int64[Tensor, " n"], blocks: int
    ) -> Float[Tensor, "n T I"]:
        """Index keys of every token of the first blocks of each row."""
        if not self.shape.index_dim:
            raise BadOption("this cache keeps no index keys: give CacheShape an index_dim")
        return self._layer(layer)["index"][self._table[rows, :blocks]].flatten(1, 2)

    def _layer(self, layer: int) -> dict[str, Tensor]:
        """Views of one layer's pages; what is written to them is written to the cache."""
        return {name: store[layer] for name, store in self._stores.items()}

    def _tensor(self, numbers: Sequence[int]) -> Int64[Tensor, " n"]:
        return torch.tensor([*numbers], dtype=torch.int64, device=self.device)
