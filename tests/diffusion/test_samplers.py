"""Which positions each sampler commits, in a view made by hand."""

import numpy as np
import pytest

from varifocal.diffusion import samplers
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.view import View
from varifocal.errors import BadOption


def view_of(
    confidence: list[float],
    *,
    masked: list[int] | None = None,
    block: slice | None = None,
    block_step: int = 1,
    block_steps: int | None = None,
    block_masks: int | None = None,
    seed: int = 0,
    **statistics: list[float],
) -> View:
    """Of a canvas with these confidences, all masked and one block unless told."""
    length = len(confidence)
    block = block or slice(0, length)
    is_masked = np.ones(length, np.bool_)
    if masked is not None:
        is_masked[:] = False
        is_masked[masked] = True
    size = block.stop - block.start
    numbers, says = np.array(confidence, np.float32), np.arange(length)
    return View(
        step=block_step,
        total=length,
        block=block,
        block_step=block_step,
        block_steps=block_steps or size,
        block_masks=size if block_masks is None else block_masks,
        is_last=block.stop == length,
        open=is_masked[block].nonzero()[0] + block.start,
        seed=seed,
        masked=is_masked,
        says=says,
        changed=True,
        confidence=numbers,
        quality=numbers,
        fresh=np.ones(length, np.bool_),
        picks=says,
        pick_confidence=numbers,
        read=lambda: None,
        **{name: np.array(values, np.float32) for name, values in statistics.items()},
    )


def chosen(sampler: str | Sampler, view: View, state=None) -> list[int]:
    sampler = samplers.find(sampler)
    state = sampler.start(view.canvas) if state is None else state
    return sorted(sampler.choose(state, view).tolist())


RISING = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]


def test_low_confidence_takes_the_most_probable_of_the_block_by_the_schedule():
    view = view_of(RISING, block=slice(0, 4), block_steps=2)
    assert chosen("low_confidence", view) == [2, 3]


def test_a_schedule_takes_what_is_left_in_its_last_step():
    view = view_of(RISING, masked=[0, 2, 5], block_step=4, block_steps=4)
    assert chosen("low_confidence", view) == [0, 2, 5]


def test_a_step_beyond_the_planned_ones_leaves_nothing():
    view = view_of(RISING, masked=[0, 2], block_step=9, block_steps=4)
    assert chosen("low_confidence", view) == [0, 2]
    assert chosen("entropy", view_of(RISING, block_step=9, block_steps=4, entropy=RISING)) == [
        *range(8)
    ]


def test_of_equal_positions_the_leftmost_goes_first():
    assert chosen("low_confidence", view_of([0.5] * 6, block_steps=3)) == [0, 1]


def test_pinned_positions_lower_the_counts_of_their_block():
    view = view_of(RISING, masked=[4, 5, 6, 7], block_steps=4, block_masks=4)
    assert chosen("low_confidence", view) == [7]


def test_maskgit_plus_counts_by_the_t_schedule():
    assert chosen("maskgit_plus", view_of(RISING, block_steps=2)) == [5, 6, 7]  # int(8 * 0.4995)


def test_topk_margin_prefers_the_lead_over_the_probability():
    view = view_of(RISING, block_steps=4, margin=[0.9, 0.8, 0, 0, 0, 0, 0, 0])
    assert chosen("topk_margin", view) == [0]  # int(8 * 0.24975)


def test_entropy_prefers_the_least():
    view = view_of(RISING, block_steps=2, entropy=[0.1, 9, 9, 0.2, 9, 9, 0.3, 9])
    assert chosen("entropy", view) == [0, 3, 6]


def test_a_dream_step_that_would_commit_nothing_commits_the_best():
    assert chosen("maskgit_plus", view_of(RISING)) == [7]  # int(8 * 0.124875) is 0


def test_alg_temp_draws_positions_and_the_seed_decides():
    drawn = {tuple(chosen("maskgit_plus:alg_temp=1", view_of(RISING, seed=s))) for s in range(20)}
    assert len(drawn) > 3
    cold = {tuple(chosen("maskgit_plus:alg_temp=1e-6", view_of(RISING, seed=s))) for s in range(9)}
    assert cold == {(7,)}


def test_random_orders_by_noise_alone():
    drawn = {tuple(chosen("random", view_of(RISING, block_steps=8, seed=s))) for s in range(40)}
    assert len(drawn) == 8
    falling = view_of(RISING[::-1], block_steps=8, seed=3)
    assert chosen("random", falling) == chosen("random", view_of(RISING, block_steps=8, seed=3))


