"""Sparse attention as an attention implementation of transformers: prefill dense, decode sparse.

    from varifocal.sparse.huggingface import SparseCache, use

    use(model)
    cache = SparseCache(model, Reach(budget=2048))
    model.generate(**inputs, cache=cache)  # past_key_values=cache before transformers 5.24

Nothing of transformers is patched: `use` registers a name and chooses it for this model. The keys
live in the cache, which belongs to one batch; in place of keys the attention function gets a
`Reading` of it. A forward over one token a row attends sparsely. One over several is dense: a
prefill, or the verification of drafted tokens, which is then lossless; under a 4D mask it is the
verification of a tree. Padding never enters the cache.
"""

from copy import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from varifocal.cache import check_cacheable
from varifocal.errors import BadOption, BadRequest, UnsupportedTarget
from varifocal.sparse.accounting import HitRate
from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.guard import GuardedSpeculation
from varifocal.sparse.phases import PhaseTimes
from varifocal.sparse.profiling import FEWEST, Care, measure
from varifocal.sparse.queues import Queues
from varifocal.sparse.runtime import SparseAttention, Step
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.speculation import NoSpeculation, ProfiledSpeculation, Speculation

NAME = "varifocal_sparse"


def use(model: Any) -> None:
    """Let a model's language part attend sparsely, once it is given a `SparseCache`."""
    config = model.config.get_text_config()
    check_cacheable(config, str(config.model_type))
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, _mask)
    is_part = config is not model.config  # the tower of a VLM keeps its own attention
    model.set_attn_implementation({"text_config": NAME} if is_part else NAME)


@dataclass(frozen=True)
class Reading:
    """What the attention function gets for keys: the new ones, and the cache they belong to."""

    cache: "SparseCache"
    layer: int
    keys: Tensor  # [R, H, N, D], padding included
    values: Tensor


class _Layer(CacheLayerMixin):
    """What transformers asks of one layer: lengths. The tokens are appended when attending."""

    is_sliding = False
    is_compileable = False
    is_croppable = True

    def __init__(self, owner: "SparseCache", number: int) -> None:
        super().__init__()
        self._owner, self._number, self._columns = owner, number, 0

    def under(self, owner: "SparseCache") -> "_Layer":
        """The same layer of another cache."""
        twin = copy(self)
        twin._owner = owner
        return twin

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Reading, Reading]:
        self.lazy_initialization(key_states, value_states)
        self._columns += key_states.shape[2]
        reading = Reading(self._owner, self._number, key_states, value_states)
        return reading, reading

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._columns + query_length, 0

    def get_seq_length(self) -> int:
        return self._columns

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length  # its name before transformers 5.15

    def crop(self, tokens_to_remove: int) -> None:
        self._columns -= abs(tokens_to_remove)

    def reset(self) -> None:
        raise BadRequest("a SparseCache serves one batch: make a new one for the next")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise BadRequest("sparse attention decodes without beams: leave num_beams at 1")

    batch_repeat_interleave = batch_select_indices = reorder_cache


