"""Random cases in which PRR must equal plain sparse attention bit for bit.

A case is one predictor on one drawn setting: selector, block size, page layout, batch, group,
dtype, reach, guesses, and a short history with appended, drafted and rejected tokens. Keys are
drawn from few values at times, so that scores tie.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.partials import working_dtype
from varifocal.sparse.predictors import PREDICTORS
from varifocal.sparse.queues import Queues
from varifocal.sparse.runtime import SparseAttention, Step
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.selectors import SELECTORS
from varifocal.sparse.speculation import FixedSpeculation

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
INDEX = (2, 3)  # heads and width of an indexer


@dataclass(frozen=True)
class Setting:
    """What a case is drawn with; printed when it fails."""

    seed: int
    selector: str
    shape: CacheShape
    group: int
    dtype: torch.dtype
    reach: Reach
    share: float
    lengths: tuple[int, ...]  # of the rows before the first step
    steps: int  # appended and attended to; some have several queries a row
    is_coarse: bool  # few different values, so that scores tie
    index: tuple[int, int] = INDEX  # heads and width of the indexer

    @classmethod
    def draw(
        cls, seed: int, selector: str | None = None, index: tuple[int, int] = INDEX
    ) -> "Setting":
        """The setting of a seed; another selector or indexer changes nothing else."""
        rng = random.Random(seed)
        size = rng.choice((1, 2, 3, 4, 8))
        shape = CacheShape(
            num_rows=rng.randint(1, 4),
            num_layers=rng.choice((1, 1, 2)),
            kv_heads=rng.randint(1, 2),
            head_dim=rng.choice((2, 3, 8)),
            block_size=size,
            stride=rng.choice([s for s in range(1, size + 1) if size % s == 0]),
            index_dim=index[1],
        )
        reach = Reach(
            budget=size * rng.randint(1, 4), first=rng.randint(1, 4), recent=rng.randint(1, 6)
        )
        drawn = rng.choice([*SELECTORS])
        return cls(
            seed=seed,
            selector=selector or drawn,
            shape=shape,
            group=rng.randint(1, 8),
            dtype=rng.choice(DTYPES),
            reach=reach,
            share=rng.choice((0.5, 1.0, 1.5, 3.0)),
            lengths=tuple(rng.randint(0, 10 * size) for _ in range(shape.num_rows)),
            steps=rng.choice((2, 2, 3)),
            is_coarse=rng.random() < 0.3,
            index=index,
        )


@dataclass(frozen=True)
class Draft:
    """One layer's part of a step."""

    tokens: tuple[Tensor, Tensor, Tensor]  # keys, values, index keys
    vectors: Tensor
    index: Tensor
    index_weights: Tensor


