"""A decoder layer of a given shape with random weights and keys, and ways to attend in it.

Letters: R rows, H KV heads, G query heads of one KV head, D head width, N keys, C blocks chosen, S
tokens of a block.
"""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from static_decoding import captured
from torch import Tensor
from torch.nn import functional

from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.padded import Operations
from varifocal.sparse.selection import Reach
from varifocal.sparse.static_step import Buffers, Memory, StaticStep
from varifocal.sparse.streams import CudaStreams, SingleStream, Streams


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a layer, and what is measured with it."""

    hidden: int
    heads: int
    kv_heads: int
    width: int
    mlp: int
    layers: int  # of the model: a token passes them all
    rotation: int  # layers that are timed in turn, so that no cache of the device holds their keys
    reach: Reach
    blocks: tuple[int, ...]
    batches: tuple[int, ...]
    lengths: tuple[int, ...]
    repeats: int

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.heads // self.kv_heads

    @property
    def scale(self) -> float:
        """Of the logits."""
        return self.width**-0.5


SHAPES = {
    "llama-8b": Shape(
        hidden=4096, heads=32, kv_heads=8, width=128, mlp=14336, layers=32, rotation=8,
        reach=Reach(budget=2048, first=64, recent=128), blocks=(64, 16), batches=(1, 4),
        lengths=(8_192, 16_384, 32_768, 65_536, 131_072), repeats=7,
    ),
    "small": Shape(
        hidden=16, heads=2, kv_heads=1, width=8, mlp=32, layers=2, rotation=1,
        reach=Reach(budget=32, first=8, recent=8), blocks=(16,), batches=(2,), lengths=(112,),
        repeats=1,
    ),
}  # fmt: skip


def streams_for(device: torch.device) -> Streams:
    """New streams: a graph and what is launched singly must not share events."""
    return CudaStreams(device) if device.type == "cuda" else SingleStream()


def filled(
    shape: Shape, block: int, batch: int, length: int, dtype: torch.dtype, device: torch.device
) -> BlockCache:
    """Random keys for every row of `rotation` layers, in pages that lie scattered."""
    sizes = CacheShape(
        num_rows=batch,
        num_layers=shape.rotation,
        kv_heads=shape.kv_heads,
        head_dim=shape.width,
        block_size=block,
    )
    pages = [*range(batch * -(-length // block))]
    random.Random(0).shuffle(pages)
    cache = BlockCache(sizes, dtype=dtype, device=device, page_order=pages)
    draw = torch.Generator(device).manual_seed(0)
    for layer in range(shape.rotation):
        keys, values = (
            torch.randn(
                batch * length, shape.kv_heads, shape.width,
                generator=draw, dtype=dtype, device=device,
            )
            for _ in range(2)
        )  # fmt: skip
        cache.append(layer, [length] * batch, keys, values)
    return cache


class Layer:
    """Projections and MLP, whose time belongs to a token as well."""

    def __init__(self, shape: Shape, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        def weight(out: int, into: int) -> Tensor:
            return torch.randn(out, into, dtype=dtype, device=device) * into**-0.5

        wide = shape.heads * shape.width
        self._projections = weight(wide + 2 * shape.kv_heads * shape.width, shape.hidden)
        self._out = weight(shape.hidden, wide)
        self._up, self._down = weight(2 * shape.mlp, shape.hidden), weight(shape.hidden, shape.mlp)
        self._state = torch.randn(batch, shape.hidden, dtype=dtype, device=device)
        self._attended = torch.randn(batch, wide, dtype=dtype, device=device)
        self.rest_us = 0.0  # what a layer takes without attention

    def measure(self, shape: Shape, device: torch.device) -> None:
        """Time projections and MLP alone."""

        def rest() -> None:
            for _ in range(shape.rotation):
                self.before()
                self.after(self._attended)

        self.rest_us = 1e6 * seconds(rest, device, shape.repeats) / shape.rotation

    def before(self) -> Tensor:
        """Queries, keys and values of the new tokens."""
        return functional.linear(self._state, self._projections)

    def after(self, attended: Tensor) -> Tensor:
        """Output projection and MLP."""
        state = self._state + functional.linear(attended.flatten(1), self._out)
        gate, up = functional.linear(state, self._up).chunk(2, -1)
        return state + functional.linear(functional.silu(gate) * up, self._down)


def sparse(
    cache: BlockCache,
    shape: Shape,
    operations: Operations,
    length: int,
    guesses: int | None,
    seed: int = 0,
) -> list[StaticStep]:
    """A step for each layer, over shared buffers with random queries at this length."""
    block = cache.shape.block_size
    buffers = Buffers.empty(
        cache,
        shape.reach,
        group=shape.group,
        guesses=guesses,
        scale=shape.scale,
        units=-(-length // block),
    )
    steps = [StaticStep(cache, n, operations, buffers) for n in range(cache.shape.num_layers)]
    ask(steps, length, seed)
    return steps


def ask(steps: list[StaticStep], length: int, seed: int) -> None:
    """Random queries, at this length in every row."""
    queries = steps[0].buffers.queries
    draw = torch.Generator(queries.vectors.device).manual_seed(seed)
    queries.vectors.normal_(generator=draw)
    queries.visible.fill_(length)


def fix_guesses(step: StaticStep, rate: float) -> float:
    """Let a step guess this share of what it will choose, whatever it learns; the share it got.

    What it would learn goes nowhere: in a run that repeats one query it would soon know all.
    """
    buffers, works = step.buffers, step.works
    works["rank"](), works["select"]()
    units = buffers.ranks.shape[-1]
    is_free = buffers.kept.is_free(buffers.queries.visible, units)[:, None]
    places = buffers.chosen.long().masked_fill(buffers.chosen < 0, units)
    chosen = torch.zeros(*buffers.ranks.shape[:-1], units + 1, device=places.device)
    chosen = chosen.scatter(-1, places, 1)[..., :units].bool() & is_free
    right = round(rate * buffers.count)
    guessed = chosen & (chosen.cumsum(-1) <= right)
    others = is_free & ~chosen
    guessed |= others & (others.cumsum(-1) <= (buffers.guesses or 0) - right)
    step.memory.numbers.copy_(guessed)
    return float((guessed & chosen).sum() / chosen.sum())


def without_learning(step: StaticStep) -> dict[str, Callable[[], None]]:
    """A step's works; what it learns is written down elsewhere, so its guesses stay as they are."""
    elsewhere = Memory(step.buffers, 0.5)
    return {**step.works, "learn": lambda: elsewhere.learn(step.buffers)}


