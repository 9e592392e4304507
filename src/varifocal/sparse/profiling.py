"""What the phases of a sparse step take on this machine: measured, for the budget of guesses."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from varifocal.errors import BadRequest
from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.kernels import Kernel
from varifocal.sparse.selection import Queries, best, seen
from varifocal.sparse.selectors import Selector
from varifocal.sparse.speculation import Line, PhaseTimes

REPEATS = 5  # of each act, after a warm-up; their median counts


def measure(
    cache: BlockCache,
    selector: Selector,
    kernel: Kernel[Any],
    layer: int,
    queries: Queries,
    count: int,
) -> PhaseTimes:
    """Time selection, attention and merge for these queries at two sizes each.

    Fill the cache to the length of interest first. Takes some tens of steps; changes nothing.
    """
    unit = selector.unit(cache)
    units = -(-int(queries.visible.min()) // unit)
    if units < 8:
        raise BadRequest(f"wanted at least 8 units of {unit} keys to measure at, got {units}")
    few, many = units // 4, units

    def select(number: int) -> None:
        part = replace(queries, visible=queries.visible.clamp(max=number * unit))
        scores = selector.scores(cache, layer, part)
        best(scores, seen(part.visible, unit, number)[:, None].expand_as(scores), count)

    def first(number: int) -> Tensor:
        heads = cache.shape.kv_heads
        wanted = torch.zeros(len(queries), heads, units, dtype=torch.bool, device=cache.device)
        wanted[:, :, :number] = True
        return wanted

    def attend(number: int) -> None:
        kernel.compute(cache, layer, queries, first(number))

    def merging(number: int) -> Callable[[], object]:
        made = kernel.compute(cache, layer, queries, first(number))
        none = kernel.compute(cache, layer, queries, first(0))
        return lambda: kernel.combine(cache, layer, queries, (made, none), first(number))

    def line(act: Callable[[int], Callable[[], object]]) -> Line:
        return Line.through(*((n, _median_seconds(act(n))) for n in (few, many)))

    return PhaseTimes(
        select=line(lambda n: lambda: select(n)),
        attend=line(lambda n: lambda: attend(n)),
        merge=line(merging),
    )


def _median_seconds(act: Callable[[], object]) -> float:
    act()
    return statistics.median(_seconds(act) for _ in range(REPEATS))


def _seconds(act: Callable[[], object]) -> float:
    start = time.perf_counter()
    act()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start
