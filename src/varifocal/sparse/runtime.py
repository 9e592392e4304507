"""A decoding step of sparse attention with PRR: predict, speculate, select, reuse, repair, merge.

Letters: Q queries, H KV heads, G query heads of one KV head, U units, D head width.

Speculation changes when a chosen unit's state is made, and nothing else: the merge reads the states
of the chosen units, in ascending order, whoever made them. `plain` is the same step with nothing
made early. [PRR; wrong guesses are left out rather than merged, see PAPERS.md] For the same reason
selection may run beside speculation (`Queues`), and nothing in a result tells.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.errors import BadOption
from varifocal.sparse.accounting import Accounts, HitRate
from varifocal.sparse.backends import load_kernel
from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.kernels import Helping, Kernel
from varifocal.sparse.partials import Partials
from varifocal.sparse.predictors import Last, Predictor, load_predictor
from varifocal.sparse.queues import Queues, Settle, SingleQueue, TwoThreads
from varifocal.sparse.selection import Queries, Reach, best, seen
from varifocal.sparse.selectors import Selector, load_selector
from varifocal.sparse.speculation import FixedSpeculation, Sizes, Speculation
from varifocal.sparse.timeline import Stopwatch, Timeline

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What queries attend to."""

    chosen: Bool[Tensor, "Q H U"]  # kept ones included
    kept: Bool[Tensor, "Q U"]  # always there, known before selection
    is_free: Bool[Tensor, "Q U"]  # left to the selector
    scores: Float[Tensor, "Q H U"]  # zeros where nothing is free

    @property
    def selected(self) -> Bool[Tensor, "Q H U"]:
        """What the selector added to the kept units."""
        return self.chosen & self.is_free[:, None]


@dataclass(frozen=True)
class Guess:
    """What was attended to before selection was known."""

    ranking: Float[Tensor, "Q H U"]  # by the predictor
    limit: int  # of guesses, for each query and head
    guessed: Bool[Tensor, "Q H U"]
    early: Bool[Tensor, "Q H U"]  # kept ones included
    states: Helping[Any]


