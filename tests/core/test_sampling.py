"""Sampling: exact laws, noise that belongs to a position, settings at the edge of their range."""

import math

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

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
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": math.nan},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": 1e38},
        {"repetition_penalty": math.nan},
        {"presence_penalty": 2.1},
        {"presence_penalty": math.nan},
        {"frequency_penalty": -2.1},
        {"frequency_penalty": math.inf},
        {"logit_bias": {3: 100.5}},
        {"logit_bias": {3: math.nan}},
        {"logit_bias": {-1: 1.0}},
        {"bad_words": ["  "]},
        {"bad_words": [()]},
        {"bad_words": [(3, -1)]},
        {"bad_words": "word"},
        {"min_new_tokens": -1},
    ],
    ids=str,
)
def test_bad_settings_are_refused_by_name(setting):
    with pytest.raises(BadRequest, match=next(iter(setting))):
        Sampling(**setting)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("min_p", [0.05, 0.3, 1.0])
def test_min_p_comes_last_and_equals_that_of_transformers(seed, min_p):
    logits = torch.randn(4, 40, generator=torch.Generator().manual_seed(seed)) * 3
    wanted = logits
    for warper in (
        TemperatureLogitsWarper(1.7),
        TopKLogitsWarper(30),
        TopPLogitsWarper(0.95),
        MinPLogitsWarper(min_p),
    ):
        wanted = warper(None, wanted)
    sampling = Sampling(temperature=1.7, top_k=30, top_p=0.95, min_p=min_p)
    made = sampling.filtered(logits)
    assert torch.equal(made.isinf(), wanted.isinf())
    torch.testing.assert_close(made.softmax(-1), wanted.softmax(-1))


@pytest.mark.parametrize("temperature", [1e-3, 1e-8, 1e-30, 1e-45])
def test_a_temperature_near_zero_takes_the_likeliest_token(temperature):
    sampling = Sampling(temperature=temperature, seed=3)
    logits = torch.tensor([[1.0, 9.0, 3.0]]).expand(200, -1)
    assert sampling.pick(logits, torch.arange(200)).eq(1).all()


@pytest.mark.parametrize("temperature", [1e20, 1e38, 1e308])
def test_the_hottest_temperature_never_draws_an_excluded_token(temperature):
    logits = torch.tensor([[1.0, -math.inf, 3.0]]).expand(300, -1)
    drawn = Sampling(temperature=temperature).pick(logits, torch.arange(300))
    assert drawn.bincount(minlength=3).ge(torch.tensor([90, 0, 90])).all()
    assert not drawn.eq(1).any()


@pytest.mark.parametrize("temperature", [1.0, 1e-4])
def test_draws_from_a_law_that_is_nearly_one_token_are_that_token(temperature):
    logits = torch.tensor([[-40.0, 60.0, -40.0]]).expand(1000, -1)
    assert Sampling(temperature=temperature).pick(logits, torch.arange(1000)).eq(1).all()


def test_a_setting_is_not_changed_by_what_the_caller_does_afterwards():
    bias = {3: 1.0}
    sampling = Sampling(logit_bias=bias, bad_words=[[1, 2]])
    bias[4] = 1.0
    assert sampling.logit_bias == {3: 1.0} and sampling.bad_words == ((1, 2),)
    assert hash(sampling) == hash(Sampling(logit_bias={3: 1.0}, bad_words=((1, 2),)))
