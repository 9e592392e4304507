"""From logits to tokens; the noise that decides a token belongs to its output position."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.errors import BadRequest


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen. The default is greedy.

    The law p is softmax(logits / temperature), cut to `top_k`, then to the smallest set of mass
    `top_p`. A token is drawn as argmax(log p + Gumbel noise), and the noise is a function of
    (seed, output position, token) alone: any drafter, or none, gives the same text. [Daliri24]
    """

    temperature: float = 0.0  # 0 is greedy
    top_k: int = 0  # keep the k likeliest tokens; 0 keeps all
    top_p: float = 1.0  # keep the smallest set with at least this mass
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise BadRequest(
                f"temperature must be 0 (greedy) or a positive number, got {self.temperature}"
            )
        if self.top_k < 0:
            raise BadRequest(f"top_k must be 0 (off) or a positive count, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise BadRequest(f"top_p must be in (0, 1], got {self.top_p}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise BadRequest(f"seed must be a whole number in [0, 2**63), got {self.seed!r}")

    def pick(
        self, logits: Float[Tensor, "N V"], position: Int64[Tensor, " N"]
    ) -> Int64[Tensor, " N"]:
        """The target's own token for each row; rows at one output position share their noise."""
        if self.temperature == 0:
            return logits.argmax(-1)
        used, row = torch.unique(position, return_inverse=True)
        noise = gumbel(self.seed, used, logits.shape[-1])
        return (self.filtered(logits) + noise[row]).argmax(-1)

    def filtered(self, logits: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """log p up to a constant, -inf for tokens that the filters remove; float32."""
        scores = logits.float()
        # Dividing the distance to the best logit keeps tiny temperatures finite.
        scores = (scores - scores.amax(-1, keepdim=True)) / max(self.temperature, 1e-6)
        if 0 < self.top_k < scores.shape[-1]:
            limit = scores.topk(self.top_k, dim=-1).values[:, -1:]
            scores = scores.masked_fill(scores < limit, -math.inf)
        if self.top_p < 1:
            ordered, order = scores.sort(dim=-1, descending=True)
            mass = ordered.softmax(-1).cumsum(-1)
            drop = torch.zeros_like(mass, dtype=torch.bool)
            drop[:, 1:] = mass[:, :-1] >= self.top_p  # the token that crosses top_p stays
            scores = scores.masked_fill(drop.scatter(-1, order, drop), -math.inf)
        return scores


def gumbel(seed: int, position: Int64[Tensor, " P"], vocab: int) -> Float[Tensor, "P V"]:
    """Gumbel noise from a counter-based hash of (seed, position, token); no generator state."""
    token = torch.arange(vocab, device=position.device)
    key = _mix(_mix(position + _wrap(seed * 0x9E3779B97F4A7C15))[:, None] + token[None])
    # u in (0, 1) with 32 bits; E = -log(1 - u) keeps its precision where E is small, which is
    # where the Gumbel -log(E) is large and decides.
    u = (
        ((key >> 20 & 0xFFFFFFFF).double() + 0.5) / 2**32
        if key.device.type != "mps"
        else ((key >> 20 & 0xFFFFFF).float() + 0.5) / 2**24
    )
    return -(-torch.log1p(-u)).log().float()


def _mix(x: Int64[Tensor, "..."]) -> Int64[Tensor, "..."]:
    """The finaliser of splitmix64 in wrapping 64-bit arithmetic."""
    x = (x ^ _shift(x, 30)) * _wrap(0xBF58476D1CE4E5B9)
    x = (x ^ _shift(x, 27)) * _wrap(0x94D049BB133111EB)
    return x ^ _shift(x, 31)


def _shift(x: Int64[Tensor, "..."], bits: int) -> Int64[Tensor, "..."]:
    return (x >> bits) & ((1 << (64 - bits)) - 1)  # logical: torch's >> keeps the sign


def _wrap(value: int) -> int:
    """The signed 64-bit number with the same low 64 bits."""
    return (value + 2**63) % 2**64 - 2**63
