"""Small caches and queries that the tests of sparse attention share."""

import torch

from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.selection import Queries


def filled(
    lengths=(20,),
    *,
    block_size=4,
    kv_heads=2,
    head_dim=8,
    layers=1,
    stride=2,
    index_dim=3,
    dtype=torch.float64,
    seed=0,
    page_order=(),
) -> BlockCache:
    """A cache with random tokens."""
    shape = CacheShape(
        num_rows=len(lengths),
        num_layers=layers,
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        stride=stride,
        index_dim=index_dim,
    )
    cache = BlockCache(shape, dtype=dtype, page_order=page_order)
    for layer in range(layers):
        append(cache, layer, lengths, seed=seed + layer)
    return cache


def append(cache: BlockCache, layer: int, counts, *, seed: int) -> None:
    """Random tokens for each row; the same for a seed and a total."""
    s, total = cache.shape, sum(counts)
    rng = torch.Generator().manual_seed(seed)
    keys, values = torch.randn(2, total, s.kv_heads, s.head_dim, generator=rng, dtype=torch.float64)
    index = torch.randn(total, s.index_dim, generator=rng, dtype=torch.float64)
    cache.append(
        layer,
        counts,
        keys.to(cache.dtype),
        values.to(cache.dtype),
        index.to(cache.dtype) if s.index_dim else None,
    )


def asking(cache: BlockCache, rows=(0,), visible=None, *, group=2, seed=9) -> Queries:
    """Random queries of these rows, which see all of them unless told."""
    s = cache.shape
    rng = torch.Generator().manual_seed(seed)
    visible = [cache.length(row) for row in rows] if visible is None else visible
    draw = [
        torch.randn(len(rows), *sizes, generator=rng, dtype=torch.float64)
        for sizes in ((s.kv_heads, group, s.head_dim), (2, max(s.index_dim, 1)), (2,))
    ]
    return Queries(
        vectors=draw[0].to(cache.dtype),
        rows=torch.tensor(rows),
        visible=torch.tensor(visible),
        scale=s.head_dim**-0.5,
        index=draw[1] if s.index_dim else None,
        index_weights=draw[2] if s.index_dim else None,
    )


def one(queries: Queries, number: int) -> Queries:
    """One of these queries, alone."""
    at = slice(number, number + 1)
    index, weights = queries.index, queries.index_weights
    return Queries(
        vectors=queries.vectors[at],
        rows=queries.rows[at],
        visible=queries.visible[at],
        scale=queries.scale,
        index=None if index is None else index[at],
        index_weights=None if weights is None else weights[at],
    )


def softmax_attention(cache: BlockCache, queries: Queries, number: int, positions) -> torch.Tensor:
    """One query's attention over these positions, by the textbook in float64: [H, G, D]."""
    keys, values = (t.double() for t in cache.tokens(0, int(queries.rows[number])))
    query = queries.vectors[number].double()
    logits = torch.einsum("hgd,thd->hgt", query, keys[positions]) * queries.scale
    return torch.einsum("hgt,thd->hgd", logits.softmax(-1), values[positions])
