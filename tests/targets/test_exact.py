"""Attention that gives a node the same result wherever its ancestors lie in the cache."""

import pytest
import torch

from varifocal.targets._exact import EXACT_ROWS, _exact_attention, exact_scores

KV_HEADS, WIDTH = 2, 64


def entries(count: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Keys and values of so many tokens, in a buffer that is longer, as in the cache."""
    rng = torch.Generator().manual_seed(seed)
    room = [torch.randn(1, KV_HEADS, count + 70, WIDTH, generator=rng) for _ in range(2)]
    return [buffer.to(dtype)[:, :, :count] for buffer in room]


def attend(query, keys, values, sees):
    """Rows against entries; `sees` [N, S] says which."""
    mask = torch.zeros(sees.shape, dtype=query.dtype)
    mask = mask.masked_fill(~sees, torch.finfo(query.dtype).min)[None, None]
    out, _ = _exact_attention(None, query, keys, values, mask)
    return out.transpose(1, 2)


def rows(count: int, heads: int, dtype: torch.dtype) -> torch.Tensor:
    rng = torch.Generator().manual_seed(count)
    return (2 * torch.randn(1, heads, count, WIDTH, generator=rng)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("heads", [KV_HEADS, 3 * KV_HEADS])
@pytest.mark.parametrize("context", [300, 3000])
def test_a_node_gets_the_same_result_wherever_its_ancestors_lie(dtype, heads, context):
    for trial, size in enumerate((9, 16, 24, 41)):
        keys, values = entries(context + size, dtype, trial)
        query = rows(size, heads, dtype)
        path = torch.randperm(size, generator=torch.Generator().manual_seed(trial))[:7].sort()[0]
        sees = torch.eye(context + size, dtype=torch.bool)[context:]
        sees[:, :context] = True
        sees[path[-1], context + path] = True
        drafted = attend(query, keys, values, sees)[:, :, path[-1]]
        # Plain decoding: the ancestors lie together, the node is the first of eight rows.
        order = torch.cat([torch.arange(context), context + path])
        order = torch.cat([order, context + path[-1:].expand(EXACT_ROWS - 1)])
        alone = query[:, :, path[-1:]].expand(-1, -1, EXACT_ROWS, -1)
        past = context + len(path) - 1
        sees = torch.eye(past + EXACT_ROWS, dtype=torch.bool)[past:]
        sees[:, :past] = True
        plain = attend(alone, keys[:, :, order], values[:, :, order], sees)[:, :, 0]
        assert torch.equal(drafted, plain)


@pytest.mark.parametrize("width", [16, 64, 80, 128])
def test_a_score_is_the_same_for_any_number_and_order_of_rows_and_entries(width):
    rng = torch.Generator().manual_seed(width)
    keys = torch.randn(1, 4, 600, width, generator=rng).bfloat16()
    query = torch.randn(1, 4, 128, width, generator=rng).bfloat16()
    whole = exact_scores(query, keys)
    for count in (8, 9, 11, 16, 17, 24, 31, 40, 41, 63, 96, 123):
        for size in (17, 64, 129, 255, 256, 259, 300, 511, 513, 600):
            r = torch.randperm(128, generator=rng)[:count]
            c = torch.randperm(600, generator=rng)[:size]
            assert torch.equal(exact_scores(query[:, :, r], keys[:, :, c]), whole[:, :, r][..., c])


@pytest.mark.parametrize("heads", [KV_HEADS, 3 * KV_HEADS])
def test_exact_attention_agrees_with_the_stock_kernel(heads):
    keys, values = entries(116, torch.float32, 0)
    query = rows(16, heads, torch.float32)
    sees = torch.rand(16, 116, generator=torch.Generator().manual_seed(1)) < 0.5
    sees[:, 0] = True
    stock = torch.nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=sees, enable_gqa=True
    )
    torch.testing.assert_close(attend(query, keys, values, sees), stock, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [300, 1500])
def test_exact_attention_rounds_the_true_result_once(count):
    keys, values = entries(count, torch.bfloat16, 0)
    query = rows(16, 3 * KV_HEADS, torch.bfloat16)
    sees = torch.ones(16, count, dtype=torch.bool)
    true = torch.nn.functional.scaled_dot_product_attention(
        query.double(), keys.double(), values.double(), enable_gqa=True
    )
    made = attend(query, keys, values, sees)
    assert (made == true.bfloat16()).float().mean() > 0.999


def test_a_prefill_takes_the_stock_causal_kernel():
    keys, values = entries(40, torch.bfloat16, 0)
    query = rows(40, KV_HEADS, torch.bfloat16)
    out, _ = _exact_attention(None, query, keys, values, None)
    stock = torch.nn.functional.scaled_dot_product_attention(query, keys, values, is_causal=True)
    assert torch.equal(out.transpose(1, 2), stock)
