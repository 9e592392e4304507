"""Sparse attention as an attention implementation of transformers: prefill dense, decode sparse.

    from varifocal.sparse.huggingface import SparseCache, use

    use(model)
    cache = SparseCache(model, Reach(budget=2048))
    model.generate(**inputs, cache=cache)  # past_key_values=cache before transformers 5.24

Nothing of transformers is patched: `use` registers a name and chooses it for this model. The keys
live in the cache, which belongs to one batch. A forward over one token a row attends sparsely. One
over several is dense: a prefill, or the verification of drafted tokens, which is then lossless;
under a 4D mask it is the verification of a tree. Padding never enters the cache.

    cache = SparseCache(model, Reach(...), selector="lightning", indexer=load_indexer(DIR))

selects by a trained indexer: index keys are made of every token that is read.
"""

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.accounting import HitRate
from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.guard import GuardedSpeculation
from varifocal.sparse.indexer import Indexer
from varifocal.sparse.interface import (
    NAME,
    AttendingCache,
    Entering,
    Layer,
    Reading,
    listen,
    real_tokens,
    use,
)
from varifocal.sparse.phases import PhaseTimes
from varifocal.sparse.profiling import FEWEST, Care, Trial, measure
from varifocal.sparse.queues import Queues
from varifocal.sparse.runtime import SparseAttention, Step
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.selectors import find_selector
from varifocal.sparse.speculation import NoSpeculation, ProfiledSpeculation, Speculation

__all__ = ["NAME", "SparseCache", "use"]


