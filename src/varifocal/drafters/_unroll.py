"""Training meets decoding: every draft step sees the states that it will meet. [EAGLE-3, TTT]

Step s of base j predicts u_{j+1+s}; its teacher is the target's state before that token. As in
decoding, step 0 reads true features and later steps the drafter's own states; each step attends to
the true slots up to its base and to its own chain. Letters: B samples, S slots, A unrolled bases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from varifocal.drafters._blocks import rotation, shared_heads
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses

if TYPE_CHECKING:
    from varifocal.target import Target


@runtime_checkable
class Unrolled(Protocol):
    """What a padded batch must hold to be unrolled."""

    @property
    def features(self) -> Tensor:
        """[B, S, F]: what a slot reads of the target."""

    @property
    def embeddings(self) -> Tensor:
        """[B, S, D]: of each slot's token u_j."""

    @property
    def positions(self) -> Tensor:
        """[B, S]: where each slot stands."""

    @property
    def answer(self) -> Tensor:
        """[B, S]: u_j is supervised."""

    @property
    def bases(self) -> Tensor:
        """[B, A]: slots whose u_j is a root that a draft continues."""

    @property
    def bases_valid(self) -> Tensor:
        """[B, A]."""


@dataclass(frozen=True)
class Slots:
    """A padded batch for drafters that read features and tokens, and nothing of a picture.

    Slot j pairs the target's features before text token u_j with the embedding of u_j.
    """

    features: Float[Tensor, "B S F"]
    final: Float[Tensor, "B S D"]  # the state that the target's head reads
    tokens: Int64[Tensor, "B S"]
    embeddings: Float[Tensor, "B S D"]
    positions: Int64[Tensor, "B S"]
    answer: Bool[Tensor, "B S"]
    bases: Int64[Tensor, "B A"]
    bases_valid: Bool[Tensor, "B A"]
    is_visual: Bool[Tensor, "B S"]  # u_j stands for a part of a picture


def collate(
    batch: list[Artifact],
    target: Target,
    features: Callable[[Artifact], Tensor],  # [T, F] of a sample
    *,
    text_only: bool,
    max_bases: int,
    visual: bool = False,
    kept: list[Tensor] | None = None,
) -> Slots:
    """Shift features and tokens as in decoding, leave picture slots out if the drafter does, pad.

    A picture's slot, where it is kept, is embedded as its placeholder, with `visual` as the
    projected visual token that the target reads. `kept` lists the slots that a drafter reads of
    each sample, if it is neither all nor those of text.
    """
    if kept is None:
        kept = [kept_slots(item, text_only=text_only) for item in batch]
    rows = list(zip(batch, kept, strict=True))

    def pad(xs: list[Tensor]) -> Tensor:
        return pad_sequence(xs, batch_first=True).to(target.device)

    answer = pad([item.supervised[1:][index] for item, index in rows])
    tokens = pad([item.tokens[1:][index] for item, index in rows])
    bases, bases_valid = bases_of(answer, max_bases)
    embeddings = target.embed(tokens).float().detach()
    is_visual = pad([item.image_of[1:][index] >= 0 for item, index in rows])
    if visual and not text_only:
        show(embeddings, is_visual, batch)
    return Slots(
        features=pad([features(item)[:-1][index].float() for item, index in rows]),
        final=pad([item.final[:-1][index].float() for item, index in rows]),
        tokens=tokens,
        embeddings=embeddings,
        positions=pad([index for _, index in rows]),
        answer=answer,
        bases=bases,
        bases_valid=bases_valid,
        is_visual=is_visual,
    )


def show(
    embeddings: Float[Tensor, "B S D"], is_visual: Bool[Tensor, "B S"], batch: list[Artifact]
) -> None:
    """Put the projected visual tokens at their slots, all of which are kept; in place."""
    # No slot is followed by the first token: of a picture that opens a prompt it is left out.
    parts = [item.visual[int(item.image_of[0] >= 0) :] for item in batch]
    embeddings[is_visual] = torch.cat(parts).to(embeddings)


def kept_slots(item: Artifact, *, text_only: bool) -> Int64[Tensor, " S"]:
    """The slots that a drafter reads: all, or those followed by text."""
    keep = item.image_of[1:] < 0 if text_only else torch.ones_like(item.image_of[1:]).bool()
    return keep.nonzero()[:, 0]


class Teacher:
    """The target's law at every answer slot, computed once for all steps: rows of one table.

    With `ids` the law is that over these tokens alone, renormalised; `labels` count among them, and
    `known` says where the target's own choice is one of them.
    """

    def __init__(
        self,
        target: Target,
        final: Float[Tensor, "B S D"],
        answer: Bool[Tensor, "B S"],
        ids: Int64[Tensor, " v"] | None = None,
    ) -> None:
        with torch.no_grad():
            rows = final[answer]
            logits = target.head(rows.to(target.dtype)).float()
            choice = logits.argmax(-1)
            if ids is not None:
                logits = logits[:, ids]
            log_p = logits.log_softmax(-1)
            self.p = log_p.exp()
            self.entropy = -(self.p * log_p).sum(-1)
            self.labels = log_p.argmax(-1)
            self.known = choice == (self.labels if ids is None else ids[self.labels])
            # Where each slot stands in the table; only slots of answers are ever asked for.
            self.place = torch.zeros(answer.shape, dtype=torch.int64, device=answer.device)
            self.place[answer] = torch.arange(len(rows), device=rows.device)


@dataclass(frozen=True)
class Judged:
    """Sums over the supervised states of one step."""

    values: dict[str, Tensor]
    hits: Float[Tensor, ""]  # how often the target's choice comes first
    count: Int64[Tensor, ""]


