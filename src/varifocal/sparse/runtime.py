"""A decoding step of sparse attention with PRR: predict, speculate, select, reuse, repair, merge.

Letters: Q queries, H KV heads, G query heads of one KV head, U units, D head width.

Speculation changes when a chosen unit's state is made, and nothing else: the merge reads the states
of the chosen units, in ascending order, whoever made them. `plain` is the same step with nothing
made early. [PRR; wrong guesses are left out rather than merged, see PAPERS.md]
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.errors import BadOption
from varifocal.sparse.accounting import Accounts, HitRate
from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.kernels import BlockKernel, Kernel, TokenKernel
from varifocal.sparse.partials import Partials
from varifocal.sparse.predictors import Last, Predictor, load_predictor
from varifocal.sparse.selection import Queries, Reach, best, seen
from varifocal.sparse.selectors import Selector, load_selector
from varifocal.sparse.speculation import FixedSpeculation, Speculation

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What queries attend to."""

    chosen: Bool[Tensor, "Q H U"]  # kept ones included
    kept: Bool[Tensor, "Q U"]  # always there, known before selection
    is_free: Bool[Tensor, "Q U"]  # left to the selector
    scores: Float[Tensor, "Q H U"]

    @property
    def selected(self) -> Bool[Tensor, "Q H U"]:
        """What the selector added to the kept units."""
        return self.chosen & self.is_free[:, None]


@dataclass(frozen=True)
class Step:
    """What a layer computed for its queries."""

    state: Partials  # [Q, H, G]
    chosen: Bool[Tensor, "Q H U"]
    keys_seen: Int64[Tensor, "Q H"]  # keys that each query attended to
    speculated: int  # units attended to before selection, over queries and heads
    reused: int  # of them, those that were chosen
    repaired: int  # units attended to after selection

    def output(self, dtype: torch.dtype) -> Float[Tensor, "Q H G D"]:
        """The attention's output, cast once."""
        return self.state.output().to(dtype)


