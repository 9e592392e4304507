"""How much of the attention selectors keep within one budget: an indexer beside quest and infllm.

The measure is the share of the true attention mass, over all heads, that falls on what was chosen,
kept tokens included. `kept` chooses nothing beside them and `oracle` the best blocks there are:
the bounds. Letters: Q queries, H KV heads, G query heads of one KV head, U units, T tokens.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.indexer import Indexer
from varifocal.sparse.indexer_teacher import Attention, show
from varifocal.sparse.selection import Queries, Reach, best, seen
from varifocal.sparse.selectors import load_selector
from varifocal.targets._hf import HFTarget

SELECTORS = ("quest", "infllm", "lightning", "lightning_tokens")
_AT_ONCE = 8  # queries scored together


@dataclass(frozen=True, kw_only=True)
class RecallConfig:
    """What is kept, and how many queries are asked."""

    reach: Reach = field(default_factory=lambda: Reach(budget=256))
    block_size: int = 16
    queries: int = 32  # of a text, evenly over its last third


@torch.no_grad()
def mass_kept(
    target: HFTarget,
    indexer: Indexer,
    texts: Iterable[Int64[Tensor, " T"]],
    config: RecallConfig,
) -> dict[str, float]:
    """Share of the attention mass by selector, a mean over layers, heads, queries and texts."""
    fitted = indexer.fitted(target.model)
    found = defaultdict[str, list[float]](list)

    def study(attention: Attention) -> None:
        length = len(attention.keys)
        spread = torch.linspace(length * 2 // 3, length - 1, config.queries)
        for places in spread.long().split(_AT_ONCE):
            for name, shares in _shares(attention, fitted, places, config).items():
                found[name] += shares.flatten().tolist()

    for text in texts:
        show(target, text, study)
    return {name: round(sum(shares) / len(shares), 4) for name, shares in found.items()}


def _shares(
    attention: Attention, indexer: Indexer, places: Int64[Tensor, " Q"], config: RecallConfig
) -> dict[str, Float[Tensor, "Q H G"]]:
    """By selector, and the bounds."""
    places = places.to(attention.keys.device)
    mass = attention.probabilities(places)
    cache, queries = _filled(attention, indexer, places, config.block_size)
    reach, found = config.reach, {}
    for name in SELECTORS:
        selector = load_selector(name, cache)
        scores = selector.scores(cache, 0, queries)
        chosen = _chosen(scores, queries.visible, reach, selector.unit(cache))
        found[name] = _on(mass, chosen, selector.unit(cache))
    size = config.block_size
    blocks = torch.nn.functional.pad(mass, (0, -mass.shape[-1] % size)).sum(2)
    truth = blocks.unflatten(-1, (-1, size)).sum(-1)[..., : cache.num_blocks(_most(queries))]
    found["oracle"] = _on(mass, _chosen(truth, queries.visible, reach, size), size)
    kept = reach.kept(queries.visible, size, truth.shape[-1])
    found["kept"] = _on(mass, kept[:, None].expand_as(truth), size)
    return found


def _most(queries: Queries) -> int:
    return int(queries.visible.max())


def _filled(
    attention: Attention, indexer: Indexer, places: Int64[Tensor, " Q"], block_size: int
) -> tuple[BlockCache, Queries]:
    """A cache of this layer alone, and the queries; no selector reads values."""
    length, heads, width = attention.keys.shape
    shape = CacheShape(
        num_rows=1,
        num_layers=1,
        kv_heads=heads,
        head_dim=width,
        block_size=block_size,
        stride=16 if block_size % 16 == 0 else block_size,
        index_dim=indexer.config.width,
    )
    cache = BlockCache(shape, dtype=attention.keys.dtype, device=attention.keys.device)
    layer = indexer.layer(attention.layer)
    index_keys = layer.keys(attention.entering)[0]
    cache.append(0, [length], attention.keys, attention.keys, index_keys)
    index, weights = layer.queries(attention.asking(places))
    return cache, Queries(
        vectors=attention.queries[places],
        rows=torch.zeros_like(places),
        visible=places + 1,
        scale=attention.scale,
        index=index,
        index_weights=weights,
    )


def _chosen(
    scores: Float[Tensor, "Q H U"], visible: Int64[Tensor, " Q"], reach: Reach, unit: int
) -> Bool[Tensor, "Q H U"]:
    """As a step chooses: the best free units, and the kept ones."""
    units = scores.shape[-1]
    kept = reach.kept(visible, unit, units)
    is_free = seen(visible, unit, units) & ~kept
    return best(scores, is_free[:, None].expand_as(scores), reach.count(unit)) | kept[:, None]


def _on(
    mass: Float[Tensor, "Q H G T"], chosen: Bool[Tensor, "Q H U"], unit: int
) -> Float[Tensor, "Q H G"]:
    """The mass on tokens of chosen units."""
    tokens = chosen.repeat_interleave(unit, -1)[..., : mass.shape[-1]]
    read: Tensor = (mass[..., : tokens.shape[-1]] * tokens[:, :, None]).sum(-1)
    return read