def test_origin_commits_each_with_the_rate_and_all_at_the_end():
    flat = [0.5] * 1000
    assert 200 < len(chosen("origin", view_of(flat, block_steps=4))) < 300
    assert len(chosen("origin", view_of(flat, block_steps=4, block_step=4))) == 1000
    assert len(chosen("origin", view_of(flat, block_steps=10**6))) == 1


def test_threshold_takes_all_that_reach_it_in_the_block():
    view = view_of([0.5, 0.9, 0.95, 0.2, 0.99], block=slice(0, 4))
    assert chosen("threshold", view) == [1, 2]


def test_threshold_takes_the_best_where_none_reaches_it():
    assert chosen("threshold", view_of([0.5, 0.7, 0.7, 0.2])) == [1]


@pytest.mark.parametrize(
    ("confidence", "wanted"),
    [
        ([0.4, 0.3], [0]),  # 2 * 0.6 >= 1: one goes anyway
        ([0.6, 0.6], [0]),  # 2 * 0.4 < 1, but 3 * 0.4 >= 1
        ([0.7, 0.8, 0.7], [0, 1]),  # 3 * 0.3 < 1, 4 * 0.3 >= 1
        ([0.99] * 5, [0, 1, 2, 3, 4]),
    ],
)
def test_factor_wants_the_more_certainty_the_more_go_at_once(confidence, wanted):
    assert chosen("factor", view_of(confidence)) == wanted


def test_klass_waits_until_the_law_has_been_calm_for_its_history():
    klass = samplers.find("klass")
    state = klass.start(4)
    sure = [0.99, 0.99, 0.95, 0.5]
    calm, moved, first = [0.001] * 4, [0.001, 0.5, 0.001, 0.001], [np.inf] * 4
    # Nothing is calm yet: the schedule's one token. Then one observation of two.
    assert chosen(klass, view_of(sure, block_step=1, divergence=first), state) == [0]
    view = view_of(sure, masked=[1, 2, 3], block_step=2, divergence=calm)
    assert chosen(klass, view, state) == [1]
    view = view_of(sure, masked=[1, 2, 3], block_step=3, divergence=moved)
    assert chosen(klass, view, state) == [2]  # calm twice and sure; 1 moved, 3 is unsure


def test_klass_leaves_nothing_behind_the_last_planned_step():
    klass = samplers.find("klass")
    state = klass.start(4)
    view = view_of([0.99, 0.2, 0.2, 0.2], block_step=2, block_steps=2, divergence=[0.0] * 4)
    assert chosen(klass, view, state) == [0, 1, 2, 3]


@pytest.mark.parametrize("name", samplers.names())
def test_every_sampler_commits_masks_of_the_block_and_one_at_least(name):
    rng = np.random.default_rng(1)
    for step in range(1, 6):
        numbers = rng.random(12).tolist()
        view = view_of(
            numbers,
            masked=[1, 5, 6, 7, 9],
            block=slice(4, 8),
            block_step=step,
            block_steps=2,
            block_masks=3,
            margin=numbers,
            entropy=numbers,
            divergence=numbers,
        )
        positions = chosen(name, view)
        assert positions and set(positions) <= {5, 6, 7}
        assert len(positions) == len(set(positions))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("best", "no sampler is called 'best'; there are entropy, factor"),
        ("threshold:p=0.5", "threshold has no option p; it has tau"),
        ("threshold:tau=2", "tau must be from 0 to 1, got 2"),
        ("threshold:tau=high", "option tau wants float, got 'high'"),
        ("threshold:tau=0.1:tau=0.2", "tau is given twice"),
        ("random:seed=1", "random has no option seed; it has none"),
        ("factor:f=0", "f must be positive"),
        ("klass:history=0", "history must be a count"),
        ("entropy:eps=1", "eps must be between"),
        ("no.such.module", "cannot be imported"),
    ],
)
def test_samplers_that_cannot_be_are_refused(text, said):
    with pytest.raises(BadOption, match=said):
        samplers.find(text)


def test_a_sampler_is_written_as_it_is_typed():
    assert samplers.find("threshold:tau=0.8").text == "threshold:tau=0.8"
    assert samplers.find("threshold:tau=0.9").text == "threshold"