class SparseAttention:
    """Sparse attention over one cache: its selector, predictor and counts, for its rows alone."""

    def __init__(
        self,
        cache: BlockCache,
        reach: Reach,
        *,
        selector: str = "quest",
        predictor: str = "ema",
        speculation: Speculation | None = None,
    ) -> None:
        if reach.dense_layers >= cache.shape.num_layers:
            raise BadOption(
                f"{reach.dense_layers} dense layers of {cache.shape.num_layers} leave none to be "
                "sparse: lower dense_layers"
            )
        self.cache, self.reach = cache, reach
        self.selector: Selector = load_selector(selector, cache)
        self.unit = self.selector.unit(cache)
        self._count = reach.count(self.unit)
        self._kernel: Kernel[Any] = TokenKernel() if self.selector.by_token else BlockKernel()
        self._predictor: Predictor = load_predictor(predictor, cache.shape, cache.device)
        self._last = Last(cache.shape, cache.device)  # the baseline beside any predictor
        self._speculation = speculation or FixedSpeculation()
        self._accounts = Accounts(selector, cache.shape.num_layers)
        logger.info(
            "sparse attention: at most %d keys a query (asked: %d by score, %d first, %d recent), "
            "in units of %d",
            *(reach.most_tokens(self.unit), reach.budget, reach.first, reach.recent, self.unit),
        )

    # ── the phases ───────────────────────────────────────────────────────────────────────────

    def step(self, layer: int, queries: Queries) -> Step:
        """Attend with speculation; the new tokens' keys are in the cache already."""
        queries.check(self.cache, layer)
        kept, is_free = self._certain(layer, queries)
        sees_the_choice = self._predictor.sees_the_choice
        choice = self._select(layer, queries, kept, is_free) if sees_the_choice else None
        if choice is not None:
            self._observe(self._predictor, layer, queries, choice)
        ranking = self._predictor.weights(layer, queries.rows, kept.shape[-1])
        limit = self._limit(layer, kept, is_free)
        guessed = self._guess(ranking, is_free, limit or 0)
        early = guessed | kept[:, None] if limit is not None else torch.zeros_like(guessed)
        speculated = self._kernel.compute(self.cache, layer, queries, early)
        choice = choice or self._select(layer, queries, kept, is_free)
        repaired = self._kernel.compute(self.cache, layer, queries, choice.chosen & ~early)
        helpings = (speculated, repaired)
        state = self._kernel.combine(self.cache, layer, queries, helpings, choice.chosen)
        self._learn(layer, queries, choice, ranking, guessed, limit)
        return self._report(queries, choice, early, state)

    def plain(self, layer: int, queries: Queries) -> Step:
        """Attend without speculation: select, then compute everything. Learns nothing."""
        queries.check(self.cache, layer)
        choice = self._select(layer, queries, *self._certain(layer, queries))
        nothing = torch.zeros_like(choice.chosen)
        helpings = (
            self._kernel.compute(self.cache, layer, queries, nothing),
            self._kernel.compute(self.cache, layer, queries, choice.chosen),
        )
        state = self._kernel.combine(self.cache, layer, queries, helpings, choice.chosen)
        return self._report(queries, choice, nothing, state)

    def prime(self, layer: int, queries: Queries) -> None:
        """Let the predictors see what a query would choose: after a prefill, its last ones."""
        queries.check(self.cache, layer)
        choice = self._select(layer, queries, *self._certain(layer, queries))
        self._observe(self._predictor, layer, queries, choice)
        self._observe(self._last, layer, queries, choice)

    def truncate(self, row: int, length: int) -> None:
        """Forget a row's tokens after `length`: rejected drafts."""
        self.cache.truncate(row, length)
        self._forget(row, length)

    def keep(self, row: int, start: int, path: list[int]) -> None:
        """Keep the accepted path of a tree appended after `start`."""
        self.cache.keep(row, start, path)
        self._forget(row, start + len(path))

    def rates(self) -> list[HitRate]:
        """Hit rates of the predictor and of `last`, which is always there."""
        return self._accounts.rates()

    # ── parts of the phases ──────────────────────────────────────────────────────────────────

    def _certain(
        self, layer: int, queries: Queries
    ) -> tuple[Bool[Tensor, "Q U"], Bool[Tensor, "Q U"]]:
        """Units that are kept, and those that are free to be selected or not."""
        units = -(-int(queries.visible.max()) // self.unit)
        is_seen = seen(queries.visible, self.unit, units)
        if layer < self.reach.dense_layers:
            return is_seen, torch.zeros_like(is_seen)
        kept = self.reach.kept(queries.visible, self.unit, units)
        return kept, is_seen & ~kept

    def _limit(self, layer: int, kept: Tensor, is_free: Tensor) -> int | None:
        num_kept = int(kept.sum(-1).max())
        chosen = min(self._count, int(is_free.sum(-1).max()))
        return self._speculation.guesses(layer, kept.shape[-1], num_kept, chosen)

    def _guess(
        self, ranking: Float[Tensor, "Q H U"], is_free: Bool[Tensor, "Q U"], count: int
    ) -> Bool[Tensor, "Q H U"]:
        return best(ranking, is_free[:, None] & (ranking > 0), count)

    def _select(
        self,
        layer: int,
        queries: Queries,
        kept: Bool[Tensor, "Q U"],
        is_free: Bool[Tensor, "Q U"],
    ) -> Choice:
        scores = self.selector.scores(self.cache, layer, queries)
        free = is_free[:, None].expand_as(scores)
        chosen = best(scores, free, self._count) | kept[:, None]
        return Choice(chosen, kept, is_free, scores)

    def _observe(self, predictor: Predictor, layer: int, queries: Queries, choice: Choice) -> None:
        predictor.observe(layer, queries.rows, choice.selected, choice.scores, choice.is_free)

    def _learn(
        self,
        layer: int,
        queries: Queries,
        choice: Choice,
        ranking: Tensor,
        guessed: Tensor,
        limit: int | None,
    ) -> None:
        """Count this step's guesses, then show the choice to those who guess next."""
        selected = choice.selected
        if limit is not None:  # else nobody was asked
            self._accounts.add(self._predictor.name, layer, guessed, selected)
        if self._predictor.name != self._last.name:
            if limit is not None:
                last = self._last.weights(layer, queries.rows, selected.shape[-1])
                would = self._guess(last, choice.is_free, limit)
                self._accounts.add(self._last.name, layer, would, selected)
            self._observe(self._last, layer, queries, choice)
        self._speculation.learn(layer, ranking.masked_fill(~choice.is_free[:, None], 0), selected)
        if not self._predictor.sees_the_choice:
            self._observe(self._predictor, layer, queries, choice)

    def _forget(self, row: int, length: int) -> None:
        for predictor in (self._predictor, self._last):
            predictor.forget(row, -(-length // self.unit))

    def _report(self, queries: Queries, choice: Choice, early: Tensor, state: Partials) -> Step:
        units = torch.arange(choice.chosen.shape[-1], device=self.cache.device) * self.unit
        tokens = (queries.visible[:, None] - units).clamp(min=0, max=self.unit)
        return Step(
            state=state,
            chosen=choice.chosen,
            keys_seen=(tokens[:, None] * choice.chosen).sum(-1),
            speculated=int(early.sum()),
            reused=int((early & choice.chosen).sum()),
            repaired=int((choice.chosen & ~early).sum()),
        )
