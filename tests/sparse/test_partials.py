"""States of single blocks and their merge: an identity, in one order, for every shape."""

import math

import pytest
import torch

from varifocal.sparse.partials import (
    Partials,
    attend_blocks,
    fold,
    merge,
    products,
    weigh,
)

ALL = torch.arange


def states(n, *, group=2, size=4, width=8, dtype=torch.float64, seed=0) -> Partials:
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randn(n, group, size, generator=rng, dtype=dtype)
    return weigh(logits, torch.randn(n, size, width, generator=rng, dtype=dtype))


def nothing(like: Partials) -> Partials:
    return Partials(like.peak[:0], like.mass[:0], like.total[:0])


def test_two_blocks_by_hand():
    query = torch.ones(2, 1, 1)
    keys = torch.tensor([[[0.0], [math.log(2)]], [[math.log(3)], [0.0]]])
    values = torch.tensor([[[1.0], [2.0]], [[3.0], [99.0]]])
    is_seen = torch.tensor([[True, True], [True, False]])
    made = attend_blocks(query, keys, values, is_seen, 1.0)
    torch.testing.assert_close(made.peak.flatten(), torch.tensor([math.log(2), math.log(3)]))
    torch.testing.assert_close(made.mass.flatten(), torch.tensor([1.5, 1.0]))
    torch.testing.assert_close(made.total.flatten(), torch.tensor([2.5, 3.0]))
    every = made.joined(nothing(made))
    assert merge(every, torch.tensor([0, 1])).output().item() == pytest.approx(7 / 3)
    assert merge(every, torch.tensor([1])).output().item() == 3  # block 0 is left out, exactly


def test_merged_blocks_are_one_softmax_to_1e_12():
    rng = torch.Generator().manual_seed(3)
    logits = 5 * torch.randn(1, 2, 60, generator=rng, dtype=torch.float64)
    values = torch.randn(1, 60, 8, generator=rng, dtype=torch.float64)
    blocks = weigh(logits[0].unflatten(1, (12, 5)).transpose(0, 1), values[0].unflatten(0, (12, 5)))
    ours = merge(blocks, ALL(12)).output()
    theirs = (logits.softmax(-1) @ values)[0]
    assert ((ours - theirs).norm() / theirs.norm()).item() < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size,width", [(1, 64), (1, 7), (5, 7), (16, 64), (64, 7), (64, 128)])
def test_a_block_has_the_same_bits_alone_and_in_any_company(dtype, size, width):
    """These are sizes at which a library's batched product breaks the promise."""
    for group in (1, 2, 7, 8):
        assert_alone_as_together(dtype, size, width, group)


def test_a_block_has_the_same_bits_with_more_threads():
    rng = torch.Generator().manual_seed(0)
    left, right = torch.randn(40, 4, 64, generator=rng), torch.randn(40, 64, 16, generator=rng)
    before = torch.get_num_threads()
    made = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            made.append(products(left, right))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*made)


def assert_alone_as_together(dtype: torch.dtype, size: int, width: int, group: int) -> None:
    rng = torch.Generator().manual_seed(size)
    query = torch.randn(40, group, width, generator=rng, dtype=dtype)
    keys, values = torch.randn(2, 40, size, width, generator=rng, dtype=dtype)
    is_seen = torch.rand(40, size, generator=rng) < 0.8
    together = attend_blocks(query, keys, values, is_seen, 0.3)
    for start, stop in ((0, 1), (5, 6), (3, 5), (2, 35), (1, 40)):
        parts = (part[start:stop].clone() for part in (query, keys, values, is_seen))
        apart = attend_blocks(*parts, 0.3)
        assert torch.equal(apart.mass, together.mass[start:stop])
        assert torch.equal(apart.total, together.total[start:stop])


def test_products_are_those_of_the_library():
    left, right = torch.randn(90, 4, 24).double(), torch.randn(90, 24, 50).double()
    torch.testing.assert_close(products(left, right), left @ right, rtol=1e-12, atol=1e-14)
    assert products(left[:0], right[:0]).shape == (0, 4, 50)


def test_the_order_of_merging_is_that_of_the_slots_and_padding_changes_no_bit():
    made = states(9, dtype=torch.float32)
    every = made.joined(nothing(made))
    plain = merge(every, ALL(9))
    padded = merge(every, torch.cat([ALL(9), torch.full((23,), -1)]))
    assert torch.equal(padded.total, plain.total) and torch.equal(padded.mass, plain.mass)


def test_blocks_that_saw_nothing_merge_to_zeros_and_not_to_nan():
    made = weigh(torch.full((2, 2, 4), -torch.inf), torch.ones(2, 4, 8))
    every = made.joined(nothing(made))
    for slots in (ALL(2), torch.tensor([-1, -1]), torch.empty(0, dtype=torch.int64)):
        merged = merge(every, slots)
        assert torch.equal(merged.output(), torch.zeros(2, 8))
        assert (merged.peak == -torch.inf).all()


def test_wrong_blocks_with_nearly_all_the_mass_leave_no_trace():
    """Subtracting them again would: fp32 has no digits left under their mass."""
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(8, 1, 4, generator=rng)
    logits[5:] += 90
    values = torch.randn(8, 4, 8, generator=rng)
    early, late = weigh(logits[3:], values[3:]), weigh(logits[:3], values[:3])
    chosen = [5, 6, 7, 0, 1]  # blocks 0, 1, 2, 3, 4 where both helpings are laid end to end
    merged = merge(early.joined(late), torch.tensor(chosen))
    plain = weigh(logits[:5], values[:5])
    alone = merge(plain.joined(nothing(plain)), ALL(5))
    assert torch.equal(merged.total, alone.total) and torch.equal(merged.mass, alone.mass)


def test_fold_adds_in_one_tree_whatever_the_strides():
    values = torch.randn(3, 7, 5)
    assert torch.equal(fold(values, 1), fold(values.transpose(0, 2).contiguous(), 1).T)
    assert torch.equal(fold(torch.cat([values, torch.zeros(3, 9, 5)], 1), 1), fold(values, 1))
    torch.testing.assert_close(fold(values, -1), values.sum(-1))
    assert torch.equal(fold(values[:, :0], 1), torch.zeros(3, 5))
