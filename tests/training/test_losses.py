"""The losses against their definitions."""

import math

import pytest
import torch

from varifocal.training.losses import (
    boundary_margin,
    cross_entropy,
    depth_weight,
    hidden_loss,
    kl_loss,
    weighted_mean,
)


def logits(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_first_drafted_token_has_weight_one_and_later_ones_decay():
    assert depth_weight(1, 1.0) == 1
    assert depth_weight(3, 2.0) == pytest.approx(math.exp(-1))


def test_depth_zero_is_refused():
    with pytest.raises(ValueError, match="n must be at least 1"):
        depth_weight(0, 1.0)


def test_hidden_loss_is_the_squared_distance_over_the_width():
    a, b = logits(0, 2, 3, 8), logits(1, 2, 3, 8)
    expected = (a - b).norm(dim=-1) ** 2 / 8
    torch.testing.assert_close(hidden_loss(a, b), expected)


def test_kl_is_that_of_the_target_to_the_drafter():
    p, q = logits(0, 5, 11), logits(1, 5, 11)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=p), torch.distributions.Categorical(logits=q)
    )
    torch.testing.assert_close(kl_loss(p, q), expected)
    torch.testing.assert_close(kl_loss(p, p), torch.zeros(5, dtype=torch.float64))


def test_kl_and_its_gradient_are_finite_when_the_target_rules_tokens_out():
    p = logits(0, 2, 5)
    p[:, 0] = -math.inf
    q = logits(1, 2, 5).requires_grad_()
    kl_loss(p, q).sum().backward()
    assert q.grad is not None and bool(q.grad.isfinite().all())


def test_cross_entropy_is_minus_the_log_of_the_label():
    q, labels = logits(0, 2, 3, 7), torch.tensor([[0, 1, 2], [6, 5, 4]])
    expected = -q.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(cross_entropy(q, labels), expected)


def test_the_margin_is_taken_against_the_width_th_other_token():
    z = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    label = torch.tensor([3])
    for width, other in ((1, 5.0), (3, 3.0), (4, 1.0)):
        expected = math.log1p(math.exp(0.5 - (2.0 - other)))
        assert float(boundary_margin(z, label, width, 0.5)) == pytest.approx(expected)


@pytest.mark.parametrize("width", [0, 5])
def test_a_width_that_leaves_no_other_token_is_refused(width):
    with pytest.raises(ValueError, match="width"):
        boundary_margin(torch.zeros(1, 5), torch.tensor([0]), width, 0.5)


def test_padding_has_no_say_even_if_it_is_nan():
    values, weights = torch.tensor([1.0, 3.0]), torch.tensor([True, True])
    padded = torch.tensor([1.0, 3.0, math.nan, math.nan])
    mask = torch.tensor([True, True, False, False])
    assert float(weighted_mean(padded, mask)) == float(weighted_mean(values, weights)) == 2


def test_half_precision_is_widened():
    a = torch.full((1, 4), 300.0, dtype=torch.float16)
    assert float(hidden_loss(a, -a)) == 360000.0  # beyond what fp16 holds
