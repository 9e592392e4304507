"""Steps of sparse attention against dense attention, and what they report."""

import pytest
import torch
from sparse_examples import append, asking, filled, softmax_attention

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.kernels import dense
from varifocal.sparse.predictors import PREDICTORS
from varifocal.sparse.runtime import SparseAttention
from varifocal.sparse.selection import Reach
from varifocal.sparse.selectors import SELECTORS
from varifocal.sparse.speculation import FixedSpeculation

SMALL = Reach(budget=8, first=2, recent=3)


def relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.double() - theirs).norm() / theirs.norm())


def decoded(attention: SparseAttention, steps: int, *, repeat: bool = False) -> list:
    """Steps of one token for one row and all layers; the query repeats or changes."""
    made = []
    for number in range(steps):
        for layer in range(attention.cache.shape.num_layers):
            append(attention.cache, layer, [1], seed=100 + number)
            queries = asking(attention.cache, seed=5 if repeat else 200 + number)
            made.append(attention.step(layer, queries))
    return made


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("predictor", PREDICTORS)
def test_sparse_is_dense_when_everything_fits(name, predictor):
    cache = filled([3, 30])
    queries = asking(cache, rows=(0, 1))
    reach = Reach(budget=4096, first=2, recent=3)  # larger than the cache: the dense path
    step = SparseAttention(cache, reach, selector=name, predictor=predictor).step(0, queries)
    full = dense(cache, 0, queries)
    assert step.keys_seen.tolist() == [[3, 3], [30, 30]]
    if name != "lightning_tokens":  # whose runs are not the cache's blocks
        assert torch.equal(step.state.total, full.total)
        assert torch.equal(step.state.mass, full.mass)
    for number in range(2):
        exact = softmax_attention(cache, queries, number, slice(None))
        assert relative(step.output(torch.float64)[number], exact) < 1e-12
        assert relative(full.output()[number], exact) < 1e-12


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("group", [1, 3, 8])
def test_the_output_is_attention_over_the_chosen_keys_to_1e_12(name, group):
    cache = filled([45])
    queries = asking(cache, group=group)
    attention = SparseAttention(cache, SMALL, selector=name)
    step = attention.step(0, queries)
    assert int(step.keys_seen.max()) < 45
    for head in range(2):
        tokens = step.chosen[0, head].repeat_interleave(attention.unit)[:45]
        exact = softmax_attention(cache, queries, 0, tokens)[head]
        assert relative(step.output(torch.float64)[0, head], exact) < 1e-12


