"""FOVEA's training objective over an unroll: every step sees the states that decoding will meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from varifocal.drafters._blocks import rotation
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

    features: Float[Tensor, "B S D"]
    mid: Float[Tensor, "B S D"] | None
    tokens: Int64[Tensor, "B S"]
    embeddings: Float[Tensor, "B S D"]
    positions: Int64[Tensor, "B S"]
    answer: Bool[Tensor, "B S"]  # u_j is supervised
    visual: Float[Tensor, "B M D"]
    visual_valid: Bool[Tensor, "B M"]
    bases: Int64[Tensor, "B A"]  # slots whose u_j is a root that a draft continues
    bases_valid: Bool[Tensor, "B A"]


def fovea_loss(network: Any, target: Target, config: Any, batch: list[Artifact]) -> Losses:
    """The total and its parts, averaged with the depth weights over supervised states.

    Step s of base j predicts u_{j+1+s}; its teacher is the target's state before that token. As
    in decoding, step 0 reads true features and later steps the drafter's own states; each step
    attends to the true slots up to its base and to its own chain.
    """
    slots = _collate(batch, target, config)
    if slots.bases.shape[1] == 0:
        zero = sum(p.sum() for p in network.parameters()) * 0.0
        return Losses(torch.as_tensor(zero), {})
    memory = network.visual.remember(slots.visual, slots.visual_valid)
    states, teacher = _Chain(network, slots), _Teacher(target, slots)
    sums: dict[str, Tensor] = {}
    agree: dict[str, Tensor] = {}  # per draft step: how often the target's choice comes first
    weight_sum = slots.features.new_zeros(())
    alive = slots.bases_valid
    for step in range(config.unroll):
        alive = alive & _gather(slots.answer, slots.bases + 1 + step)
        if not bool(alive.any()):
            break
        h = states.h
        if config.correction != "none" and step <= config.max_correction_depth:
            h, _ = network.visual(h, step, memory)
        weight = depth_weight(step + 1, config.gamma_w)
        values, hits = _step_losses(target, config, slots, teacher, states.first, h, step, alive)
        for name, value in values.items():
            sums[name] = sums.get(name, weight_sum.new_zeros(())) + weight * value
        agree[f"agree_{step + 1}"] = hits / alive.sum()
        weight_sum = weight_sum + weight * alive.sum()
        if step + 1 < config.unroll:
            states.advance(step)
    parts = {name: value / weight_sum for name, value in sums.items()}
    total = (
        config.lambda_hid * (config.beta_h * parts["hidden"] + config.beta_mid * parts["mid"])
        + config.lambda_kl * parts["kl"]
        + config.lambda_tok * (config.beta_ce * parts["ce"] + config.beta_cmp * parts["margin"])
    )
    return Losses(total, {name: value.detach() for name, value in (parts | agree).items()})


class _Teacher:
    """The target's law at every answer slot, computed once for all steps: rows of one table."""

    def __init__(self, target: Target, slots: _Slots) -> None:
        with torch.no_grad():
            rows = slots.features[slots.answer]
            log_p = target.head(rows.to(target.dtype)).float().log_softmax(-1)
            self.p = log_p.exp()
            self.entropy = -(self.p * log_p).sum(-1)
            self.labels = log_p.argmax(-1)
            # Where each slot stands in the table; only slots of answers are ever asked for.
            self.place = torch.zeros_like(slots.tokens)
            self.place[slots.answer] = torch.arange(len(rows), device=rows.device)


def _step_losses(
    target: Target,
    config: Any,
    slots: _Slots,
    teacher: _Teacher,
    first: Float[Tensor, "B A D"],
    h: Float[Tensor, "B A D"],
    step: int,
    alive: Bool[Tensor, "B A"],
) -> tuple[dict[str, Tensor], Tensor]:
    """Sums over the living states of one step, and the hits. [FOVEA, Eq. 10-13]

    `losses.kl_loss` and `losses.cross_entropy` in one pass over a shared log-softmax: on a
    vocabulary these passes, not the network, are what a training step costs.
    """
    place = slots.bases + 1 + step
    corrected = h[alive].float()
    mid = corrected.new_zeros(())
    if slots.mid is not None:
        # The streams differ in scale from layer to layer; both sides are taken at unit RMS.
        wanted = _gather(slots.mid, place)[alive].float()
        mid = hidden_loss(_unit(first[alive].float()), _unit(wanted)).sum()
    row = _gather(teacher.place, place)[alive]
    labels = teacher.labels[row]
    logits = target.head(corrected.to(target.dtype)).float()
    log_q = logits.log_softmax(-1)
    values = {
        "hidden": hidden_loss(corrected, _gather(slots.features, place)[alive]).sum(),
        "mid": mid,
        "kl": -(teacher.p[row] * log_q).sum() - teacher.entropy[row].sum(),
        "ce": -log_q.gather(-1, labels[:, None]).sum(),
        "margin": boundary_margin(log_q, labels, config.width, config.margin).sum(),
    }
    return values, (logits.argmax(-1) == labels).float().sum()