def packed_dense(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """The query heads of a KV head as so many queries: [R, H, G, D] over [R, H, N, D]."""
    return functional.scaled_dot_product_attention(queries, keys, values, scale=scale)


def grouped_dense(queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """The query heads as torch has them: [R, H G, 1, D]."""
    out = functional.scaled_dot_product_attention(
        queries.flatten(1, 2)[:, :, None], keys, values, scale=scale, enable_gqa=True
    )
    return out.view(queries.shape)


def gathered_sparse(step: StaticStep, scale: float) -> Tensor:
    """Select as the step does, copy the chosen blocks, and attend by torch's own kernel."""
    step.works["rank"](), step.works["select"]()
    keys, values, is_seen = gathered(step)
    queries = step.buffers.queries.vectors
    mask = is_seen[:, :, None].expand(-1, -1, queries.shape[2], -1)
    return functional.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)


def gathered(step: StaticStep) -> tuple[Tensor, Tensor, Tensor]:
    """Chosen keys and values [R, H, C S, D], and which of them are seen."""
    pages, buffers = step.pages, step.buffers
    block = buffers.chosen.clamp(min=0).long()
    rows = torch.arange(block.shape[0], device=block.device)[:, None, None]
    heads = torch.arange(block.shape[1], device=block.device)[:, None]
    at = pages.table[rows, block]
    size = pages.keys.shape[2]
    places = block[..., None] * size + torch.arange(size, device=block.device)
    is_seen = (buffers.chosen >= 0)[..., None] & (
        places < buffers.queries.visible[:, None, None, None]
    )
    keys, values = (store[at, heads].flatten(2, 3) for store in (pages.keys, pages.values))
    return keys, values, is_seen.flatten(2)


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a call; on CUDA as a graph, so that launching costs nothing."""
    if device.type != "cuda":
        return statistics.median(_wall(work) for _ in range(repeats))
    replay = captured(lambda: (work(), None)[1])
    spent, inner = [], 10
    for _ in range(2 + repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(inner):
            replay()
        end.record()
        end.synchronize()
        spent.append(start.elapsed_time(end) / 1000 / inner)
    return statistics.median(spent[2:])


def _wall(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
