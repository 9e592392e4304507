"""A drafter's decoder block, and the rewindable cache of its keys and values."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

_ROOM = 256  # entries that a buffer grows by at least
Rotation = tuple[Tensor, Tensor]  # cosine and signed sine, broadcast over heads


@dataclass(frozen=True, kw_only=True)
class BlockShape:
    """Sizes and kind of a block, so that published weights keep the arithmetic they came with.

    D hidden, H heads of width dh, G heads of keys and values, each shared by H / G queries.
    """

    hidden: int
    heads: int
    inner: int  # feed-forward width
    kv_heads: int
    head_width: int
    norms: Literal["layer", "rms"] = "layer"
    eps: float = 1e-6
    bias: bool = False  # of queries, keys and values
    theta: float = 10_000.0  # base of the rotary positions

    def norm(self, width: int = 0, *, bias: bool = False) -> nn.Module:
        """A norm over `width`, the hidden size if left out.

        LayerNorm is one kernel in torch, RMSNorm is eight on a CPU; RMSNorm has no bias.
        """
        if self.norms == "rms":
            return nn.RMSNorm(width or self.hidden, eps=self.eps)
        return nn.LayerNorm(width or self.hidden, eps=self.eps, bias=bias)


class Block(nn.Module):
    """Pre-norm attention with rotary positions, then SwiGLU; what attends to what is the caller's.

    `width` is that of its rows, the hidden size if left out.
    """

    def __init__(self, shape: BlockShape, *, width: int = 0, has_input_norm: bool = True) -> None:
        super().__init__()
        self.shape = shape
        reach = shape.heads * shape.head_width
        rows = (shape.heads + 2 * shape.kv_heads) * shape.head_width
        self.attention_norm = shape.norm(width) if has_input_norm else nn.Identity()
        self.qkv = nn.Linear(width or shape.hidden, rows, bias=shape.bias)
        self.out = nn.Linear(reach, shape.hidden, bias=False)
        self.inner_norm = shape.norm()
        self.gate_up = nn.Linear(shape.hidden, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.hidden, bias=False)

    def project(
        self, x: Float[Tensor, "*b n X"], rotation: "Rotation"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [*b, H, n, dh], keys and values [*b, G, n, dh]; positions are in q and k."""
        return split_heads(self.qkv(self.attention_norm(x)), self.shape, rotation)

    def finish(
        self, x: Float[Tensor, "*b n D"], attended: Float[Tensor, "*b H n dh"]
    ) -> Float[Tensor, "*b n D"]:
        """The block's output from what its attention read."""
        x = x + self.out(attended.transpose(-2, -3).flatten(-2))
        gate, up = self.gate_up(self.inner_norm(x)).chunk(2, -1)
        grown: Tensor = x + self.down(F.silu(gate) * up)
        return grown


