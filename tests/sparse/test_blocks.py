"""The paged cache reads as if tokens had come in one go and none had been taken back."""

import pytest
import torch
from sparse_examples import append, filled

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.blocks import BlockCache, CacheShape


def everything(cache: BlockCache, layer: int = 0) -> list[torch.Tensor]:
    """All that can be read of the cache, masked to what its rows hold."""
    found = []
    for row in range(cache.shape.num_rows):
        blocks = cache.num_blocks(cache.length(row, layer))
        rows = torch.tensor([row])
        found += [*cache.tokens(layer, row), *cache.bounds(layer, rows, blocks)]
        found.append(cache.means(layer, rows, blocks))
        found.append(cache.index_keys(layer, rows, blocks)[:, : cache.length(row, layer)])
    return found


def assert_same(ours: BlockCache, theirs: BlockCache) -> None:
    for layer in range(ours.shape.num_layers):
        pairs = zip(everything(ours, layer), everything(theirs, layer), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def refilled(whole: BlockCache, pieces, page_order=()) -> BlockCache:
    """The tokens of the one-row cache `whole`, brought in pieces."""
    cache = BlockCache(whole.shape, dtype=whole.dtype, page_order=page_order)
    start = 0
    for piece in pieces:
        for layer in range(whole.shape.num_layers):
            tokens = whole._tokens(layer, 0, range(start, start + piece))
            cache.append(layer, [piece], *tokens)
        start += piece
    return cache


@pytest.mark.parametrize("pieces", [[18], [1] * 18, [5, 4, 9], [4, 4, 4, 4, 2]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_summaries_do_not_depend_on_how_the_tokens_came(pieces, dtype):
    whole = filled([18], layers=2, dtype=dtype)
    assert_same(refilled(whole, pieces), whole)


def test_page_layout_changes_nothing_that_is_read():
    whole = filled([18], layers=2)
    assert_same(refilled(whole, [7, 11], page_order=[3, 0, 4, 1, 2]), whole)


@pytest.mark.parametrize("length", [0, 3, 4, 5, 8, 17, 18])
def test_rejected_tokens_leave_nothing_behind(length):
    whole = filled([18], layers=2)
    cut = refilled(whole, [18])
    cut.truncate(0, length)
    assert_same(cut, refilled(whole, [length]))


def test_a_kept_path_reads_as_if_it_alone_had_come():
    whole = filled([18], layers=2)
    cache = refilled(whole, [18])
    cache.keep(0, 10, [0, 3, 7])
    kept = [*range(10), 10, 13, 17]
    for layer in range(2):
        for ours, theirs in zip(cache.tokens(layer, 0), whole.tokens(layer, 0), strict=True):
            assert torch.equal(ours, theirs[kept])
    assert_same(cache, refilled(cache, [13]))


def test_freed_pages_serve_other_rows_without_their_old_tokens():
    cache = filled([9, 3])
    fresh = filled([9, 3])
    cache.truncate(0, 1)
    append(cache, 0, [0, 12], seed=7)
    fresh.truncate(0, 1)
    kept = fresh.nbytes
    append(fresh, 0, [0, 12], seed=7)
    assert fresh.nbytes == kept  # eight pages were there, and five are in use
    assert_same(cache, fresh)
    least, greatest = cache.bounds(0, torch.tensor([0]), 1)
    keys, _ = cache.tokens(0, 0)
    assert torch.equal(least[0, :, 0], keys[0]) and torch.equal(greatest[0, :, 0], keys[0])


def test_extremes_and_means_are_those_of_the_keys():
    cache = filled([10])
    keys, _ = cache.tokens(0, 0)
    least, greatest = cache.bounds(0, torch.tensor([0]), 3)
    assert torch.equal(least[0, :, 2], keys[8:].amin(0))
    assert torch.equal(greatest[0, :, 1], keys[4:8].amax(0))
    means = cache.means(0, torch.tensor([0]), 3)[0]
    torch.testing.assert_close(means[:, 3], keys[6:8].mean(0))
    assert torch.equal(means[:, 5], torch.zeros_like(means[:, 5]))  # a part that is not full


@pytest.mark.parametrize("part", ["keys", "values", "index keys"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_keys_that_are_no_numbers_are_refused(part, bad):
    cache = filled([3])
    tokens = {name: torch.zeros(1, 2, 8).double() for name in ("keys", "values")}
    tokens["index keys"] = torch.zeros(1, 3).double()
    tokens[part].view(-1)[0] = bad
    with pytest.raises(BadRequest, match=f"^{part} hold NaN or infinity"):
        cache.append(0, [1], *tokens.values())
    assert cache.length(0) == 3


def test_tokens_of_another_shape_or_dtype_are_refused():
    cache = filled([3])
    good = torch.zeros(1, 2, 8).double()
    with pytest.raises(BadRequest, match=r"wanted keys and values of shape \(1, 2, 8\)"):
        cache.append(0, [1], good[:, :1], good[:, :1], torch.zeros(1, 3))
    with pytest.raises(BadRequest, match="the cache holds torch"):
        cache.append(0, [1], good.float(), good.float(), torch.zeros(1, 3))
    with pytest.raises(BadRequest, match="wanted index keys of width 3 a token, got none"):
        cache.append(0, [1], good, good)
    with pytest.raises(BadRequest, match="cannot be cut to 4"):
        cache.truncate(0, 4)
    with pytest.raises(BadRequest, match="a path must rise within 0 and 1"):
        cache.keep(0, 1, [1, 0])


@pytest.mark.parametrize(
    "wrong", [{"block_size": 0}, {"block_size": 6, "stride": 4}, {"index_dim": -1}, {"num_rows": 0}]
)
def test_sizes_that_do_not_fit_are_refused(wrong):
    sizes = {"num_rows": 1, "num_layers": 1, "kv_heads": 1, "head_dim": 8, "block_size": 4}
    with pytest.raises(BadOption):
        CacheShape(**sizes | wrong)