@runtime_checkable
class Drafting(Protocol):
    """Draft states of all bases, step by step."""

    @property
    def h(self) -> Tensor:
        """[B, A, D]: of the newest step, as they are scored."""

    def advance(self, step: int) -> None:
        """Draft one token further from every base, on its own state."""


# Of one step: its number, the states [B, A, D], the slots that they predict, which of them live.
Judge = Callable[[int, Tensor, Tensor, Tensor], Judged]


def unroll(
    chain: Drafting, slots: Unrolled, weights: Sequence[float], judge: Judge
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Means of what `judge` returns over the supervised states of all steps, weighted by step.

    And `agree_k`, the share of hits of the k-th drafted token, for the log.
    """
    sums: dict[str, Tensor] = {}
    agree: dict[str, Tensor] = {}
    weight_sum = slots.features.new_zeros(())
    alive = slots.bases_valid
    for step, weight in enumerate(weights):
        place = slots.bases + 1 + step
        alive = alive & (place < slots.answer.shape[1]) & gather(slots.answer, place)
        if not bool(alive.any()):
            break
        judged = judge(step, chain.h, place, alive)
        for name, value in judged.values.items():
            sums[name] = sums.get(name, weight_sum.new_zeros(())) + weight * value
        agree[f"agree_{step + 1}"] = judged.hits / judged.count.clamp(min=1)
        weight_sum = weight_sum + weight * judged.count
        if step + 1 < len(weights):
            chain.advance(step)
    few = torch.finfo(weight_sum.dtype).tiny  # where no state at all counts, the means are 0
    return {name: value / weight_sum.clamp(min=few) for name, value in sums.items()}, agree


def nothing(network: Any) -> Losses:
    """The loss of a batch in which nothing can be drafted."""
    return Losses(torch.as_tensor(sum(p.sum() for p in network.parameters()) * 0.0), {})


class Chain:
    """Draft states of all bases, step by step.

    `h` are the states after the last block and norm, `first` those after block 1.
    """

    def __init__(self, network: Any, slots: Unrolled, x: Tensor | None = None) -> None:
        """`x` [B, S, X] are the first block's inputs, if `network.enter` does not make them."""
        self.network, self.slots = network, slots
        self.stable: list[tuple[Tensor, Tensor]] = []  # per block: keys, values of the true slots
        self.drafted: list[list[tuple[Tensor, Tensor]]] = [[] for _ in network.blocks]
        if x is None:
            x = network.enter(slots.features, slots.embeddings)
        size = x.shape[1]
        causal = torch.ones(size, size, dtype=torch.bool, device=x.device).tril()
        self.visible = torch.arange(size, device=x.device) <= slots.bases[..., None]  # [B, A, S]
        turn = rotation(slots.positions, network.shape, x.dtype)
        for number, block in enumerate(network.blocks):
            q, k, v = block.project(x, turn)
            k, v = (shared_heads(y, q.shape[-3]) for y in (k, v))
            self.stable.append((k, v))
            is_last = number + 1 == len(network.blocks)
            if is_last:  # of slots that are no bases only its keys and values are ever read
                x = gather(x, slots.bases)
                row = slots.bases[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3])
                x = block.finish(x, self._attend(number, q.gather(2, row)))
            else:
                scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
                weights = scores.masked_fill(~causal, float("-inf")).float().softmax(-1)
                x = block.finish(x, weights.to(v.dtype) @ v)
            if number == 0:
                self.first = x if is_last else gather(x, slots.bases)
        self.h = network.norm(x)

    def advance(self, step: int) -> None:
        """Draft one token further from every base, on its own state."""
        slots, network = self.slots, self.network
        x = network.enter(self.h, gather(slots.embeddings, slots.bases + 1 + step))
        positions = gather(slots.positions, slots.bases) + 1 + step
        turn = rotation(positions, network.shape, x.dtype)
        for number, block in enumerate(network.blocks):
            q, k, v = block.project(x, turn)
            k, v = (shared_heads(y, q.shape[-3]) for y in (k, v))
            self.drafted[number].append((k, v))
            x = block.finish(x, self._attend(number, q))
            if number == 0:
                self.first = x
        self.h = network.norm(x)

    def _attend(self, number: int, q: Float[Tensor, "B H A dh"]) -> Float[Tensor, "B H A dh"]:
        """The true slots up to the base, then the own chain."""
        return attend_chain(q, self.stable[number], self.drafted[number], self.visible)


def attend_chain(
    q: Float[Tensor, "B H A dh"],
    stable: tuple[Tensor, Tensor],
    chain: Sequence[tuple[Tensor, Tensor]],
    visible: Bool[Tensor, "b A S"],
) -> Float[Tensor, "B H A dh"]:
    """Attention in one softmax to the visible true slots, and to the own part of a chain.

    `stable` are their keys and values [B, H, S, dh], `chain` those of each drafted step, of which
    row a reads its own alone.
    """
    keys, values = stable
    q = q * q.shape[-1] ** -0.5
    scores = (q @ keys.transpose(-1, -2)).masked_fill(~visible[:, None], float("-inf"))
    if chain:
        own = [(q * k).sum(-1, keepdim=True) for k, _ in chain]
        scores = torch.cat([scores, *own], -1)
    weights = scores.float().softmax(-1).to(values.dtype)
    out = weights[..., : keys.shape[-2]] @ values
    for place, (_, v) in enumerate(chain, start=keys.shape[-2]):
        out = out + weights[..., place : place + 1] * v
    return out


def bases_of(
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


def gather(x: Tensor, index: Int64[Tensor, "B A"]) -> Tensor:
    """Rows of each sample; beyond the end the last one (masked by the caller)."""
    index = index.clamp(max=x.shape[1] - 1)
    if x.dim() == 2:
        return x.gather(1, index)
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))
