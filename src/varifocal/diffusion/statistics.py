"""From logits to the few numbers a position that gates and samplers read.

Letters: B rows, W positions of a window that lie on the canvas, G of the canvas, R = B x G, n those
that are measured, of all rows, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64, Shaped
from torch import Tensor

from varifocal.diffusion import noise
from varifocal.diffusion.denoiser import Vocabulary
from varifocal.errors import BadArtifact
from varifocal.sampling import Sampling, gumbel

_NEVER = -1e30  # a logit whose probability is 0, and 0 times it too


@dataclass(frozen=True)
class Want:
    """What is read beside the argmax and its probability; all of it costs a pass over the law."""

    gap: bool = False
    margin: bool = False
    entropy: bool = False
    divergence: bool = False  # keeps the whole law of the last step
    committed: bool = False  # of committed positions too, whose numbers mean little

    def __or__(self, other: "Want") -> "Want":
        return Want(*(getattr(self, f.name) or getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a forward says of one row. Where it is not fresh the numbers mean nothing."""

    fresh: Bool[np.ndarray, " G"]  # computed by this forward, and measured
    argmax: Int64[np.ndarray, " G"]
    confidence: Float[np.ndarray, " G"]
    picks: Int64[np.ndarray, " G"]
    pick_confidence: Float[np.ndarray, " G"]
    gap: Float[np.ndarray, " G"] | None = None
    margin: Float[np.ndarray, " G"] | None = None
    entropy: Float[np.ndarray, " G"] | None = None
    divergence: Float[np.ndarray, " G"] | None = None

    def over(self, last: "Seen") -> "Seen":
        """With the last known numbers where there are no new ones."""
        merged: dict[str, Any] = {"fresh": self.fresh}
        for name in (f.name for f in fields(self) if f.name != "fresh"):
            new = getattr(self, name)
            merged[name] = new if new is None else np.where(self.fresh, new, getattr(last, name))
        return Seen(**merged)


@dataclass(frozen=True)
class Ask:
    """What is wanted of one row in one step."""

    positions: Int64[np.ndarray, " m"]  # of the canvas, inside of the forward's window
    open: Int64[np.ndarray, " o"]  # of them, what may be committed: tokens are drawn there
    step: int
    sampling: Sampling


def never_ids(vocabulary: Vocabulary) -> list[int]:
    """Ids that no position may get: the mask, the banned, and padding where it ends no text.

    LLaDA and Dream pad with the token that ends a text, which of course may be said.
    """
    padding = {vocabulary.pad} - vocabulary.stops
    return sorted({vocabulary.mask, *vocabulary.never} | padding)


