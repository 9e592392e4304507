"""A step in fixed buffers chooses, guesses and computes what the runtime does, to the bit."""

import pytest
import torch
from sparse_examples import append, asking, filled, softmax_attention

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.padded import Kept, ranked, ranking
from varifocal.sparse.padded_torch import TorchOperations
from varifocal.sparse.predictors import Average
from varifocal.sparse.runtime import SparseAttention
from varifocal.sparse.selection import Queries, Reach, best, listed
from varifocal.sparse.static_step import Buffers, StaticStep
from varifocal.sparse.streams import SingleStream

REACH = Reach(budget=12, first=5, recent=6)
ROOM = 12  # tokens


def roomy(lengths, *, dtype=torch.float32, **shape):
    """A cache that has held more tokens and can hold them again without growing."""
    cache = filled(lengths, dtype=dtype, **shape)
    append(cache, 0, [ROOM] * len(lengths), seed=1)
    for row, length in enumerate(lengths):
        cache.truncate(row, length)
    return cache


def made(cache, *, group=2, guesses=5, beta=0.5, reach=REACH) -> StaticStep:
    buffers = Buffers.empty(cache, reach, group=group, guesses=guesses, scale=0.3)
    return StaticStep(cache, 0, TorchOperations(), buffers, beta=beta)


def run(step: StaticStep, queries: Queries) -> torch.Tensor:
    streams = SingleStream()
    step.buffers.queries.visible.copy_(queries.visible)
    step.begin(streams)
    step.buffers.queries.vectors.copy_(queries.vectors)
    output = step.attend(streams)
    step.join(streams)
    return output


def asked(cache, number: int, *, group=2) -> Queries:
    rows = tuple(range(cache.shape.num_rows))
    append(cache, 0, [1] * len(rows), seed=50 + number)
    asking_ = asking(cache, rows=rows, group=group, seed=number % 3)
    return Queries(vectors=asking_.vectors, rows=asking_.rows, visible=asking_.visible, scale=0.3)