class SparseCache(Cache):
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
        is_plain: bool = False,
        is_measured: bool = False,
    ) -> None:
        """For `num_rows` sequences; `is_plain` selects and attends in turn, without PRR.

        `is_measured`: once the prompt is read, see `calibrate`.
        """
        config = model.config.get_text_config()
        if config._attn_implementation != NAME:
            raise BadOption(
                f"the model attends by {config._attn_implementation!r}, which cannot read blocks: "
                "call varifocal.sparse.huggingface.use(model) first"
            )
        heads = config.num_attention_heads
        shape = CacheShape(
            num_rows=num_rows,
            num_layers=config.num_hidden_layers,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            block_size=block_size,
            stride=_stride(block_size) if selector == "infllm" else 0,
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
        super().__init__(layers=[_Layer(self, number) for number in range(shape.num_layers)])

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
        twin._is_plain, twin._waits_to_measure = is_plain, False
        twin._queues, twin._predictor = queues, predictor
        twin.layers = [layer.under(twin) for layer in self.layers]
        for layer, queries in self._last_queries.items():
            twin.attention.prime(layer, queries)
        return twin

    def take(self, cache: Cache) -> None:
        """Read what another cache of transformers holds, all rows of one length: a prefill."""
        blocks = self.attention.cache
        for number, layer in enumerate(cache.layers):
            keys, values = (part.transpose(1, 2) for part in (layer.keys, layer.values))
            rows, length = keys.shape[:2]
            blocks.append(number, [length] * rows, keys.flatten(0, 1), values.flatten(0, 1))
            self.layers[number]._columns += length

    def calibrate_if_asked(self) -> None:
        """Once after the prompt, with `is_measured`; else the first decoded token does it."""
        if self._waits_to_measure and self._last_queries:
            self.calibrate()

    def calibrate(self) -> PhaseTimes | None:
        """Measure what phases take at the present length, and guess as many blocks as pays.

        Takes some forty steps of a layer. None, and no guesses, where the text is too short to
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
        times = measure(
            mine.cache,
            mine.reach,
            layer,
            queries,
            selector=mine.selector.name,
            predictor=self._predictor,
            queues=self._queues,
            kernel=mine.kernel,
            care=Care(repeats=3),
        )
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
        is_real = _real(mask, rows, new, query.device)
        keys = reading.keys.transpose(1, 2)[is_real]
        values = reading.values.transpose(1, 2)[is_real]
        blocks.append(layer, is_real.sum(-1).tolist(), keys, values)
        if new == 1 and bool(is_real.all()):
            return self._decode(layer, query, scale)
        tree = mask if mask is not None and mask.ndim == 4 else None
        return self._prefill(layer, query, is_real, tree, scale)

    def _decode(self, layer: int, query: Tensor, scale: float) -> Tensor:
        queries = self._queries(layer, query[:, :, 0], range(len(query)), scale)
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
        self._prime(layer, query, is_real, scale)
        return output

    def _prime(self, layer: int, query: Tensor, is_real: Tensor, scale: float) -> None:
        """The last query of each row shows the predictors what is likely to be chosen next."""
        rows = is_real.any(-1).nonzero().flatten()
        places = torch.arange(is_real.shape[1], device=query.device)
        last = (places * is_real).amax(-1)[rows]
        queries = self._queries(layer, query[rows, :, last], rows.tolist(), scale)
        self._last_queries[layer] = queries
        self.attention.prime(layer, queries)

    def _queries(self, layer: int, vectors: Tensor, rows: Any, scale: float) -> Queries:
        blocks = self.attention.cache
        at = torch.tensor([*rows], device=vectors.device)
        return Queries(
            vectors=vectors.unflatten(1, (blocks.shape.kv_heads, -1)),
            rows=at,
            visible=blocks.lengths(layer)[at],
            scale=scale,
        )


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Any,
    value: Any,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls."""
    if not isinstance(key, Reading):
        raise BadRequest(
            "sparse attention reads its own cache: pass cache=SparseCache(model, Reach(...)), or "
            "choose another attention implementation for forwards without one"
        )
    unknown = [name for name in ("softcap", "s_aux") if options.get(name) is not None]
    if dropout or unknown or options.get("sliding_window"):
        wanted = unknown or (["dropout"] if dropout else ["sliding_window"])
        raise UnsupportedTarget(f"sparse attention has no {', '.join(wanted)}; this model needs it")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return key.cache.attend(key.layer, query, key, attention_mask, scale), None


def _mask(
    *, attention_mask: Tensor | None = None, mask_function: Any = causal_mask_function, **_: Any
) -> Tensor | None:
    """The padding mask as it is; what is causal follows from the cache."""
    if mask_function is not causal_mask_function:
        raise UnsupportedTarget(
            "sparse attention is causal; this model lets some tokens see later ones, or packs "
            "several texts into one row"
        )
    return attention_mask


def _real(mask: Tensor | None, rows: int, new: int, device: torch.device) -> Tensor:
    """Which of the new tokens are no padding: [R, N]."""
    if mask is None or mask.ndim == 4:
        return torch.ones(rows, new, dtype=torch.bool, device=device)
    return mask[:, -new:].bool()


def _causal(new: int, length: int, device: torch.device) -> Tensor | None:
    """What each of the newest tokens sees; None where they are all there is."""
    if new == length:
        return None
    return torch.ones(new, length, dtype=torch.bool, device=device).tril(length - new)


def _stride(block_size: int) -> int:
    """Means of 16 keys as InfLLM-v2 has them, or of whole smaller blocks."""
    return 16 if block_size % 16 == 0 else block_size