class Statistics:
    """Of the rows of one canvas. Holds the last law, if divergences are wanted."""

    def __init__(self, never: Int64[Tensor, " k"], mask: int, want: Want) -> None:
        self._never, self._mask, self._want = never, mask, want
        self._law: Float32[Tensor, "R V"] | None = None  # log-probabilities; NaN: none yet

    def select(self, rows: Sequence[int], length: int) -> "Statistics":
        """Of some rows alone, with canvases of `length`."""
        some = Statistics(self._never, self._mask, self._want)
        if self._law is not None:
            some._law = self._law.unflatten(0, (-1, length))[list(rows)].flatten(0, 1)
        return some

    def measure(
        self,
        logits: Float[Tensor, "B W V"],
        fresh: Bool[Tensor, "B G"],
        start: int,
        asks: Sequence[Ask],
    ) -> list[Seen]:
        """Logits about the canvas from position `start` on; one copy from the device."""
        (num_rows, size, width), length = logits.shape, fresh.shape[1]
        there = inside = _joined([ask.positions for ask in asks], length, 0, logits.device)
        if size < length:
            inside = _joined([ask.positions for ask in asks], size, start, logits.device)
        law = logits.reshape(-1, width).index_select(0, inside).float()
        law.index_fill_(-1, self._never, _NEVER)
        numbers = self._numbers(law, there, num_rows * length)
        numbers["fresh"] = fresh.reshape(-1).index_select(0, there)
        if any(ask.sampling.temperature > 0 for ask in asks):
            numbers |= _drawn(law, numbers, asks)
        found, begin, seen = _to_host(numbers), 0, []
        if math.isnan(found["confidence"].sum()):
            raise BadArtifact(
                "the model's logits are not numbers: its weights are damaged, or its precision is "
                "too small for them; load it again, or with dtype float32"
            )
        for ask in asks:
            own = slice(begin, begin + len(ask.positions))
            begin = own.stop
            seen.append(self._seen({k: v[own] for k, v in found.items()}, ask.positions, length))
        return seen

    def _numbers(
        self, law: Float32[Tensor, "n V"], places: Int64[Tensor, " n"], num_places: int
    ) -> dict[str, Shaped[Tensor, " n"]]:
        want, argmax = self._want, _argmax(law)
        fall = law - law.amax(-1, keepdim=True)  # nothing above 0: no sum loses its digits
        probs = fall.softmax(-1)
        confidence = probs.amax(-1)
        made = {"argmax": argmax, "confidence": confidence}
        if want.gap or want.margin:
            second = fall.scatter(-1, argmax[:, None], _NEVER).amax(-1)
            made["gap"] = -second
            made["margin"] = confidence * (1 - second.exp())
        if want.entropy:
            made["entropy"] = -confidence.log() - (probs * fall).sum(-1)
        if want.divergence:
            logs = fall.log_softmax(-1)
            if self._law is None:
                self._law = law.new_full((num_places, law.shape[-1]), torch.nan)
            moved = (probs * (logs - self._law[places])).sum(-1)
            made["divergence"] = moved.nan_to_num(nan=torch.inf)
            self._law[places] = logs
        return made

    def _seen(
        self,
        numbers: dict[str, Shaped[np.ndarray, " m"]],
        positions: Int64[np.ndarray, " m"],
        length: int,
    ) -> Seen:
        """As long as the canvas. Where nothing was measured the argmax is the mask."""
        whole = dict(numbers)
        if len(positions) < length:
            for name, values in numbers.items():
                blank = self._mask if name in ("argmax", "picks") else 0
                whole[name] = np.full(length, blank, values.dtype)
                whole[name][positions] = values
        for name, same in (("picks", "argmax"), ("pick_confidence", "confidence")):
            whole.setdefault(name, whole[same])
        return Seen(**whole)


def _joined(
    positions: Sequence[Int64[np.ndarray, "..."]], size: int, start: int, device: torch.device
) -> Int64[Tensor, " n"]:
    """Positions of rows that lie one behind another, each of `size` positions from `start` on."""
    parts = [each + (row * size - start) for row, each in enumerate(positions)]
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts)).to(device)


def _to_host(numbers: dict[str, Shaped[Tensor, " n"]]) -> dict[str, Shaped[np.ndarray, " n"]]:
    """One copy from the device. Ids are exact in float32: vocabularies have fewer than 2**24."""
    if all(values.device.type == "cpu" for values in numbers.values()):
        return {name: values.numpy() for name, values in numbers.items()}
    packed = torch.stack([values.float() for values in numbers.values()]).cpu().numpy()
    types = {"argmax": np.int64, "picks": np.int64, "fresh": np.bool_}
    return {
        name: values.astype(types.get(name, np.float32))
        for name, values in zip(numbers, packed, strict=True)
    }


def _argmax(law: Float32[Tensor, "n V"]) -> Int64[Tensor, " n"]:
    """The first of the greatest. On a CPU NumPy finds it in a tenth of torch's time."""
    if law.device.type == "cpu":
        return torch.from_numpy(law.numpy().argmax(-1))
    return law.argmax(-1)


def _drawn(
    law: Float32[Tensor, "n V"], numbers: dict[str, Shaped[Tensor, " n"]], asks: Sequence[Ask]
) -> dict[str, Shaped[Tensor, " n"]]:
    """Tokens drawn where they may be committed, and their probabilities."""
    picks, likely = numbers["argmax"].clone(), numbers["confidence"].clone()
    begin = 0
    for ask in asks:
        inside = np.searchsorted(ask.positions, ask.open) + begin
        begin += len(ask.positions)
        if ask.sampling.temperature == 0:
            continue
        at = torch.from_numpy(inside).to(law.device)
        logits, open = law[at], torch.from_numpy(ask.open).to(law.device)
        noisy = gumbel(ask.sampling.seed, noise.places(ask.step, open), logits.shape[-1])
        picks[at] = (ask.sampling.filtered(logits) + noisy).argmax(-1)
        likely[at] = logits.softmax(-1).gather(-1, picks[at][:, None])[:, 0]
    return {"picks": picks, "pick_confidence": likely}
