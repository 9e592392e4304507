"""K25 and K42: what must always be attended to, the budget, and several queries at once."""

import logging

import pytest
import torch
from sparse_examples import append, asking, filled, one, softmax_attention

from varifocal.sparse.blocks import BlockCache, CacheShape
from varifocal.sparse.kernels import dense
from varifocal.sparse.runtime import SparseAttention
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.selectors import SELECTORS


def with_a_sink(length: int) -> tuple[BlockCache, Queries]:
    """A text whose first token gets 60 % of the attention; the rest share what remains."""
    shape = CacheShape(num_rows=1, num_layers=1, kv_heads=1, head_dim=8, block_size=4, stride=2)
    cache = BlockCache(shape, dtype=torch.float64)
    rng = torch.Generator().manual_seed(0)
    keys = 0.1 * torch.randn(length, 1, 8, generator=rng, dtype=torch.float64)
    values = torch.randn(length, 1, 8, generator=rng, dtype=torch.float64)
    query = torch.zeros(1, 1, 1, 8, dtype=torch.float64)
    query[..., 0] = 1
    others = keys[1:, 0, 0].exp().sum()
    keys[0, 0, 0] = (1.5 * others).log()  # 0.6 / 0.4 of what the others weigh together
    cache.append(0, [length], keys, values)
    return cache, Queries(
        vectors=query, rows=torch.tensor([0]), visible=torch.tensor([length]), scale=1.0
    )


@pytest.mark.parametrize("selector", ["quest", "infllm"])
def test_crossing_the_budget_brings_no_cliff_where_the_first_token_matters(selector):  # B184
    reach = Reach(budget=8, first=4, recent=4)  # 16 tokens, with those that are kept
    errors = {}
    for length in (12, 15, 16, 17, 18, 20, 24, 32, 40):
        cache, queries = with_a_sink(length)
        step = SparseAttention(cache, reach, selector=selector).step(0, queries)
        assert step.chosen[0, 0, 0] and step.chosen[0, 0, -1]
        exact = softmax_attention(cache, queries, 0, slice(None))
        ours = step.output(torch.float64)[0]
        errors[length] = float((ours - exact).norm() / exact.norm())
    assert max(errors[n] for n in (12, 15, 16)) < 1e-12
    # Without its first token the error at 17 would be that of losing 60 % of the mass.
    assert errors[17] < 0.25 and max(errors.values()) < 0.45, errors


def test_losing_the_first_token_would_be_seen():
    cache, queries = with_a_sink(17)
    exact = softmax_attention(cache, queries, 0, slice(None))
    without = softmax_attention(cache, queries, 0, slice(1, None))
    assert float((without - exact).norm() / exact.norm()) > 0.45


@pytest.mark.parametrize("block_size", [1, 4, 8, 16])
@pytest.mark.parametrize("selector", SELECTORS)
def test_the_budget_is_in_tokens_for_every_block_size(block_size, selector, caplog):  # B186
    stride = block_size // 2 or 1
    reach = Reach(budget=32, first=4, recent=8)
    for length in (120, 121, 127, 128):
        cache = filled([length], block_size=block_size, stride=stride, kv_heads=1)
        with caplog.at_level(logging.INFO, "varifocal.sparse"):
            attention = SparseAttention(cache, reach, selector=selector)
        step = attention.step(0, asking(cache))
        kept = reach.kept(torch.tensor([length]), attention.unit, step.chosen.shape[-1])
        kept_tokens = int(kept.repeat_interleave(attention.unit, 1)[:, :length].sum())
        most = reach.most_tokens(attention.unit)
        assert int(step.keys_seen) == 32 + kept_tokens <= most
        assert f"at most {most} keys" in caplog.messages[-1]


@pytest.mark.parametrize("extra", [0, 1, 3])
@pytest.mark.parametrize("blocks", [1, 2, 5])
def test_exactly_full_and_partial_blocks_are_read_to_their_last_key(blocks, extra):
    length = 4 * blocks + extra
    cache = filled([length])
    queries = asking(cache)
    step = SparseAttention(cache, Reach(budget=100)).step(0, queries)
    exact = softmax_attention(cache, queries, 0, slice(None))
    torch.testing.assert_close(step.output(torch.float64)[0], exact, rtol=1e-11, atol=1e-13)
    assert step.keys_seen.tolist() == [[length, length]]


@pytest.mark.parametrize("selector", SELECTORS)
def test_rows_shorter_than_the_window_are_right_beside_longer_ones(selector):  # B188
    cache = filled([3, 20, 150])
    reach = Reach(budget=16, first=2, recent=48)
    queries = asking(cache, rows=(0, 1, 2))
    attention = SparseAttention(cache, reach, selector=selector)
    step = attention.step(0, queries)
    for row, length in enumerate((3, 20, 150)):
        for head in range(2):
            chosen = step.chosen[row, head].repeat_interleave(attention.unit)[:length]
            exact = softmax_attention(cache, queries, row, chosen)[head]
            ours = step.output(torch.float64)[row, head]
            torch.testing.assert_close(ours, exact, rtol=1e-11, atol=1e-13)
            assert chosen[-48:].all() and (length == 150) != bool(chosen.all())


@pytest.mark.parametrize("selector", SELECTORS)
def test_each_drafted_token_sees_what_it_would_see_alone(selector):  # K42
    """A verification of 7 tokens at once, across two borders of blocks, and one by one."""
    start, drafted = 34, 7
    whole, growing = filled([start]), filled([start])
    append(whole, 0, [drafted], seed=50)
    visible = [start + n + 1 for n in range(drafted)]
    queries = asking(whole, rows=(0,) * drafted, visible=visible)
    reach = Reach(budget=8, first=2, recent=3)
    together = SparseAttention(whole, reach, selector=selector).step(0, queries)
    attention = SparseAttention(growing, reach, selector=selector)
    for number in range(drafted):
        tokens = whole._tokens(0, 0, [start + number])
        growing.append(0, [1], *tokens)
        alone = attention.step(0, one(queries, number))
        units = alone.chosen.shape[-1]
        assert torch.equal(alone.chosen[0], together.chosen[number, :, :units])
        assert not together.chosen[number, :, units:].any()
        assert torch.equal(alone.state.total[0], together.state.total[number])
        assert torch.equal(alone.state.mass[0], together.state.mass[number])


def test_dense_verification_of_several_tokens_is_exact():  # K42
    cache = filled([34, 5])
    queries = asking(cache, rows=(0, 0, 0, 1, 1), visible=(31, 32, 34, 4, 5))
    full = dense(cache, 0, queries).output()
    for number, visible in enumerate(queries.visible.tolist()):
        exact = softmax_attention(cache, queries, number, slice(0, visible))
        torch.testing.assert_close(full[number], exact, rtol=1e-11, atol=1e-13)