class PairBlock(Block):
    """A block of [embedding; state] rows: attention reads both, normed, around the state alone.

    With `norm_before_residual` it is the normed state that goes on beside the attention.
    """

    def __init__(self, shape: BlockShape, *, norm_before_residual: bool = False) -> None:
        super().__init__(shape, width=2 * shape.hidden, has_input_norm=False)
        self.norm_before_residual = norm_before_residual
        self.token_norm = shape.norm()
        self.state_norm = shape.norm()

    def project(
        self, x: Float[Tensor, "*b n E"], rotation: "Rotation"
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values."""
        token, state = x.chunk(2, -1)
        normed = torch.cat([self.token_norm(token), self.state_norm(state)], -1)
        return super().project(normed, rotation)

    def finish(
        self, x: Float[Tensor, "*b n E"], attended: Float[Tensor, "*b H n dh"]
    ) -> Float[Tensor, "*b n D"]:
        """The block's output from what its attention read."""
        state = x.chunk(2, -1)[1]
        return super().finish(
            self.state_norm(state) if self.norm_before_residual else state, attended
        )


def split_heads(
    made: Float[Tensor, "*b n E"], shape: BlockShape, rotation: "Rotation"
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of rows that hold all three: E = (H + 2 G) dh."""
    parts = made.unflatten(-1, (-1, shape.head_width)).transpose(-2, -3)
    turned = shape.heads + shape.kv_heads
    q, k = rotate(parts[..., :turned, :, :], rotation).split([shape.heads, shape.kv_heads], dim=-3)
    return q, k, parts[..., turned:, :, :]


def shared_heads(x: Float[Tensor, "*b G s dh"], heads: int) -> Float[Tensor, "*b H s dh"]:
    """Keys or values, once for every query head that shares them."""
    groups = heads // x.shape[-3]
    return x if groups == 1 else x.repeat_interleave(groups, -3)


def rotation(positions: Int64[Tensor, "*b n"], shape: BlockShape, dtype: torch.dtype) -> Rotation:
    """Of rows at different positions: [*b, 1, n, dh] each."""
    size = 1 << (int(positions.max()) if positions.numel() else 0).bit_length()
    cos, sin = _table(max(size, _TABLE), shape.head_width, shape.theta, dtype, positions.device)
    return cos[positions][..., None, :, :], sin[positions][..., None, :, :]


def rotation_at(
    place: int, shape: BlockShape, dtype: torch.dtype, device: torch.device
) -> Rotation:
    """Of rows that all stand at one position: [dh] each, and nothing to look up."""
    size = max(1 << place.bit_length(), _TABLE)
    cos, sin = _table(size, shape.head_width, shape.theta, dtype, device)
    return cos[place], sin[place]


_TABLE = 1 << 13  # positions that the first table holds; longer contexts get a larger one


@lru_cache(maxsize=8)
def _table(
    size: int, width: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, "size width"], Float[Tensor, "size width"]]:
    """A constant of the method, computed once: its dozen operations would double a draft step."""
    rate = theta ** (-torch.arange(0, width, 2, device=device).double() / width)
    angle = torch.arange(size, device=device).double()[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Queries or keys with their positions put in."""
    cos, sin = rotation
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


@dataclass
class DraftCache:
    """Keys and values of all blocks for one request.

    Entries below `stable` come from true target features. What a draft appends behind them is
    thrown away by `rewind`. Buffers are [2, G, capacity, dh]: keys, then values.
    """

    stable: int = 0
    length: int = 0
    buffers: list[Tensor] = field(default_factory=list)

    def append(self, block: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add entries of one block behind `length`; everything up to them, as views."""
        end = self.length + keys.shape[-2]
        if block == len(self.buffers):
            self.buffers.append(keys.new_empty(2, *keys.shape[:-2], end + _ROOM, keys.shape[-1]))
        buffer = self.buffers[block]
        if buffer.shape[-2] < end:
            grown = buffer.new_empty(
                *buffer.shape[:-2], end + max(_ROOM, end // 2), buffer.shape[-1]
            )
            grown[..., : self.length, :] = buffer[..., : self.length, :]
            self.buffers[block] = buffer = grown
        buffer[0, :, self.length : end] = keys
        buffer[1, :, self.length : end] = values
        return buffer[0, :, :end], buffer[1, :, :end]

    def advance(self, count: int, *, stable: bool = False) -> None:
        """Count entries that every block has appended."""
        self.length += count
        if stable:
            self.stable = self.length

    def rewind(self) -> None:
        """Forget the draft."""
        self.length = self.stable


def attend(
    q: Float[Tensor, "H n dh"],
    keys: Float[Tensor, "G s dh"],
    values: Float[Tensor, "G s dh"],
    allowed: Bool[Tensor, "n m"] | None,
) -> Float[Tensor, "H n dh"]:
    """Attention of n new rows: all older entries, and of the last m those that are allowed."""
    mask = None
    if allowed is not None:
        mask = allowed.new_ones(q.shape[-2], keys.shape[-2])
        mask[:, -allowed.shape[1] :] = allowed
    keys, values = shared_heads(keys, len(q)), shared_heads(values, len(q))
    # In four dimensions, the only ones for which torch has a fused kernel.
    return F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)[0]