@dataclass(frozen=True)
class Step:
    """What a layer computed for its queries."""

    state: Partials  # [Q, H, G]
    chosen: Bool[Tensor, "Q H U"]
    keys_seen: Int64[Tensor, "Q H"]  # keys that each query attended to
    speculated: int  # units attended to before selection, over queries and heads
    reused: int  # of them, those that were chosen
    repaired: int  # units attended to after selection
    times: Timeline

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
        queues: Queues | None = None,
        kernel: str = "torch",
    ) -> None:
        if reach.dense_layers >= cache.shape.num_layers:
            raise BadOption(
                f"{reach.dense_layers} dense layers of {cache.shape.num_layers} leave none to be "
                "sparse: lower dense_layers"
            )
        if isinstance(queues, TwoThreads) and cache.device.type != "cpu":
            raise BadOption(
                f"TwoThreads shares out a CPU's work, and the cache is on {cache.device}: leave "
                "queues out; the result is the same"
            )
        self.cache, self.reach = cache, reach
        self.selector: Selector = load_selector(selector, cache)
        self.unit = self.selector.unit(cache)
        self._count = reach.count(self.unit)
        by_token = self.selector.by_token
        self.kernel = kernel
        self._kernel: Kernel[Any] = load_kernel(kernel, cache.device, by_token=by_token)
        self._predictor: Predictor = load_predictor(predictor, cache.shape, cache.device)
        self._last = Last(cache.shape, cache.device)  # the baseline beside any predictor
        self._speculation = speculation or FixedSpeculation()
        self._rests = [0] * cache.shape.num_layers  # plain steps to come, by layer
        self._queues = queues or SingleQueue()
        self._unsettled: Settle | None = None
        self._accounts = Accounts(selector, cache.shape.num_layers)
        self._times = [Timeline() for _ in range(cache.shape.num_layers)]
        logger.info(
            "sparse attention: at most %d keys a query (asked: %d by score, %d first, %d recent), "
            "in units of %d",
            *(reach.most_tokens(self.unit), reach.budget, reach.first, reach.recent, self.unit),
        )

    # ── the phases ───────────────────────────────────────────────────────────────────────────

    def step(self, layer: int, queries: Queries) -> Step:
        """Attend with speculation; the new tokens' keys are in the cache already."""
        if self._rests[layer]:
            self._rests[layer] -= 1
            return self.plain(layer, queries)
        watch = Stopwatch()
        queries.check(self.cache, layer)
        self.settle()
        kept, is_free = self._certain(layer, queries)
        if layer < self.reach.dense_layers:
            return self._late(layer, queries, self._everything(kept, is_free), watch)
        limit = self._limit(layer, kept, is_free)
        select = partial(
            watch.timed, "select", partial(self._select, layer, queries, kept, is_free)
        )
        if limit is None:
            choice = select()
            step = self._late(layer, queries, choice, watch)
            self._speculation.took(layer, step.times.total, is_guessing=False)
            if self._speculation.is_watching(layer):
                self._afterwards(partial(self._watch, layer, queries, choice))
            self._rests[layer] = self._speculation.rest(layer)
            return step
        guess = partial(self._speculate, layer, queries, kept, is_free, limit, watch)
        if self._predictor.sees_the_choice:
            choice = select()
            self._observe(self._predictor, layer, queries, choice)
            early = guess()
        else:
            choice, early = self._queues.beside(select, guess)
        step = self._reuse(layer, queries, choice, early, watch)
        self._speculation.took(layer, step.times.total, is_guessing=True)
        return step

    def plain(self, layer: int, queries: Queries) -> Step:
        """Attend without speculation: select, then compute everything. Learns nothing."""
        watch = Stopwatch()
        queries.check(self.cache, layer)
        kept, is_free = self._certain(layer, queries)
        if layer < self.reach.dense_layers:
            return self._late(layer, queries, self._everything(kept, is_free), watch)
        choice = watch.timed("select", partial(self._select, layer, queries, kept, is_free))
        return self._late(layer, queries, choice, watch)

    def prime(self, layer: int, queries: Queries) -> None:
        """Let the predictors see what a query would choose: after a prefill, its last ones."""
        queries.check(self.cache, layer)
        self.settle()
        if layer < self.reach.dense_layers:
            return
        choice = self._select(layer, queries, *self._certain(layer, queries))
        self._observe(self._predictor, layer, queries, choice)
        self._observe(self._last, layer, queries, choice)

    def truncate(self, row: int, length: int) -> None:
        """Forget a row's tokens after `length`: rejected drafts."""
        self.settle()
        self.cache.truncate(row, length)
        self._forget(row, length)

    def keep(self, row: int, start: int, path: list[int]) -> None:
        """Keep the accepted path of a tree appended after `start`."""
        self.settle()
        self.cache.keep(row, start, path)
        self._forget(row, start + len(path))

    def settle(self) -> None:
        """Wait for what is learned behind the last step; raises what that raised."""
        settle, self._unsettled = self._unsettled, None
        if settle is not None:
            settle()

    def guess_by(self, speculation: Speculation) -> None:
        """From now on guess as many as this says."""
        self.settle()
        self._speculation = speculation
        self._rests = [0] * self.cache.shape.num_layers

    def predict_by(self, predictor: Predictor) -> None:
        """From now on this one guesses, which knows nothing of what was chosen so far."""
        self.settle()
        self._predictor = predictor

    def rates(self) -> list[HitRate]:
        """Hit rates of the predictor and of `last`, which is always there."""
        self.settle()
        return self._accounts.rates()

    def times(self) -> list[Timeline]:
        """For every layer, the sum of its steps so far."""
        return list(self._times)

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

    def _everything(self, kept: Bool[Tensor, "Q U"], is_free: Bool[Tensor, "Q U"]) -> Choice:
        """The choice of a dense layer: there is nothing to select."""
        chosen = kept[:, None].expand(-1, self.cache.shape.kv_heads, -1)
        return Choice(chosen, kept, is_free, torch.zeros(chosen.shape, device=chosen.device))

    def _limit(self, layer: int, kept: Tensor, is_free: Tensor) -> int | None:
        def count() -> tuple[int, int, int]:
            chosen = min(self._count, int(is_free.sum(-1).max()))
            return kept.shape[-1], int(kept.sum(-1).max()), chosen

        return self._speculation.guesses(layer, Sizes(count))

    def _guess(
        self, ranking: Float[Tensor, "Q H U"], is_free: Bool[Tensor, "Q U"], count: int
    ) -> Bool[Tensor, "Q H U"]:
        return best(ranking, is_free[:, None] & (ranking > 0), count)

    def _speculate(
        self,
        layer: int,
        queries: Queries,
        kept: Bool[Tensor, "Q U"],
        is_free: Bool[Tensor, "Q U"],
        limit: int,
        watch: Stopwatch,
    ) -> Guess:
        """Predict, and attend to what is predicted and to what is kept."""

        def predict() -> tuple[Tensor, Tensor]:
            ranking = self._predictor.weights(layer, queries.rows, kept.shape[-1])
            return ranking, self._guess(ranking, is_free, limit)

        ranking, guessed = watch.timed("predict", predict)
        early = guessed | kept[:, None]
        compute = partial(self._kernel.compute, self.cache, layer, queries, early)
        return Guess(ranking, limit, guessed, early, watch.timed("speculate", compute))

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

    def _reuse(
        self, layer: int, queries: Queries, choice: Choice, guess: Guess, watch: Stopwatch
    ) -> Step:
        """Keep what was guessed right, repair what was missed, merge."""
        missed = watch.timed("diff", lambda: choice.chosen & ~guess.early)
        compute = partial(self._kernel.compute, self.cache, layer, queries, missed)
        helpings = (guess.states, watch.timed("repair", compute))
        step = self._merged(layer, queries, choice, helpings, watch)
        self._afterwards(partial(self._learn, layer, queries, choice, guess))
        return step

    def _late(self, layer: int, queries: Queries, choice: Choice, watch: Stopwatch) -> Step:
        """Attend to everything that was chosen, none of it early."""

        def compute() -> tuple[Helping[Any], Helping[Any]]:
            nothing = torch.zeros_like(choice.chosen)
            early = self._kernel.compute(self.cache, layer, queries, nothing)
            return early, self._kernel.compute(self.cache, layer, queries, choice.chosen)

        return self._merged(layer, queries, choice, watch.timed("repair", compute), watch)

    def _merged(
        self,
        layer: int,
        queries: Queries,
        choice: Choice,
        helpings: tuple[Helping[Any], Helping[Any]],
        watch: Stopwatch,
    ) -> Step:
        combine = partial(self._kernel.combine, self.cache, layer, queries, helpings, choice.chosen)
        state = watch.timed("merge", combine)
        times = watch.timeline()
        self._times[layer] += times
        return self._report(queries, choice, helpings, state, times)

    # ── behind a step ────────────────────────────────────────────────────────────────────────

    def _afterwards(self, learn: Callable[[], None]) -> None:
        """Learn beside whatever comes next."""
        self._unsettled = self._queues.afterwards(learn)

    def _learn(self, layer: int, queries: Queries, choice: Choice, guess: Guess) -> None:
        """Count this step's guesses, and those that `last` would have made; then observe."""
        self._accounts.add(self._predictor.name, layer, guess.guessed, choice.selected)
        if self._predictor.name != self._last.name:
            last = self._last.weights(layer, queries.rows, choice.chosen.shape[-1])
            would = self._guess(last, choice.is_free, guess.limit)
            self._accounts.add(self._last.name, layer, would, choice.selected)
        self._observe_all(layer, queries, choice, guess.ranking)

    def _watch(self, layer: int, queries: Queries, choice: Choice) -> None:
        """Observe a step without guesses: nobody was asked, so nothing is counted."""
        if self._predictor.sees_the_choice:
            self._observe(self._predictor, layer, queries, choice)
        ranking = self._predictor.weights(layer, queries.rows, choice.chosen.shape[-1])
        self._observe_all(layer, queries, choice, ranking)

    def _observe_all(self, layer: int, queries: Queries, choice: Choice, ranking: Tensor) -> None:
        """Show the choice to those who guess next, and to those who say how much."""
        ranked = ranking.masked_fill(~choice.is_free[:, None], 0)
        self._speculation.learn(layer, ranked, choice.selected)
        if self._predictor.name != self._last.name:
            self._observe(self._last, layer, queries, choice)
        if not self._predictor.sees_the_choice:
            self._observe(self._predictor, layer, queries, choice)

    def _observe(self, predictor: Predictor, layer: int, queries: Queries, choice: Choice) -> None:
        predictor.observe(layer, queries.rows, choice.selected, choice.scores, choice.is_free)

    def _forget(self, row: int, length: int) -> None:
        for predictor in (self._predictor, self._last):
            predictor.forget(row, -(-length // self.unit))

    def _report(
        self,
        queries: Queries,
        choice: Choice,
        helpings: tuple[Helping[Any], Helping[Any]],
        state: Partials,
        times: Timeline,
    ) -> Step:
        units = torch.arange(choice.chosen.shape[-1], device=self.cache.device) * self.unit
        tokens = (queries.visible[:, None] - units).clamp(min=0, max=self.unit)
        early, late = (helping.is_computed for helping in helpings)
        return Step(
            state=state,
            chosen=choice.chosen,
            keys_seen=(tokens[:, None] * choice.chosen).sum(-1),
            speculated=int(early.sum()),
            reused=int((early & choice.chosen).sum()),
            repaired=int(late.sum()),
            times=times,
        )
