"""How blocks or tokens are scored: Quest, InfLLM-v2, and DeepSeek's lightning indexer.

Letters: Q queries, H KV heads, G query heads of one KV head, U units (blocks or tokens), W windows
of keys, T tokens, D head width, J heads of an indexer.

Every sum is a `fold`: it does not change with the queries or the padding beside it, so a query
selects in a batch what it selects alone.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.partials import fold, working_dtype
from varifocal.sparse.selection import Queries


class Selector(ABC):
    """Scores units for queries. Scores of units that a query does not see have no meaning."""

    name: ClassVar[str]
    by_token: ClassVar[bool] = False  # whether units are tokens rather than blocks
    reads_index: ClassVar[bool] = False  # whether it reads the index keys of an indexer

    def unit(self, cache: BlockCache) -> int:
        """Tokens of a unit."""
        return 1 if self.by_token else cache.shape.block_size

    @abstractmethod
    def scores(self, cache: BlockCache, layer: int, queries: Queries) -> Float[Tensor, "Q H U"]:
        """How much each unit matters, for all units up to the longest visible length."""


class Quest(Selector):
    """An upper bound of q.k over each block, from the extremes of its keys. [Quest, Sec. 3.3]

    The paper selects for every query head; here the heads of a group share their blocks, by the
    greatest bound among them, so that a block is read once.
    """

    name = "quest"

    def scores(self, cache: BlockCache, layer: int, queries: Queries) -> Float[Tensor, "Q H U"]:
        """max over the group of sum over d of max(q_d least_d, q_d greatest_d)."""
        work = working_dtype(cache.dtype)
        least, greatest = cache.bounds(layer, queries.rows, _blocks(cache, queries))
        query = queries.vectors.to(work)[:, :, :, None]
        products = torch.maximum(
            query * least.to(work)[:, :, None], query * greatest.to(work)[:, :, None]
        )
        return fold(products, -1).amax(2)


class InfLLM(Selector):
    """Softmax over means of overlapping windows, summed over the group, pooled. [InfLLM-v2]

    A window is two strides long and starts every stride; a block's score is the greatest among
    the windows that touch it. Windows count once the query sees all of their tokens.
    """

    name = "infllm"

    def scores(self, cache: BlockCache, layer: int, queries: Queries) -> Float[Tensor, "Q H U"]:
        """Greatest summed probability among the windows of each block."""
        blocks = _blocks(cache, queries)
        means = cache.means(layer, queries.rows, blocks)
        stride = cache.shape.stride
        windows = (means[:, :, :-1] + means[:, :, 1:]) / 2
        ends = (torch.arange(windows.shape[2], device=cache.device) + 2) * stride
        is_whole = (ends <= queries.visible[:, None])[:, None, None]
        query = queries.vectors.to(windows.dtype)[:, :, :, None]
        logits = fold(query * windows[:, :, None], -1) * queries.scale
        return self._pooled(self._probabilities(logits, is_whole), cache.shape.block_size // stride)

    @staticmethod
    def _probabilities(logits: Tensor, is_whole: Tensor) -> Float[Tensor, "Q H W"]:
        if not logits.shape[-1]:
            return logits.new_zeros(*logits.shape[:2], 0)
        logits = logits.masked_fill(~is_whole, -torch.inf)
        peak = logits.amax(-1, keepdim=True)
        weights = (logits - peak.masked_fill(peak == -torch.inf, 0)).exp()
        mass = fold(weights, -1)[..., None]
        return fold(weights / mass.masked_fill(mass == 0, 1), 2)

    @staticmethod
    def _pooled(windows: Float[Tensor, "Q H W"], parts: int) -> Float[Tensor, "Q H U"]:
        """A block of so many parts is touched by one window more, the first of them shared."""
        padded = torch.nn.functional.pad(windows, (1, 1))
        return padded.unfold(-1, parts + 1, parts).amax(-1)


class LightningTokens(Selector):
    """DeepSeek-V3.2's indexer: weighted sum of clipped products, per token. [DeepSeek-V3.2]

    I(t, s) = sum over j of w(t, j) ReLU(qI(t, j) . kI(s)), scaled by (J I)^-0.5. All KV heads
    share it. The model gives qI, w and kI, rotated as it rotates them.
    """

    name = "lightning_tokens"
    by_token = True
    reads_index = True

    def scores(self, cache: BlockCache, layer: int, queries: Queries) -> Float[Tensor, "Q H U"]:
        """I(t, s) for every token up to the longest visible length."""
        scores = _token_scores(cache, layer, queries)[:, : int(queries.visible.max())]
        return scores[:, None].expand(-1, cache.shape.kv_heads, -1)


class Lightning(Selector):
    """The same indexer by block: a block scores what its best visible token does. [MiniMax-M3]"""

    name = "lightning"
    reads_index = True

    def scores(self, cache: BlockCache, layer: int, queries: Queries) -> Float[Tensor, "Q H U"]:
        """Greatest I(t, s) within each block."""
        scores = _token_scores(cache, layer, queries)
        places = torch.arange(scores.shape[1], device=cache.device)
        scores = scores.masked_fill(places >= queries.visible[:, None], -torch.inf)
        best = scores.view(len(queries), -1, cache.shape.block_size).amax(-1)
        return best[:, None].expand(-1, cache.shape.kv_heads, -1)


SELECTORS: dict[str, type[Selector]] = {
    cls.name: cls for cls in (Quest, InfLLM, Lightning, LightningTokens)
}


def find_selector(name: str) -> type[Selector]:
    """A selector's class by its name."""
    if name not in SELECTORS:
        raise BadOption(f"no selector {name!r}; there are {', '.join(SELECTORS)}")
    return SELECTORS[name]


def load_selector(name: str, cache: BlockCache) -> Selector:
    """A selector by name, if the cache keeps what it reads."""
    selector = find_selector(name)()
    if isinstance(selector, InfLLM) and not cache.shape.stride:
        raise BadOption("infllm reads means of keys: make the cache with a stride, such as 16")
    if selector.reads_index and not cache.shape.index_dim:
        raise BadOption(
            f"{name} reads the index keys of a model with an indexer: make the cache with its "
            "index_dim, or choose quest or infllm, which read the model's own keys"
        )
    return selector


def _blocks(cache: BlockCache, queries: Queries) -> int:
    return cache.num_blocks(int(queries.visible.max()))


def _token_scores(cache: BlockCache, layer: int, queries: Queries) -> Float[Tensor, "Q T"]:
    if queries.index is None or queries.index_weights is None:
        raise BadRequest("lightning selection needs the indexer's queries and weights, got none")
    keys = cache.index_keys(layer, queries.rows, _blocks(cache, queries))
    work = working_dtype(cache.dtype)
    heads, width = queries.index.shape[1:]
    products = queries.index.to(work)[:, :, None] * keys.to(work)[:, None]
    clipped = fold(products, -1).relu()
    weights = queries.index_weights.to(work)[:, :, None] * (heads * width) ** -0.5
    return fold(weights * clipped, 1)
