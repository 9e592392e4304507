"""Losses for drafters, one value per position: the caller weighs, masks and sums them. [FOVEA]

Symbols: w_n is `depth_weight(n, gamma)` with n counted from 1 for the first drafted token; h-hat
and h^T are `states` and `wanted`; K_c is `width`, m is `margin`, y_n is `labels`. All is computed
in float32 or better, whatever the inputs are.
"""

import math
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Losses:
    """What a drafter's `loss` returns: the total to minimise and its named parts for the log."""

    total: Float[Tensor, ""]
    parts: dict[str, Tensor] = field(default_factory=dict)  # scalars; no gradient is taken of them


def depth_weight(n: int, gamma: float) -> float:
    """exp(-(n - 1) / gamma): how much the n-th drafted token counts, n from 1. [FOVEA]"""
    if n < 1 or gamma <= 0:
        raise ValueError(f"n must be at least 1 and gamma positive, got {n} and {gamma}")
    return math.exp(-(n - 1) / gamma)


def hidden_loss(
    states: Float[Tensor, "*n D"], wanted: Float[Tensor, "*n D"]
) -> Float[Tensor, "*n"]:
    """Squared distance over the width: ||states - wanted||^2 / d. [FOVEA, L_hid]"""
    return (_wide(states) - _wide(wanted)).square().mean(-1)


def kl_loss(
    target_logits: Float[Tensor, "*n V"], draft_logits: Float[Tensor, "*n V"]
) -> Float[Tensor, "*n"]:
    """KL(p || q) of the target's law p and the drafter's q. [FOVEA, L_KL]"""
    log_p = _wide(target_logits).log_softmax(-1)
    log_q = _wide(draft_logits).log_softmax(-1)
    p = log_p.exp()
    # Where p is 0 its logarithm may be -inf: such a token adds nothing.
    return torch.where(p > 0, p * (log_p - log_q), torch.zeros_like(p)).sum(-1)


def cross_entropy(
    logits: Float[Tensor, "*n V"], labels: Int64[Tensor, "*n"]
) -> Float[Tensor, "*n"]:
    """-log q(label). [FOVEA, CE in L_tok]"""
    flat = F.cross_entropy(
        _wide(logits).reshape(-1, logits.shape[-1]), labels.reshape(-1), reduction="none"
    )
    return flat.view(labels.shape)


def boundary_margin(
    logits: Float[Tensor, "*n V"], labels: Int64[Tensor, "*n"], width: int, margin: float
) -> Float[Tensor, "*n"]:
    """softplus(m - gamma_n): small once the label is safely among the `width` candidates.

    gamma_n is the label's logit minus the `width`-th largest of all others. [FOVEA, L_tok]
    """
    if not 1 <= width < logits.shape[-1]:
        raise ValueError(f"width must be in [1, {logits.shape[-1] - 1}], got {width}")
    scores = _wide(logits)
    of_label = scores.gather(-1, labels[..., None])
    best = scores.topk(width + 1, dim=-1).values
    # Without the label's own logit the later of two neighbours moves up.
    last, behind = best[..., width - 1 : width], best[..., width:]
    boundary = torch.where(of_label >= last, behind, last)
    return F.softplus(margin - (of_label - boundary)).squeeze(-1)


def weighted_mean(
    values: Float[Tensor, "*n"], weights: Float[Tensor, "*n"] | Bool[Tensor, "*n"]
) -> Float[Tensor, ""]:
    """sum(w v) / sum(w); what has no weight has no say, NaN included. NaN if nothing has weight.

    The denominator counts supervised positions only, so the amount of padding does not show.
    """
    weights = weights.to(values.dtype)
    kept = torch.where(weights > 0, values, torch.zeros_like(values))
    return (weights * kept).sum() / weights.sum()


def _wide(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
