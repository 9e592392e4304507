"""FOVEA's training objective over an unroll: every step sees the states that decoding will meet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from varifocal.drafters._tapped import recorded
from varifocal.drafters._unroll import (
    Chain,
    Judged,
    Teacher,
    bases_of,
    gather,
    kept_slots,
    nothing,
    show,
    unroll,
)
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import (
    Losses,
    boundary_margin,
    depth_weight,
    hidden_loss,
)

if TYPE_CHECKING:
    from varifocal.target import Target


@dataclass(frozen=True)
class _Slots:
    """A padded batch as the drafter reads it; B samples, S slots, A unrolled bases.

    Slot j pairs the target state before text token u_j with the embedding of u_j.
    """

    features: Float[Tensor, "B S F"]
    final: Float[Tensor, "B S D"]
    mid: Float[Tensor, "B S D"] | None
    tokens: Int64[Tensor, "B S"]
    embeddings: Float[Tensor, "B S D"]
    positions: Int64[Tensor, "B S"]
    answer: Bool[Tensor, "B S"]  # u_j is supervised
    visual: Float[Tensor, "B M E"]
    visual_valid: Bool[Tensor, "B M"]
    bases: Int64[Tensor, "B A"]  # slots whose u_j is a root that a draft continues
    bases_valid: Bool[Tensor, "B A"]


def fovea_loss(
    network: Any, target: Target, config: Any, batch: list[Artifact], layers: Sequence[int] = ()
) -> Losses:
    """The total and its parts, averaged with the depth weights over supervised states.

    Step s of base j predicts u_{j+1+s}; its teacher is the target's state before that token. As
    in decoding, step 0 reads true features and later steps the drafter's own states; each step
    attends to the true slots up to its base and to its own chain.
    """
    slots = _collate(batch, target, config, layers)
    if slots.bases.shape[1] == 0:
        return nothing(network)
    memory = network.visual.remember(slots.visual, slots.visual_valid)
    chain, teacher = Chain(network, slots), Teacher(target, slots.final, slots.answer)

    def judge(step: int, h: Tensor, place: Tensor, alive: Tensor) -> Judged:
        if config.correction != "none" and step <= config.max_correction_depth:
            h, _ = network.visual(h, step, memory)
        return _judged(target, config, slots, teacher, chain.first, h, place, alive)

    weights = [depth_weight(n + 1, config.gamma_w) for n in range(config.unroll)]
    parts, agree = unroll(chain, slots, weights, judge)
    total = (
        config.lambda_hid * (config.beta_h * parts["hidden"] + config.beta_mid * parts["mid"])
        + config.lambda_kl * parts["kl"]
        + config.lambda_tok * (config.beta_ce * parts["ce"] + config.beta_cmp * parts["margin"])
    )
    return Losses(total, {name: value.detach() for name, value in (parts | agree).items()})


def _judged(
    target: Target,
    config: Any,
    slots: _Slots,
    teacher: Teacher,
    first: Float[Tensor, "B A D"],
    h: Float[Tensor, "B A D"],
    place: Int64[Tensor, "B A"],
    alive: Bool[Tensor, "B A"],
) -> Judged:
    """Sums over the living states of one step, and the hits. [FOVEA, Eq. 10-13]

    `losses.kl_loss` and `losses.cross_entropy` in one pass over a shared log-softmax: on a
    vocabulary these passes, not the network, are what a training step costs.
    """
    corrected = h[alive].float()
    mid = corrected.new_zeros(())
    if slots.mid is not None:
        # The streams differ in scale from layer to layer; both sides are taken at unit RMS.
        wanted = gather(slots.mid, place)[alive].float()
        mid = hidden_loss(_unit(first[alive].float()), _unit(wanted)).sum()
    row = gather(teacher.place, place)[alive]
    labels = teacher.labels[row]
    logits = target.head(corrected.to(target.dtype)).float()
    log_q = logits.log_softmax(-1)
    values = {
        "hidden": hidden_loss(corrected, gather(slots.final, place)[alive]).sum(),
        "mid": mid,
        "kl": -(teacher.p[row] * log_q).sum() - teacher.entropy[row].sum(),
        "ce": -log_q.gather(-1, labels[:, None]).sum(),
        "margin": boundary_margin(log_q, labels, config.width, config.margin).sum(),
    }
    return Judged(values, (logits.argmax(-1) == labels).float().sum(), alive.sum())


def _collate(
    batch: list[Artifact], target: Target, config: Any, layers: Sequence[int] = ()
) -> _Slots:
    """Shift features and tokens as in decoding, leave pictures out if the drafter does, pad."""
    device = target.device
    text_only = config.prefix == "text_only"
    rows = [(item, kept_slots(item, text_only=text_only)) for item in batch]

    def pad(xs: list[Tensor]) -> Tensor:
        return pad_sequence(xs, batch_first=True).to(device)

    answer = pad([item.supervised[1:][index] for item, index in rows])
    tokens = pad([item.tokens[1:][index] for item, index in rows])
    embeddings = target.embed(tokens).float()
    if config.prefix == "full":
        show(embeddings, pad([item.image_of[1:][index] >= 0 for item, index in rows]), batch)
    has_mid = all(item.mid is not None for item in batch)
    bases, bases_valid = bases_of(answer, config.max_bases)
    final = pad([item.final[:-1][index].float() for item, index in rows])
    features, visual = final, [item.visual.float() for item in batch]
    if layers:
        taps = [recorded(item, layers, "fovea").float() for item in batch]
        if config.features == "taps":
            tapped = zip(rows, taps, strict=True)
            features = pad([states[:-1][index] for (_, index), states in tapped])
        if config.evidence == "contextual":
            visual = [states[item.image_of >= 0] for item, states in zip(batch, taps, strict=True)]
    return _Slots(
        features=features,
        final=final,
        mid=pad([item.mid[:-1][index].float() for item, index in rows]) if has_mid else None,  # type: ignore[index]
        tokens=tokens,
        embeddings=embeddings.detach(),
        positions=pad([index for _, index in rows]),
        answer=answer,
        visual=pad(visual),
        visual_valid=pad([torch.ones(len(item.visual), dtype=torch.bool) for item in batch]),
        bases=bases,
        bases_valid=bases_valid,
    )


def _unit(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])