@pytest.mark.parametrize("predictor,beta", [("ema", Average.BETA), ("last", 0.0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_static_step_is_the_runtimes_to_the_bit(predictor, beta, dtype):
    lengths = [46, 3, 21]
    static = made(roomy(lengths, dtype=dtype), beta=beta)
    runtime = SparseAttention(roomy(lengths, dtype=dtype), REACH, predictor=predictor)
    for number in range(8):
        queries = asked(static._cache, number)
        output = run(static, queries)
        wanted = runtime.plain(0, asked(runtime.cache, number))
        runtime.prime(0, queries)  # learns what was chosen, as the static step does
        chosen = listed(wanted.chosen)
        assert torch.equal(static.buffers.chosen[..., : chosen.shape[-1]], chosen.int())
        assert (static.buffers.chosen[..., chosen.shape[-1] :] == -1).all()
        for name in ("peak", "mass", "total"):
            ours = getattr(static.buffers.merged.state, name)
            assert torch.equal(ours, getattr(wanted.state, name))
        assert torch.equal(output, wanted.output(dtype))
        units = wanted.chosen.shape[-1]
        weights = runtime._predictor.weights(0, queries.rows, units)
        assert torch.equal(static.memory.numbers[..., :units], weights)


@pytest.mark.parametrize("guesses", [0, 2, 5, 99])
def test_guesses_change_no_bit(guesses):
    plain, guessing = (made(roomy([46, 3]), group=3, guesses=number) for number in (None, guesses))
    reused = 0
    for number in range(4):
        for step in (plain, guessing):
            run(step, asked(step._cache, number, group=3))
        for name in ("peak", "mass", "total"):
            ours = getattr(guessing.buffers.merged.state, name)
            assert torch.equal(ours, getattr(plain.buffers.merged.state, name))
        reused += reused_guesses(guessing)
    assert plain.buffers.early == 0 and bool(reused) is bool(guesses)


def reused_guesses(step: StaticStep) -> int:
    """Blocks that selection chose and that had been guessed: kept ones do not count."""
    b = step.buffers
    is_free = b.kept.is_free(b.queries.visible, b.ranks.shape[-1])[:, None].expand_as(b.ranks)
    is_early = (b.found >= 0) & (b.found < b.early)
    return int((is_early & is_free.gather(-1, b.chosen.clamp(min=0).long())).sum())


def test_a_guess_that_was_right_is_not_repaired():
    step = made(roomy([46]), guesses=3, beta=0.0)
    queries = asked(step._cache, 0)
    for turn in range(2):
        run(step, queries)
        early = step.buffers.early
        missing = step.buffers.board.blocks[:, :, early:]
        assert bool((missing >= 0).any()) is (turn == 0)


def test_rejected_tokens_are_forgotten():
    straight, back = made(roomy([30])), made(roomy([30]))
    runtime = SparseAttention(roomy([30]), REACH, predictor="ema")
    for step in (straight, back):
        run(step, asked(step._cache, 0))
    for number in range(1, 9):
        runtime.prime(0, asked(runtime.cache, number))
        run(back, asked(back._cache, number))
    back._cache.truncate(0, 31)
    back.forget(0, 31)
    assert not back.memory.numbers[0, :, 8:].any()
    queries = asked(straight._cache, 1)
    append(back._cache, 0, [1], seed=51)
    assert torch.equal(run(back, queries), run(straight, queries))


def test_the_output_is_attention_over_the_chosen_keys():
    step = made(roomy([46]), group=8)
    queries = asked(step._cache, 0, group=8)
    output = run(step, queries)
    for head in range(2):
        blocks = step.buffers.chosen[0, head]
        tokens = (blocks[blocks >= 0, None] * 4 + torch.arange(4)).flatten()
        exact = softmax_attention(step._cache, queries, 0, tokens[tokens < 47])[head]
        torch.testing.assert_close(output[0, head].double(), exact, rtol=1e-4, atol=1e-5)


def test_keys_rank_as_selection_does_whatever_ties_or_is_not_finite():
    rng = torch.Generator().manual_seed(0)
    scores = torch.randint(-2, 3, (6, 2, 40), generator=rng).float()
    scores[0, 0, :9] = torch.tensor(
        [0.0, -0.0, torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e-45, -1e-45]
    )
    is_free = torch.rand(6, 40, generator=rng) < 0.7
    keys = ranking(scores, is_free[:, None])
    for count in (1, 5, 20, 40):
        picked = ranked(keys.topk(count, sorted=False).values)
        units = torch.where(picked < 0, 40, picked)
        found = torch.zeros(6, 2, 41, dtype=torch.bool).scatter(-1, units, True)[..., :40]
        assert torch.equal(found, best(scores, is_free[:, None].expand_as(scores), count))


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("first,recent", [(1, 1), (2, 3), (16, 64), (5, 17)])
def test_listed_blocks_are_those_that_a_reach_keeps(block_size, first, recent):
    reach = Reach(budget=64, first=first, recent=recent)
    kept = Kept.of(reach, block_size)
    visible = torch.tensor([1, 2, 5, 16, 17, 31, 64, 65, 100])
    units = -(-100 // block_size)
    blocks = torch.empty(len(visible), 1, kept.most, dtype=torch.int32)
    nothing = torch.empty(len(visible), 1, 0, dtype=torch.int64)
    TorchOperations().list_blocks(nothing, visible, kept, blocks)
    wanted = reach.kept(visible, block_size, units)
    chosen = listed(wanted[:, None])
    assert torch.equal(blocks[..., : chosen.shape[-1]].long(), chosen)
    assert (blocks[..., chosen.shape[-1] :] == -1).all()
    is_seen = torch.arange(units) * block_size < visible[:, None]
    assert torch.equal(kept.is_free(visible, units), is_seen & ~wanted)


def test_what_a_static_step_cannot_do_is_refused():
    cache = filled([9], dtype=torch.float32)
    step = made(cache)
    append(cache, 0, [40], seed=0)
    with pytest.raises(BadRequest, match="the cache has grown and its pages have moved"):
        step.attend(SingleStream())
    with pytest.raises(BadRequest, match="the cache has grown"):
        step.begin(SingleStream())
    with pytest.raises(BadOption, match="ranks blocks in float32"):
        made(filled([9]))
    with pytest.raises(BadOption, match="guesses cannot be negative, got -1"):
        made(cache, guesses=-1)
    with pytest.raises(BadOption, match=r"beta must lie in \[0, 1\), got 1"):
        made(cache, beta=1.0)
    with pytest.raises(BadOption, match="a static step is sparse"):
        made(filled([9], layers=2, dtype=torch.float32), reach=Reach(budget=8, dense_layers=1))
    with pytest.raises(BadOption, match="has room for 16 blocks a row, not 17"):
        Buffers.empty(cache, REACH, group=1, guesses=1, scale=1.0, units=17)
