"""Blocks, steps and tokens of a plan, against the published counts."""

import numpy as np
import pytest
import torch

from varifocal.diffusion import noise
from varifocal.diffusion.schedule import Plan, dream_count, dream_rates, llada_counts
from varifocal.errors import BadOption


@pytest.mark.parametrize(
    ("masks", "steps", "counts"),
    [
        (8, 8, [1] * 8),
        (8, 2, [4, 4]),
        (32, 5, [7, 7, 6, 6, 6]),
        (7, 3, [3, 2, 2]),
        (2, 4, [1, 1, 0, 0]),
    ],
)
def test_llada_spreads_tokens_evenly_and_the_rest_over_the_first_steps(masks, steps, counts):
    assert llada_counts(masks, steps) == counts


def test_llada_counts_add_up_for_all_small_sizes():
    for masks in range(1, 40):
        for steps in range(1, 40):
            counts = llada_counts(masks, steps)
            assert sum(counts) == masks and max(counts) - min(counts) <= 1
            assert counts == sorted(counts, reverse=True)


def dream_run(masks: int, steps: int, eps: float) -> list[int]:
    """The published loop over counts, in torch's float32 as it is there."""
    times, left, counts = torch.linspace(1, eps, steps + 1), torch.tensor(masks), []
    for i in range(steps):
        share = left * (1 - times[i + 1] / times[i])
        count = int(share) if i < steps - 1 else int(left)
        left = left - count
        counts.append(count)
    return counts


@pytest.mark.parametrize(("masks", "steps"), [(32, 8), (128, 128), (128, 50), (20, 20), (5, 3)])
@pytest.mark.parametrize("eps", [1e-3, 0.05])
def test_dream_counts_are_the_published_ones_to_the_last_rounding(masks, steps, eps):
    left, counts = masks, []
    for rate in dream_rates(steps, eps):
        counts.append(dream_count(left, rate))
        left -= counts[-1]
    assert counts == dream_run(masks, steps, eps)
    assert sum(counts) == masks


def test_dream_counts_golden():
    left, counts = 16, []
    for rate in dream_rates(4):
        counts.append(dream_count(left, rate))
        left -= counts[-1]
    assert counts == [3, 4, 4, 5]


def test_blocks_cover_the_canvas_and_the_last_is_the_shorter():
    plan = Plan(canvas=20, block=8)
    assert plan.blocks == (slice(0, 8), slice(8, 16), slice(16, 20))
    assert plan.shares == (8, 8, 4) and plan.total == 20


def test_steps_that_divide_are_shared_as_published():
    assert Plan(canvas=128, block=32, steps=64).shares == (16,) * 4


def test_steps_that_do_not_divide_are_shared_by_length_and_none_is_lost():
    for canvas in range(1, 30):
        for block in range(1, 12):
            num_blocks = len(Plan(canvas=canvas, block=block).blocks)
            for steps in range(num_blocks, canvas + 1):
                shares = Plan(canvas=canvas, block=block, steps=steps).shares
                assert len(shares) == num_blocks and sum(shares) == steps and min(shares) >= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 3}, "3 steps cannot fill 4 blocks of 32"),
        ({"steps": 129}, "129 steps on a canvas of 128"),
        ({"canvas": 0}, "canvas must be a count"),
        ({"block": True}, "block must be a count"),
        ({"pins": ((128, 5),)}, "must lie on the canvas of 128"),
        ({"pins": ((1, 5), (1, 6))}, "pinned twice"),
        ({"canvas": 1, "pins": ((0, 5),)}, "nothing is left to decide"),
    ],
)
def test_plans_that_cannot_be_followed_are_refused(options, said):
    with pytest.raises(BadOption, match=said):
        Plan(**options)


def test_noise_belongs_to_seed_step_and_position_alone():
    long, short = noise.uniform(7, 3, 64), noise.uniform(7, 3, 10)
    assert np.array_equal(long[:10], short)
    assert long.min() > 0 and long.max() < 1
    others = [noise.uniform(8, 3, 64), noise.uniform(7, 4, 64)]
    assert all(len(np.intersect1d(long, other)) == 0 for other in others)
    assert abs(noise.uniform(0, 1, 20_000).mean() - 0.5) < 0.01


def test_noise_takes_any_seed_that_a_request_may_have():
    assert not np.array_equal(noise.uniform(2**63 - 1, 1, 4), noise.uniform(0, 1, 4))