@pytest.mark.parametrize("dtype,limit", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_lower_precision_stays_near_float64(dtype, limit):
    cache = filled([45], dtype=dtype)
    queries = asking(cache)
    step = SparseAttention(cache, SMALL).step(0, queries)
    output = step.output(dtype)
    assert output.dtype == dtype
    for head in range(2):
        tokens = step.chosen[0, head].repeat_interleave(4)[:45]
        exact = softmax_attention(cache, queries, 0, tokens)[head]
        assert relative(output[0, head], exact) < limit


def test_first_layers_can_stay_dense():
    cache = filled([45], layers=2)
    attention = SparseAttention(cache, Reach(budget=8, first=2, recent=3, dense_layers=1))
    queries = asking(cache)
    assert attention.step(0, queries).keys_seen.tolist() == [[45, 45]]
    assert int(attention.step(1, queries).keys_seen.max()) < 45


@pytest.mark.parametrize("length", [1, 2, 3])
def test_contexts_shorter_than_a_block_are_dense(length):
    cache = filled([length])
    queries = asking(cache)
    step = SparseAttention(cache, Reach(budget=4, first=1, recent=1)).step(0, queries)
    exact = softmax_attention(cache, queries, 0, slice(None))
    assert relative(step.output(torch.float64)[0], exact) < 1e-12


def test_a_repeated_query_is_guessed_by_the_last_choice_and_repairs_nothing():
    attention = SparseAttention(filled([60]), SMALL, predictor="last")
    first, *others = decoded(attention, 3, repeat=True)
    assert first.repaired == 4 and first.reused == first.speculated  # only kept blocks so far
    assert all(step.repaired == 0 for step in others)


def test_the_oracle_repairs_nothing_and_wastes_nothing():
    attention = SparseAttention(filled([60]), SMALL, predictor="oracle")
    for step in decoded(attention, 3):
        assert step.repaired == 0 and step.reused == step.speculated


def test_every_step_attends_to_what_is_reused_and_what_is_repaired():
    attention = SparseAttention(filled([60]), SMALL, speculation=FixedSpeculation(1.5))
    for step in decoded(attention, 6):
        assert step.reused + step.repaired == int(step.chosen.sum())
        assert step.reused <= step.speculated


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_hit_rates_always_show_last(predictor):
    attention = SparseAttention(filled([60], layers=2), SMALL, predictor=predictor)
    steps = decoded(attention, 4)
    rates = {(r.predictor, r.layer): r for r in attention.rates()}
    assert {name for name, _ in rates} == {predictor, "last"}
    assert {layer for _, layer in rates} == {None, 0, 1}
    total = rates[predictor, None]
    assert total.chosen == rates["last", None].chosen == 4 * 2 * 2 * 2  # 2 blocks, heads, layers
    assert total.repaired_blocks == sum(step.repaired for step in steps)
    assert total.hits == sum(rates[predictor, layer].hits for layer in (0, 1))
    if predictor == "oracle":
        assert total.hit_rate == 1 and total.waste_rate == 0
    if predictor == "none":
        assert total.hit_rate == 0 and total.waste_rate is None


def test_a_prefill_can_prime_the_predictor():
    attention = SparseAttention(filled([60]), SMALL, predictor="last")
    queries = asking(attention.cache)
    attention.prime(0, queries)
    assert attention.step(0, queries).repaired == 0


def test_what_was_rejected_is_no_longer_attended_to():
    kept, cut = (SparseAttention(filled([41]), SMALL) for _ in range(2))
    append(cut.cache, 0, [9], seed=77)
    cut.step(0, asking(cut.cache))
    cut.truncate(0, 41)
    assert torch.equal(
        kept.step(0, asking(kept.cache)).state.total, cut.step(0, asking(cut.cache)).state.total
    )


def test_a_tree_leaves_its_accepted_path():
    cache = filled([41])
    attention = SparseAttention(cache, SMALL)
    append(cache, 0, [6], seed=77)
    keys, _ = cache.tokens(0, 0)
    attention.keep(0, 41, [0, 2, 5])
    assert torch.equal(cache.tokens(0, 0)[0], keys[[*range(41), 41, 43, 46]])
    assert cache.length(0) == 44


def test_misuse_is_refused():
    cache = filled([9])
    attention = SparseAttention(cache, SMALL)
    with pytest.raises(BadRequest, match=r"queries see \[10\] keys of rows that hold \[9\]"):
        attention.step(0, asking(cache, visible=[10]))
    with pytest.raises(BadRequest, match=r"queries see \[0\] keys"):
        attention.step(0, asking(cache, visible=[0]))
    with pytest.raises(BadRequest, match="wanted queries grouped under 2 KV heads of width 8"):
        attention.step(0, asking(filled([9], kv_heads=1)))
    spoilt = asking(cache)
    spoilt.vectors[0, 0, 0, 0] = torch.nan
    with pytest.raises(BadRequest, match="queries hold NaN"):
        attention.plain(0, spoilt)
    with pytest.raises(BadOption, match="no predictor 'lost'; there are none, last, ema"):
        SparseAttention(cache, SMALL, predictor="lost")
    with pytest.raises(BadOption, match="leave none to be sparse"):
        SparseAttention(cache, Reach(dense_layers=1))
    with pytest.raises(BadOption, match="does not hold one block of 4"):
        SparseAttention(cache, Reach(budget=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block_size,head_dim,group", [(16, 64, 3), (64, 128, 8), (32, 80, 7)])
def test_prr_equals_plain_to_the_bit_at_the_sizes_of_real_models(
    block_size, head_dim, group, dtype
):
    cache = filled([600, 77], block_size=block_size, head_dim=head_dim, stride=16, dtype=dtype)
    reach = Reach(budget=4 * block_size, first=4, recent=20)
    attention = SparseAttention(cache, reach, speculation=FixedSpeculation(1.5))
    for number in range(3):
        append(cache, 0, [1, 1], seed=number)
        queries = asking(cache, rows=(0, 1), group=group, seed=number % 2)
        ours, plain = attention.step(0, queries), attention.plain(0, queries)
        assert torch.equal(ours.state.total, plain.state.total)
        assert torch.equal(ours.state.mass, plain.state.mass)
    assert ours.reused < ours.speculated  # it did guess wrong
