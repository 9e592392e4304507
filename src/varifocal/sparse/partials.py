"""Attention over single blocks, kept apart, and their merge in one fixed order. [PRR]

Letters: n blocks (each with the query group that reads it), G query heads of one KV head, S tokens
of a block, D head width, C states merged into one.

A state is (m, l, acc): `peak` the greatest logit, `mass` the sum of exp(logit - peak), `total` that
sum weighted with the values. It is kept unnormalised and never as (output, LSE): that is one
rounding less, and no base of a logarithm can be mistaken. A block's state is a function of its
query group and its tokens alone, whoever computes it, when, and beside which others; so states
made early and states made late can be merged as if all had been made at once.
"""

from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

_AT_ONCE = 1 << 18  # products that are made before they are summed


@dataclass(frozen=True)
class Partials:
    """States (m, l, acc) of n blocks, in float32, or float64 if the keys are."""

    peak: Float[Tensor, "*n G"]  # -inf where no key was seen
    mass: Float[Tensor, "*n G"]
    total: Float[Tensor, "*n G D"]

    def __len__(self) -> int:
        return len(self.peak)

    def output(self) -> Float[Tensor, "*n G D"]:
        """Normalised attention; zeros where no key was seen."""
        is_empty = (self.mass == 0)[..., None]
        return torch.where(is_empty, 0, self.total / self.mass[..., None].masked_fill(is_empty, 1))

    def joined(self, other: Self) -> "Partials":
        """The states of both, these first, and the identity of merging as a last one."""
        nothing = self.peak.new_zeros(1, *self.peak.shape[1:])
        return Partials(
            torch.cat([self.peak, other.peak, nothing - torch.inf]),
            torch.cat([self.mass, other.mass, nothing]),
            torch.cat([self.total, other.total, self.total.new_zeros(1, *self.total.shape[1:])]),
        )


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """In what logits and states are computed: float32, or float64 for float64 keys."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def fold(values: Tensor, dim: int) -> Tensor:
    """Sum along `dim` by adding neighbours, then neighbours of those: one tree, whatever the shape.

    A library's sum may change its order with the number of rows beside the summed one, with
    strides or threads. Here only elementwise additions happen, and zeros behind the last
    summand change nothing: padding a batch leaves every row's bits alone.
    """
    values = values.movedim(dim, 0)
    lacking = (1 << max(0, len(values) - 1).bit_length()) - len(values)
    if lacking:
        values = torch.cat([values, values.new_zeros(lacking, *values.shape[1:])])
    while len(values) > 1:
        values = values[0::2] + values[1::2]
    return values[0]


def attend_blocks(
    query: Float[Tensor, "n G D"],
    keys: Float[Tensor, "n S D"],
    values: Float[Tensor, "n S D"],
    is_seen: Bool[Tensor, "n S"],
    scale: float,
) -> Partials:
    """One state per block. `is_seen` masks what lies behind the query's own position."""
    work = working_dtype(keys.dtype)
    logits = products(query.to(keys.dtype).to(work), keys.to(work).mT) * scale
    return weigh(logits.masked_fill(~is_seen[:, None], -torch.inf), values.to(work))


def weigh(logits: Float[Tensor, "n G S"], values: Float[Tensor, "n S D"]) -> Partials:
    """States from logits (-inf: not seen) and values, both of the working dtype."""
    peak = logits.amax(-1)
    weights = (logits - _finite(peak)[..., None]).exp()
    return Partials(peak, fold(weights, -1), products(weights, values))


def products(left: Float[Tensor, "n A B"], right: Float[Tensor, "n B C"]) -> Tensor:
    """A matrix product for each block, whose bits do not depend on the other blocks.

    A library's batched product does not promise that, and does not keep it: its sums change with
    the batch's size, a matrix's place in memory and the number of threads (LOG.md). So the sums are
    spelt out, for some blocks at a time to stay within the processor's caches.
    """
    size = max(1, _AT_ONCE // max(1, left.shape[1] * right.shape[1] * right.shape[2]))
    some = zip(left.mT.split(size), right.split(size), strict=True)
    made = [fold(a[..., None] * b[:, :, None], 1) for a, b in some]
    return made[0] if len(made) == 1 else torch.cat(made)


def merge(partials: Partials, slots: Int64[Tensor, "*q C"]) -> Partials:
    """One state from the C states at `slots`, in the order given; -1 is the last, the identity.

    Two passes, as a kernel would: the greatest peak, then the weighted sum over a fixed tree.
    """
    peaks = partials.peak[slots]
    peak = peaks.amax(-2) if slots.shape[-1] else partials.peak[-1].expand(*slots.shape[:-1], -1)
    weights = (peaks - _finite(peak)[..., None, :]).exp()
    mass = fold(weights * partials.mass[slots], -2)
    total = fold(weights[..., None] * partials.total[slots], -3)
    return Partials(peak, mass, total)


def _finite(peak: Tensor) -> Tensor:
    """-inf - -inf is not a number; any finite stand-in gives weights of zero."""
    return peak.masked_fill(peak == -torch.inf, 0)
