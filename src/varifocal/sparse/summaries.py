"""What selection knows of a block without reading its keys: extremes and means.

Letters: n blocks, H KV heads, S tokens of a block, D head width, P parts of a block.

A summary is recomputed from the block's tokens whenever they change, so it depends on them alone:
not on how many came at once, nor on tokens that were rejected since. (Extremes could not be undone
anyway, and a running sum would remember in its last bits.)
"""

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.sparse.partials import fold


def extremes(
    keys: Float[Tensor, "n H S D"], filled: Int64[Tensor, " n"]
) -> tuple[Float[Tensor, "n H D"], Float[Tensor, "n H D"]]:
    """Least and greatest of each coordinate over the first `filled` keys (at least one)."""
    is_empty = _is_empty(keys, filled)
    least = keys.masked_fill(is_empty, torch.inf).amin(2)
    greatest = keys.masked_fill(is_empty, -torch.inf).amax(2)
    return least, greatest


def part_means(
    keys: Float[Tensor, "n H S D"], filled: Int64[Tensor, " n"], stride: int
) -> Float[Tensor, "n H P D"]:
    """Means of `stride` keys each, in float32 or float64; parts that are not full read as zero."""
    n, heads, size, width = keys.shape
    work = torch.float64 if keys.dtype == torch.float64 else torch.float32
    parts = keys.to(work).view(n, heads, size // stride, stride, width)
    ends = torch.arange(1, size // stride + 1, device=keys.device) * stride
    is_full = (ends <= filled[:, None])[:, None, :, None]
    return torch.where(is_full, fold(parts, 3) / stride, 0)


def _is_empty(keys: Tensor, filled: Tensor) -> Tensor:
    offsets = torch.arange(keys.shape[2], device=keys.device)
    return (offsets >= filled[:, None])[:, None, :, None]
