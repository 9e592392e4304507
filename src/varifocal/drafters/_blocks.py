"""A drafter's decoder block, and the rewindable cache of its keys and values."""

from dataclasses import dataclass, field
from functools import lru_cache

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn import functional as F

_ROOM = 256  # entries that a buffer grows by at least
Rotation = tuple[Tensor, Tensor]  # cosine and signed sine, broadcast over heads


class Block(nn.Module):
    """Pre-norm attention with rotary positions, then SwiGLU; what attends to what is the caller's.

    Sizes: D hidden, H heads of width D / H, inner the feed-forward width.
    """

    def __init__(self, hidden: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = norm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)
        self.inner_norm = norm(hidden)
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def project(
        self, x: Float[Tensor, "*b n D"], rotation: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each [*b, H, n, D / H]; positions are already in q and k."""
        return split_heads(self.qkv(self.attention_norm(x)), self.heads, rotation)

    def finish(
        self, x: Float[Tensor, "*b n D"], attended: Float[Tensor, "*b H n dh"]
    ) -> Float[Tensor, "*b n D"]:
        """The block's output from what its attention read."""
        x = x + self.out(attended.transpose(-2, -3).reshape(x.shape))
        gate, up = self.gate_up(self.inner_norm(x)).chunk(2, -1)
        grown: Tensor = x + self.down(F.silu(gate) * up)
        return grown


def split_heads(
    made: Float[Tensor, "*b n E"], heads: int, rotation: Rotation
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, each [*b, H, n, D / H], of rows that hold all three: E = 3 D."""
    parts = made.view(*made.shape[:-1], 3 * heads, -1).transpose(-2, -3)
    q, k = _rotate(parts[..., : 2 * heads, :, :], rotation).split(heads, dim=-3)
    return q, k, parts[..., 2 * heads :, :, :]


def norm(hidden: int, *, bias: bool = False) -> nn.LayerNorm:
    """The drafter's norm. LayerNorm is one kernel in torch, RMSNorm is eight on a CPU."""
    return nn.LayerNorm(hidden, eps=1e-6, bias=bias)


def rotation(positions: Int64[Tensor, "*b n"], width: int, dtype: torch.dtype) -> Rotation:
    """Of rows at different positions: [*b, 1, n, width] each."""
    size = 1 << (int(positions.max()) if positions.numel() else 0).bit_length()
    cos, sin = _table(max(size, _TABLE), width, dtype, positions.device)
    return cos[positions][..., None, :, :], sin[positions][..., None, :, :]


def rotation_at(place: int, width: int, dtype: torch.dtype, device: torch.device) -> Rotation:
    """Of rows that all stand at one position: [width] each, and nothing to look up."""
    cos, sin = _table(max(1 << place.bit_length(), _TABLE), width, dtype, device)
    return cos[place], sin[place]


_TABLE = 1 << 13  # positions that the first table holds; longer contexts get a larger one


@lru_cache(maxsize=8)
def _table(
    size: int, width: int, dtype: torch.dtype, device: torch.device
) -> tuple[Float[Tensor, "size width"], Float[Tensor, "size width"]]:
    """A constant of the method, computed once: its dozen operations would double a draft step."""
    rate = 10000.0 ** (-torch.arange(0, width, 2, device=device).double() / width)
    angle = torch.arange(size, device=device).double()[:, None] * rate
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], -1).to(dtype), torch.cat([-sin, sin], -1).to(dtype)


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


@dataclass
class DraftCache:
    """Keys and values of all blocks for one request.

    Entries below `stable` come from true target features. What a draft appends behind them is
    thrown away by `rewind`. Buffers are [2, H, capacity, D / H]: keys, then values.
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
    keys: Float[Tensor, "H s dh"],
    values: Float[Tensor, "H s dh"],
    allowed: Bool[Tensor, "n m"] | None,
) -> Float[Tensor, "H n dh"]:
    """Attention of n new rows: all older entries, and of the last m those that are allowed."""
    mask = None
    if allowed is not None:
        mask = allowed.new_ones(q.shape[-2], keys.shape[-2])
        mask[:, -allowed.shape[1] :] = allowed
    # In four dimensions, the only ones for which torch has a fused kernel.
    return F.scaled_dot_product_attention(q[None], keys[None], values[None], attn_mask=mask)[0]