class SparseCache(AttendingCache):
    """The cache of one batch, with the selector, predictor and counts that belong to it."""

    def __init__(
        self,
        model: Any,
        reach: Reach,
        *,
        num_rows: int = 1,
        block_size: int = 16,
        selector: str = "quest",
        predictor: str = "ema",
        speculation: Speculation | None = None,
        queues: Queues | None = None,
        kernel: str = "torch",
        indexer: Indexer | None = None,
        is_plain: bool = False,
        is_measured: bool = False,
    ) -> None:
        """For `num_rows` sequences; `is_plain` selects and attends in turn, without PRR.

        `indexer`: for the selectors that read one. `is_measured`: once the prompt is read, see
        `calibrate`.
        """
        config = model.config.get_text_config()
        if config._attn_implementation != NAME:
            raise BadOption(
                f"the model attends by {config._attn_implementation!r}, which cannot read blocks: "
                "call varifocal.sparse.huggingface.use(model) first"
            )
        self._indexer = _indexer_for(selector, indexer, model)
        self._entered: dict[int, Entering] = {}  # from a layer's hook to its attention
        heads = config.num_attention_heads
        shape = CacheShape(
            num_rows=num_rows,
            num_layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            block_size=block_size,
            stride=_stride(block_size) if selector == "infllm" else 0,
            index_dim=0 if self._indexer is None else self._indexer.config.width,
        )
        blocks = BlockCache(shape, dtype=model.dtype, device=model.device)
        self.attention = SparseAttention(
            blocks,
            reach,
            selector=selector,
            predictor=predictor,
            speculation=speculation,
            queues=queues,
            kernel=kernel,
        )
        self._is_plain, self._waits_to_measure = is_plain, is_measured
        self._queues, self._predictor = queues, predictor
        self._last_queries: dict[int, Queries] = {}  # of the last prefill
        super().__init__(layers=[Layer(self, number) for number in range(shape.num_layers)])

    def branch(
        self,
        *,
        predictor: str = "ema",
        speculation: Speculation | None = None,
        queues: Queues | None = None,
        is_plain: bool = False,
    ) -> "SparseCache":
        """A cache that goes on from the same tokens with a predictor of its own, primed alike.

        The keys are copied: neither sees what the other appends.
        """
        twin, mine = copy(self), self.attention
        twin.attention = SparseAttention(
            mine.cache.copy(),
            mine.reach,
            selector=mine.selector.name,
            predictor=predictor,
            speculation=speculation,
            queues=queues,
            kernel=mine.kernel,
        )
        twin._entered = {}
        twin._is_plain, twin._waits_to_measure = is_plain, False
        twin._queues, twin._predictor = queues, predictor
        twin.layers = [layer.under(twin) for layer in self.layers]
        for layer, queries in self._last_queries.items():
            twin.attention.prime(layer, queries)
        return twin

    @property
    def can_take(self) -> bool:
        """Whether `take` serves: not with an indexer, which reads hidden states."""
        return self._indexer is None

    def take(self, cache: Cache) -> None:
        """Read what another cache of transformers holds, all rows of one length: a prefill."""
        if not self.can_take:
            raise BadRequest(
                "another cache has no index keys to take over: let the model read the prompt into "
                "this one"
            )
        blocks = self.attention.cache
        for number, layer in enumerate(cache.layers):
            keys, values = (part.transpose(1, 2) for part in (layer.keys, layer.values))
            rows, length = keys.shape[:2]
            blocks.append(number, [length] * rows, keys.flatten(0, 1), values.flatten(0, 1))
            self.layers[number].columns += length

    def calibrate_if_asked(self) -> None:
        """Once after the prompt, with `is_measured`; else the first decoded token does it."""
        if self._waits_to_measure and self._last_queries:
            self.calibrate()

    def calibrate(self) -> PhaseTimes | None:
        """Measure what phases take at the present length, and guess as many blocks as pays.

        Takes up to 32 steps of a layer. None, and no guesses, where the text is too short to
        measure; there the budget holds all of it anyway, or nearly.
        """
        self._waits_to_measure = False
        mine = self.attention
        layer = mine.reach.dense_layers
        if layer not in self._last_queries:
            raise BadRequest("there is nothing to measure with yet: let the model read a prompt")
        queries = self._last_queries[layer]
        if int(queries.visible.min()) < FEWEST * mine.unit:
            mine.guess_by(NoSpeculation())
            return None
        trial = Trial(
            cache=mine.cache,
            reach=mine.reach,
            layer=layer,
            selector=mine.selector.name,
            predictor=self._predictor,
            kernel=mine.kernel,
            care=Care(repeats=3),
        )
        times = measure(trial, queries, self._queues)
        layers = mine.cache.shape.num_layers
        mine.guess_by(GuardedSpeculation(ProfiledSpeculation(times, layers), layers))
        return times

    def rates(self) -> list[HitRate]:
        """Hit rates so far, those of `last` among them."""
        return self.attention.rates()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the newest tokens of every row; a negative count, as transformers wants it."""
        if tokens_to_remove > 0:
            raise BadRequest(f"crop takes a negative count of tokens, got {tokens_to_remove}")
        super().crop(tokens_to_remove)
        blocks = self.attention.cache
        for row in range(blocks.shape.num_rows):
            self.attention.truncate(row, blocks.length(row) + tokens_to_remove)

    def enter(self, layer: int, entering: Entering) -> None:
        """What an indexer will read, kept until this layer attends."""
        if self._indexer is not None:
            self._entered[layer] = entering

    def attend(
        self, layer: int, query: Tensor, reading: Reading, mask: Tensor | None, scale: float
    ) -> Tensor:
        """Append the new tokens and attend from them: [R, Hq, N, D] to [R, N, Hq, D]."""
        blocks = self.attention.cache
        rows, _, new, _ = query.shape
        if rows != blocks.shape.num_rows:
            raise BadRequest(
                f"this cache was made for {blocks.shape.num_rows} rows, got {rows}: set num_rows"
            )
        is_real = real_tokens(mask, rows, new, query.device)
        keys = reading.keys.transpose(1, 2)[is_real]
        values = reading.values.transpose(1, 2)[is_real]
        entering = self._entered.pop(layer, None)
        index = None
        if self._indexer is not None:
            if entering is None:
                raise BadRequest(
                    "the model does not hand over what its indexer reads: use this cache with the "
                    "model that it was made for"
                )
            index = self._indexer.layer(layer).keys(entering)[is_real]
        blocks.append(layer, is_real.sum(-1).tolist(), keys, values, index)
        if new == 1 and bool(is_real.all()):
            return self._decode(layer, query, entering, scale)
        tree = mask if mask is not None and mask.ndim == 4 else None
        output = self._prefill(layer, query, is_real, tree, scale)
        self._prime(layer, query, entering, is_real, scale)
        return output

    def _decode(self, layer: int, query: Tensor, entering: Entering | None, scale: float) -> Tensor:
        rows = torch.arange(len(query), device=query.device)
        queries = self._queries(layer, query, entering, rows, torch.zeros_like(rows), scale)
        self.calibrate_if_asked()
        act = self.attention.plain if self._is_plain else self.attention.step
        step: Step = act(layer, queries)
        return step.output(query.dtype).flatten(1, 2)[:, None]

    def _prefill(
        self, layer: int, query: Tensor, is_real: Tensor, tree: Tensor | None, scale: float
    ) -> Tensor:
        output = torch.zeros_like(query.transpose(1, 2))
        blocks = self.attention.cache
        for row in range(len(query)):
            asking = query[row, :, is_real[row]]
            if not asking.shape[1]:
                continue
            keys, values = (part.transpose(0, 1) for part in blocks.tokens(layer, row))
            output[row, is_real[row]] = nn.functional.scaled_dot_product_attention(
                asking[None],
                keys[None],
                values[None],
                _causal(asking.shape[1], keys.shape[1], query.device)
                if tree is None
                else tree[row],
                is_causal=tree is None and asking.shape[1] == keys.shape[1],  # takes no mask
                scale=scale,
                enable_gqa=True,
            )[0].transpose(0, 1)
        return output

    def _prime(
        self,
        layer: int,
        query: Tensor,
        entering: Entering | None,
        is_real: Tensor,
        scale: float,
    ) -> None:
        """The last query of each row shows the predictors what is likely to be chosen next."""
        rows = is_real.any(-1).nonzero().flatten()
        places = torch.arange(is_real.shape[1], device=query.device)
        last = (places * is_real).amax(-1)[rows]
        queries = self._queries(layer, query, entering, rows, last, scale)
        self._last_queries[layer] = queries
        self.attention.prime(layer, queries)

    def _queries(
        self,
        layer: int,
        query: Tensor,
        entering: Entering | None,
        rows: Tensor,
        places: Tensor,
        scale: float,
    ) -> Queries:
        """Of one token of each of these rows."""
        blocks = self.attention.cache
        index = weights = None
        if self._indexer is not None and entering is not None:
            index, weights = self._indexer.layer(layer).queries(entering.at(rows, places))
        return Queries(
            vectors=query[rows, :, places].unflatten(1, (blocks.shape.kv_heads, -1)),
            rows=rows,
            visible=blocks.lengths(layer)[rows],
            scale=scale,
            index=index,
            index_weights=weights,
        )


def _indexer_for(selector: str, indexer: Indexer | None, model: Any) -> Indexer | None:
    """Fitted to the model, which now hands over what it reads; None where nobody reads it."""
    if not find_selector(selector).reads_index:
        if indexer is not None:
            raise BadOption(f"{selector} reads no indexer: leave it out, or choose lightning")
        return None
    if indexer is None:
        raise BadOption(
            f"{selector} reads the index keys of a model with an indexer, and none was given: "
            "pass indexer=load_indexer(DIR), train one with `python -m "
            "varifocal.sparse.train_indexer`, or choose quest or infllm, which read the model's "
            "own keys"
        )
    fitted = indexer.fitted(model)
    listen(model)
    return fitted


def _causal(new: int, length: int, device: torch.device) -> Tensor | None:
    """What each of the newest tokens sees; None where they are all there is."""
    if new == length:
        return None
    return torch.ones(new, length, dtype=torch.bool, device=device).tril(length - new)


def _stride(block_size: int) -> int:
    """Means of 16 keys as InfLLM-v2 has them, or of whole smaller blocks."""
    return 16 if block_size % 16 == 0 else block_size