class _Chain:
    """Draft states of all bases, step by step.

    `h` are the states after the last block and norm, `first` those after block 1.
    """

    def __init__(self, network: Any, slots: _Slots) -> None:
        self.network, self.slots = network, slots
        self.stable: list[tuple[Tensor, Tensor]] = []  # per block: keys, values of the true slots
        self.drafted: list[list[tuple[Tensor, Tensor]]] = [[] for _ in network.blocks]
        x = network.enter(slots.features, slots.embeddings)
        size = x.shape[1]
        causal = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
        turn = rotation(slots.positions, network.hidden // network.heads, x.dtype)
        for number, block in enumerate(network.blocks):
            q, k, v = block.project(x, turn)
            self.stable.append((k, v))
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
            weights = scores.masked_fill(~causal, float("-inf")).float().softmax(-1)
            x = block.finish(x, weights.to(v.dtype) @ v)
            if number == 0:
                self.first = _gather(x, slots.bases)
        self.h = _gather(network.norm(x), slots.bases)
        index = torch.arange(size, device=x.device)
        self.visible = index <= slots.bases[..., None]  # [B, A, S]

    def advance(self, step: int) -> None:
        """Draft one token further from every base, on its own state."""
        slots, network = self.slots, self.network
        x = network.enter(self.h, _gather(slots.embeddings, slots.bases + 1 + step))
        positions = _gather(slots.positions, slots.bases) + 1 + step
        turn = rotation(positions, network.hidden // network.heads, x.dtype)
        for number, block in enumerate(network.blocks):
            q, k, v = block.project(x, turn)
            self.drafted[number].append((k, v))
            x = block.finish(x, self._attend(number, q))
            if number == 0:
                self.first = x
        self.h = network.norm(x)

    def _attend(self, number: int, q: Float[Tensor, "B H A dh"]) -> Float[Tensor, "B H A dh"]:
        """The true slots up to the base, then the own chain, in one softmax."""
        keys, values = self.stable[number]
        scale = q.shape[-1] ** -0.5
        past = (q @ keys.transpose(-1, -2) * scale).masked_fill(
            ~self.visible[:, None], float("-inf")
        )
        chain = self.drafted[number]
        own = [(q * k).sum(-1, keepdim=True) * scale for k, _ in chain]
        weights = torch.cat([past, *own], -1).float().softmax(-1).to(values.dtype)
        out = weights[..., : keys.shape[-2]] @ values
        for place, (_, v) in enumerate(chain, start=keys.shape[-2]):
            out = out + weights[..., place : place + 1] * v
        return out


def _collate(batch: list[Artifact], target: Target, config: Any) -> _Slots:
    """Shift features and tokens as in decoding, leave pictures out if the drafter does, pad."""
    device = target.device
    rows = []
    for item in batch:
        keep = torch.ones(len(item.tokens) - 1, dtype=torch.bool)
        if config.prefix == "text_only":
            keep = item.image_of[1:] < 0
        index = keep.nonzero()[:, 0]
        rows.append((item, index))

    def pad(xs: list[Tensor]) -> Tensor:
        return pad_sequence(xs, batch_first=True).to(device)

    answer = pad([item.supervised[1:][index] for item, index in rows])
    tokens = pad([item.tokens[1:][index] for item, index in rows])
    embeddings = target.embed(tokens).float()
    if config.prefix == "full":
        image = pad([item.image_of[1:][index] >= 0 for item, index in rows])
        embeddings[image] = torch.cat([item.visual for item in batch]).to(embeddings)
    has_mid = all(item.mid is not None for item in batch)
    bases, bases_valid = _bases(answer, config.max_bases)
    return _Slots(
        features=pad([item.final[:-1][index].float() for item, index in rows]),
        mid=pad([item.mid[:-1][index].float() for item, index in rows]) if has_mid else None,  # type: ignore[index]
        tokens=tokens,
        embeddings=embeddings.detach(),
        positions=pad([index for _, index in rows]),
        answer=answer,
        visual=pad([item.visual.float() for item in batch]),
        visual_valid=pad([torch.ones(len(item.visual), dtype=torch.bool) for item in batch]),
        bases=bases,
        bases_valid=bases_valid,
    )


def _bases(
    answer: Bool[Tensor, "B S"], most: int
) -> tuple[Int64[Tensor, "B A"], Bool[Tensor, "B A"]]:
    """Answer tokens that another answer token follows; at most `most` of each sample, drawn."""
    follows = answer.clone()
    follows[:, :-1] &= answer[:, 1:]
    follows[:, -1] = False
    count = int(follows.sum(-1).max())
    size = min(count, most) if most else count
    order = torch.rand(follows.shape, device=answer.device) if size < count else None
    rank = follows.float() if order is None else torch.where(follows, 1 + order, 0.0)
    picked = rank.topk(size, -1).indices.sort(-1).values
    return picked, follows.gather(-1, picked)


def _gather(x: Tensor, index: Int64[Tensor, "B A"]) -> Tensor:
    """Rows of each sample; beyond the end the last one (masked by the caller)."""
    index = index.clamp(max=x.shape[1] - 1)
    if x.dim() == 2:
        return x.gather(1, index)
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def _unit(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:])
