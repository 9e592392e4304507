"""Sampling: exact laws, noise that belongs to a position, settings at the edge of their range."""

import math

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from varifocal.errors import BadRequest
from varifocal.sampling import Sampling, gumbel


def positions(*values: int) -> torch.Tensor:
    return torch.tensor(values)


def test_noise_belongs_to_seed_position_and_token_alone():
    both = gumbel(7, positions(3, 900), 50)
    assert torch.equal(both[0], gumbel(7, positions(3), 50)[0])
    assert torch.equal(both[1, :20], gumbel(7, positions(900), 20)[0])
    assert not torch.equal(both[0], gumbel(8, positions(3), 50)[0])
    assert not torch.equal(both[0], both[1])


def test_seeds_that_differ_only_above_32_bits_do_not_alias():
    assert not torch.equal(gumbel(5, positions(0), 50), gumbel(5 + 2**40, positions(0), 50))


def test_noise_is_gumbel():
    draws = gumbel(1, torch.arange(400), 500).double().flatten().sort().values
    law = (-(-draws).exp()).exp()  # the distribution function at each draw
    empirical = (torch.arange(len(draws)) + 0.5) / len(draws)
    assert float((law - empirical).abs().max()) < 1.63 / math.sqrt(len(draws))  # KS, 1 %


def test_drawn_tokens_follow_the_filtered_law():
    sampling = Sampling(temperature=0.8, top_k=6, top_p=0.9, seed=11)
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0))
    law = sampling.filtered(logits).softmax(-1)[0]
    drawn = sampling.pick(logits.expand(20_000, -1), torch.arange(20_000)).bincount(minlength=12)
    alive = law > 0
    assert int(drawn[~alive].sum()) == 0
    expected = law[alive] * 20_000
    chi_square = float(((drawn[alive] - expected) ** 2 / expected).sum())
    assert chi_square < 25  # 5 degrees of freedom: p of about 1e-4


@pytest.mark.parametrize("seed", range(5))
def test_filters_equal_those_of_transformers(seed):
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(seed)) * 3
    sampling = Sampling(temperature=0.7, top_k=10, top_p=0.8)
    ids = torch.zeros(4, 1, dtype=torch.long)
    wanted = TemperatureLogitsWarper(0.7)(ids, logits)
    wanted = TopPLogitsWarper(0.8)(ids, TopKLogitsWarper(10)(ids, wanted))
    torch.testing.assert_close(sampling.filtered(logits).softmax(-1), wanted.softmax(-1))


@pytest.mark.parametrize("temperature", [1e-30, 1e-6, 1e6])
def test_extreme_temperatures_stay_finite(temperature):
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    law = Sampling(temperature=temperature).filtered(logits).softmax(-1)
    assert torch.isfinite(law).all() and float(law.sum()) == pytest.approx(1)


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"top_p": math.nan},
        {"seed": -1},
    ],
)
def test_bad_settings_are_refused_by_name(setting):
    with pytest.raises(BadRequest, match=next(iter(setting))):
        Sampling(**setting)
