"""The numbers that gates read, against their definitions."""

import numpy as np
import pytest
import torch

from varifocal.diffusion.statistics import Ask, Statistics, Want
from varifocal.sampling import Sampling

NEVER, EVERYTHING = torch.tensor([0, 3]), Want(gap=True, margin=True, entropy=True, divergence=True)
LOGITS = torch.randn(2, 6, 9, generator=torch.Generator().manual_seed(0)) * 4
LOGITS[..., 3] = 50.0  # the mask: never said, whatever the model holds of it
SOME = [np.array([1, 4, 5]), np.array([0, 2, 3, 5])]


def asked(temperature: float = 0.0, positions=SOME) -> list[Ask]:
    sampling = Sampling(temperature=temperature, seed=1)
    return [Ask(each, each[1:], 7, sampling) for each in positions]


def law_of(logits: torch.Tensor) -> torch.Tensor:
    keep = [token for token in range(9) if token not in (0, 3)]
    probs = torch.zeros_like(logits, dtype=torch.float64)
    probs[..., keep] = logits[..., keep].double().softmax(-1)
    return probs


def test_numbers_are_those_of_the_law_without_the_banned_ids():
    fresh = torch.ones(2, 6, dtype=torch.bool)
    seen = Statistics(NEVER, 3, EVERYTHING).measure(LOGITS, fresh, 0, asked())
    for row, positions in enumerate(SOME):
        probs, own = law_of(LOGITS[row, positions]), seen[row]
        top, best = probs.topk(2, dim=-1)
        raw = LOGITS[row, positions].double().gather(-1, best)
        entropy = -torch.special.xlogy(probs, probs).sum(-1)
        assert (
            own.argmax[positions].tolist() == best[:, 0].tolist() == own.picks[positions].tolist()
        )
        wanted = {
            "confidence": top[:, 0],
            "pick_confidence": top[:, 0],
            "gap": raw[:, 0] - raw[:, 1],
            "margin": top[:, 0] - top[:, 1],
            "entropy": entropy,
        }
        for name, values in wanted.items():
            made = getattr(own, name)[positions]
            np.testing.assert_allclose(made, values.numpy(), atol=1e-6, rtol=1e-5)
        elsewhere = np.setdiff1d(np.arange(6), positions)
        assert not own.fresh[elsewhere].any() and (own.argmax[elsewhere] == 3).all()


def test_divergence_is_from_the_last_law_of_the_position():
    fresh = torch.ones(2, 6, dtype=torch.bool)
    statistics = Statistics(NEVER, 3, Want(divergence=True))
    first = statistics.measure(LOGITS, fresh, 0, asked())
    assert all(np.isinf(own.divergence[at]).all() for own, at in zip(first, SOME, strict=True))
    moved = LOGITS + torch.randn(LOGITS.shape, generator=torch.Generator().manual_seed(1))
    # A window from position 2 on; position 4 of the second row was not seen before.
    later = statistics.measure(moved[:1, 2:], fresh[:1], 2, asked(positions=[np.array([3, 4])]))
    now, then = law_of(moved[0, 4]), law_of(LOGITS[0, 4])
    kl = (torch.special.xlogy(now, now) - torch.special.xlogy(now, then)).sum()
    assert later[0].divergence[4] == pytest.approx(float(kl), rel=1e-4)
    assert np.isinf(later[0].divergence[3])
    chosen = statistics.select([1], 6).measure(moved[1:], fresh[1:], 0, asked(positions=SOME[1:]))
    assert np.isfinite(chosen[0].divergence[SOME[1]]).all()


def test_draws_have_their_own_probabilities_and_stay_where_they_may_be_committed():
    fresh = torch.ones(2, 6, dtype=torch.bool)
    for temperature in (0.5, 3.0):
        seen = Statistics(NEVER, 3, Want()).measure(LOGITS, fresh, 0, asked(temperature))
        for row, (positions, own) in enumerate(zip(SOME, seen, strict=True)):
            picks = own.picks[positions]
            assert picks[0] == own.argmax[positions[0]] and not {0, 3} & set(picks.tolist())
            probs = law_of(LOGITS[row, positions])[range(len(positions)), picks]
            np.testing.assert_allclose(own.pick_confidence[positions], probs, rtol=1e-4)


def test_draws_follow_the_law():
    length = 4000
    logits = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.5, 0, 0, 0, 0]).expand(1, length, 9)
    fresh, positions = torch.ones(1, length, dtype=torch.bool), np.arange(length)
    ask = Ask(positions, positions, 3, Sampling(temperature=2.0, seed=5))
    (seen,) = Statistics(NEVER, 3, Want()).measure(logits, fresh, 0, [ask])
    wanted = law_of(logits[0, 0] / 2).numpy()
    drawn = np.bincount(seen.picks, minlength=9) / length
    np.testing.assert_allclose(drawn, wanted, atol=4 * np.sqrt(0.25 / length))


@pytest.mark.gpu
def test_other_devices_say_the_same():
    fresh = torch.ones(2, 6, dtype=torch.bool)
    here = Statistics(NEVER, 3, EVERYTHING).measure(LOGITS, fresh, 0, asked(1.0))
    there = Statistics(NEVER.cuda(), 3, EVERYTHING).measure(
        LOGITS.cuda(), fresh.cuda(), 0, asked(1.0)
    )
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one.argmax, other.argmax)
        assert np.array_equal(one.picks, other.picks)
        assert np.array_equal(one.fresh, other.fresh)
        for name in ("confidence", "gap", "margin", "entropy"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)