class Case:
    """A history of steps that can be run again on a cache of another page layout."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self._random = torch.Generator().manual_seed(setting.seed)
        shape = setting.shape
        self._prompts = [self._tokens(sum(setting.lengths)) for _ in range(shape.num_layers)]
        self._steps = [self._step(number) for number in range(setting.steps)]

    def cache(self, layout: int) -> BlockCache:
        """The prompts in pages that are handed out in the order of this layout."""
        setting = self.setting
        pages = [*range(3 + layout % 40)]
        random.Random(layout).shuffle(pages)
        cache = BlockCache(setting.shape, dtype=setting.dtype, page_order=pages)
        for layer, (keys, values, index) in enumerate(self._prompts):
            cache.append(layer, setting.lengths, keys, values, index)
        return cache

    def run(self, attention: SparseAttention, *, is_plain: bool) -> Iterator[Step]:
        """All steps of all layers; what a step drafted is cut back to one token before the next."""
        cache = attention.cache
        for counts, layers in self._steps:
            before = [cache.length(row) for row in range(cache.shape.num_rows)]
            for layer, draft in enumerate(layers):
                cache.append(layer, counts, *draft.tokens)
                queries = self._queries(before, counts, draft)
                act = attention.plain if is_plain else attention.step
                yield act(layer, queries)
            for row, length in enumerate(before):
                attention.truncate(row, length + 1)

    def _queries(self, before: list[int], counts: list[int], draft: Draft) -> Queries:
        rows = [row for row, count in enumerate(counts) for _ in range(count)]
        visible = [
            start + n + 1 for start, count in zip(before, counts, strict=True) for n in range(count)
        ]
        return Queries(
            vectors=draft.vectors,
            rows=torch.tensor(rows),
            visible=torch.tensor(visible),
            scale=self.setting.shape.head_dim**-0.5,
            index=draft.index,
            index_weights=draft.index_weights,
        )

    def _step(self, number: int) -> tuple[list[int], list[Draft]]:
        shape = self.setting.shape
        drafted = random.Random(f"{self.setting.seed} {number}")
        counts = [1 + drafted.choice((0, 0, 2)) for _ in range(shape.num_rows)]
        n = sum(counts)
        work = working_dtype(self.setting.dtype)
        layers = []
        for _ in range(shape.num_layers):
            vectors = self._draw(n, shape.kv_heads, self.setting.group, shape.head_dim)
            heads, width = self.setting.index
            index, weights = self._draw(n, heads, width).to(work), self._draw(n, heads).to(work)
            layers.append(Draft(self._tokens(n), vectors, index, weights))
        return counts, layers

    def _tokens(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        shape = self.setting.shape
        keys, values = (self._draw(number, shape.kv_heads, shape.head_dim) for _ in range(2))
        return keys, values, self._draw(number, shape.index_dim)

    def _draw(self, *sizes: int) -> Float[Tensor, "..."]:
        drawn = torch.randn(sizes, generator=self._random, dtype=torch.float64) * 2
        return (drawn.round() if self.setting.is_coarse else drawn).to(self.setting.dtype)


def equal_bits(ours: Tensor, theirs: Tensor) -> bool:
    """Whether two tensors hold the same bits; zeros of different sign do not."""
    whole = torch.int64 if ours.dtype == torch.float64 else torch.int32
    return ours.shape == theirs.shape and torch.equal(ours.view(whole), theirs.view(whole))


def same(ours: Step, theirs: Step) -> bool:
    """Whether two steps chose the same units and computed the same bits."""
    pairs = zip(
        (ours.state.peak, ours.state.mass, ours.state.total),
        (theirs.state.peak, theirs.state.mass, theirs.state.total),
        strict=True,
    )
    return torch.equal(ours.chosen, theirs.chosen) and all(equal_bits(a, b) for a, b in pairs)


def check_cases(
    limit: int,
    *,
    seed: int = 0,
    queues: Queues | None = None,
    selector: str | None = None,
    index: tuple[int, int] = INDEX,
) -> Iterator[tuple[Setting, str, bool]]:
    """So many cases: their setting, predictor, and whether all steps equal plain's.

    `selector`: of all cases; by default they differ. `index`: heads and width of the indexer.

    Each setting is run once plainly and once with every predictor, over other pages each time.
    Plain steps have one queue, whatever the others run on.
    """
    done = 0
    for number in range(limit):
        setting = Setting.draw(seed * 1_000_003 + number, selector, index)
        case = Case(setting)
        plain = [*case.run(_attention(case, "none", 0), is_plain=True)]
        for layout, predictor in enumerate(PREDICTORS, start=1):
            if done == limit:
                return
            attention = _attention(case, predictor, setting.seed + layout, queues)
            guessing = case.run(attention, is_plain=False)
            is_same = all(same(a, b) for a, b in zip(guessing, plain, strict=True))
            yield setting, predictor, is_same
            done += 1


def _attention(
    case: Case, predictor: str, layout: int, queues: Queues | None = None
) -> SparseAttention:
    setting = case.setting
    return SparseAttention(
        case.cache(layout),
        setting.reach,
        selector=setting.selector,
        predictor=predictor,
        speculation=FixedSpeculation(setting.share),
        queues=queues,
    )
