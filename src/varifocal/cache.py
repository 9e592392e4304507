"""The key-value cache of one request; the only file that knows transformers' caches."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from varifocal.errors import BadRequest, UnsupportedTarget

_ROOM = 64  # columns that a buffer grows by at least, so that appending seldom copies


class _Layer(CacheLayerMixin):
    """Keys and values of one layer in a preallocated buffer: append and keep are O(tree)."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()
        self.length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys = key_states.new_empty(0)
        self.values = value_states.new_empty(0)
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append and return everything seen so far, as views."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.length + key_states.shape[-2]
        self.keys = _room_for(self.keys, key_states, self.length, end)
        self.values = _room_for(self.values, value_states, self.length, end)
        self.keys[:, :, self.length : end] = key_states
        self.values[:, :, self.length : end] = value_states
        self.length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, start: int, rows: Tensor) -> None:
        """Of the entries from `start` on, keep only `rows` of the buffer, in this order."""
        for buffer in (self.keys, self.values):  # what is selected is a copy, so nothing overlaps
            buffer.narrow(2, start, len(rows)).copy_(buffer.index_select(2, rows))
        self.length = start + len(rows)

    def copy(self) -> "_Layer":
        """The entries held, in buffers of their own."""
        twin = copy(self)
        if self.is_initialized:
            twin.keys = self.keys[:, :, : self.length].clone()
            twin.values = self.values[:, :, : self.length].clone()
        return twin

    def get_seq_length(self) -> int:
        return self.length

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def crop(self, max_length: int) -> None:
        """Forget the last -max_length entries (transformers' convention since 5.13)."""
        self.length = self.length + max_length if max_length < 0 else min(self.length, max_length)


@dataclass(frozen=True)
class Parts:
    """Keys or values of several requests, each its own: what a packed cache gives to attention."""

    of: list[Tensor]
    rows: list[int]  # of each request, in the one sequence of the queries
    masks: Sequence[Tensor | None]  # of each request


class _PackedLayer(CacheLayerMixin):
    """One layer of several requests. Rows arrive in one sequence and go each to its own layer."""

    is_sliding = False
    is_compileable = False

    def __init__(
        self, layers: Sequence[_Layer], rows: list[int], masks: Sequence[Tensor | None]
    ) -> None:
        super().__init__()
        self._layers, self._rows, self._masks = layers, rows, masks

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Each request's layer does it for itself."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Parts, Parts]:
        """Append to each request's layer its own rows, and return what each has seen so far.

        Models hand what comes back to their attention and do nothing else with it.
        """
        own = zip(
            self._layers,
            key_states.split(self._rows, -2),
            value_states.split(self._rows, -2),
            strict=True,
        )
        keys, values = zip(*(layer.update(key, value) for layer, key, value in own), strict=True)
        return (
            Parts(list(keys), self._rows, self._masks),
            Parts(list(values), self._rows, self._masks),
        )

    def get_seq_length(self) -> int:
        return 0  # masks and positions are made by the caller, for each request

    def get_max_length(self) -> int:
        return -1

    def get_max_cache_shape(self) -> int:
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


def _room_for(buffer: Tensor, new: Tensor, used: int, end: int) -> Tensor:
    if buffer.dim() == new.dim() and buffer.shape[-2] >= end:
        return buffer
    shape = (*new.shape[:-2], end + max(_ROOM, end // 2), new.shape[-1])
    try:
        grown = new.new_empty(shape)
    except RuntimeError as error:  # torch.OutOfMemoryError is one; a CPU raises the bare class
        wanted = prod(shape) * new.element_size()
        raise BadRequest(
            f"there is no memory for the cache of {end} tokens: one of its buffers (two a layer) "
            f"wants {wanted:,} bytes on {new.device}. Ask with a shorter prompt, fewer or smaller "
            "pictures or fewer new tokens, or load the model in bfloat16."
        ) from error
    if used:
        grown[:, :, :used] = buffer[:, :, :used]
    return grown


class KVCache:
    """What the target remembers of one request. Grows by a tree, then keeps one path of it."""

    def __init__(self, num_layers: int) -> None:
        self.layers = [_Layer() for _ in range(num_layers)]
        # Position of the next token minus entries held: not 0 where a picture's slots share
        # positions (M-RoPE). Of the request, so it lives here and not on the model.
        self.offset = 0
        self.hf: Cache = Cache(layers=self.layers)  # what transformers' models take

    @property
    def length(self) -> int:
        """Entries held, the newest tree included."""
        return self.layers[0].length

    @property
    def num_bytes(self) -> int:
        """Memory of the buffers, spare room included."""
        kept = [
            t for layer in self.layers if layer.is_initialized for t in (layer.keys, layer.values)
        ]
        return sum(t.numel() * t.element_size() for t in kept)

    def copy(self) -> Self:
        """The same memory for another answer: neither sees what the other appends."""
        twin = copy(self)
        twin.layers = [layer.copy() for layer in self.layers]
        twin.hf = Cache(layers=twin.layers)
        return twin

    def cut(self, length: int) -> None:
        """Forget what came after so many entries, also where layers differ: a forward failed."""
        for layer in self.layers:
            layer.length = min(layer.length, length)

    def keep(self, path: Sequence[int], drafted: int) -> None:
        """Of the last `drafted` entries keep those of `path`, as if no other had been seen."""
        start = self.length - drafted
        if list(path) == list(range(len(path))):  # already in place
            for layer in self.layers:
                layer.length = start + len(path)
            return
        rows = start + torch.tensor(path, device=self.layers[0].device)
        for layer in self.layers:
            layer.keep(start, rows)


def packed(caches: Sequence[KVCache], rows: Sequence[int], masks: Sequence[Tensor | None]) -> Cache:
    """The caches of several requests as one, for a sequence in which each has so many rows.

    Attention gets `Parts` for keys and values. The caches themselves grow, each by its own rows.
    """
    layers = zip(*(cache.layers for cache in caches), strict=True)
    return Cache(layers=[_PackedLayer(own, list(rows), masks) for own in layers])


def check_cacheable(text_config: Any, name: str) -> None:
    """Refuse, by name, layers that cannot forget rejected tokens."""
    listed = getattr(text_config, "layer_types", None)
    kinds = set(listed or ["full_attention"])
    window = getattr(text_config, "sliding_window", None)
    # Without a list, a window goes for every layer; one as wide as the context never closes.
    if not listed and window and window < text_config.max_position_embeddings:
        kinds = {f"sliding_attention (window {window})"}
    if kinds != {"full_attention"}:
        raise UnsupportedTarget(
            f"{name}: varifocal needs full attention in every layer, because others cannot forget "
            f"rejected drafts; this model has {sorted(kinds)}. Decode it with transformers' own "
            "generate, or choose a full-attention checkpoint of the family."
        )
