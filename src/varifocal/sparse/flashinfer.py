"""FlashInfer's merge as an option: its states are (output, LSE in base 2), ours (m, l, acc).

Letters: Q queries, H KV heads, G query heads of one KV head, D head width, N places of a board, C
states merged into one.

`flashinfer.merge_states` takes [Q, C, H G, D] outputs, float16 or bfloat16 alone, and [Q, C, H G]
logarithms, to the base of 2, of the sums of exponentials; it merges them in one launch. It is no
default: each block's output is normalised and rounded to the model's dtype before it is merged, and
sums are taken in the library's order. So the result is near that of our merge and not equal to the
bit. With PRR on and off the same states go in, in the same order; that the same bits then come out
is the library's to keep, and not promised by it.
"""

import importlib
import math
from typing import Any

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from varifocal.errors import BadOption
from varifocal.sparse.blocks import Pages
from varifocal.sparse.padded import Board, Kept, Merged, Operations
from varifocal.sparse.partials import Partials
from varifocal.sparse.selection import Queries

LOG2_E = math.log2(math.e)
DTYPES = (torch.float16, torch.bfloat16)  # what its merge is compiled for
WIDTHS = (64, 128, 256, 512)


class FlashInferOperations(Operations):
    """Other operations, with FlashInfer's merge in place of theirs."""

    def __init__(self, others: Operations, library: Any = None) -> None:
        self._others = others
        self._library = library or _installed()

    def rank(
        self, pages: Pages, queries: Queries, kept: Kept, keys: Int64[Tensor, "Q H U"]
    ) -> None:
        """As the others do."""
        self._others.rank(pages, queries, kept, keys)

    def list_blocks(
        self,
        picked: Int64[Tensor, "Q H K"],
        visible: Int64[Tensor, " Q"],
        kept: Kept,
        blocks: Int32[Tensor, "Q H M"],
    ) -> None:
        """As the others do."""
        self._others.list_blocks(picked, visible, kept, blocks)

    def attend(self, pages: Pages, queries: Queries, board: Board, start: int, count: int) -> None:
        """As the others do."""
        self._others.attend(pages, queries, board, start, count)

    def find(
        self,
        blocks: Int32[Tensor, "Q H N"],
        chosen: Int32[Tensor, "Q H C"],
        found: Int32[Tensor, "Q H C"],
        missing: Int32[Tensor, "Q H C"],
    ) -> None:
        """As the others do."""
        self._others.find(blocks, chosen, found, missing)

    def merge(self, board: Board, found: Int32[Tensor, "Q H C"], merged: Merged) -> None:
        """Gather the chosen states, hand them over, take the result back."""
        count, heads, group, width = merged.output.shape
        dtype = merged.output.dtype
        if dtype not in DTYPES or width not in WIDTHS:
            raise BadOption(
                f"FlashInfer merges float16 and bfloat16 in heads of {WIDTHS}, got {dtype} in "
                f"heads of {width}: choose the triton or torch kernel"
            )
        values, logs = to_flashinfer(gathered(board, found))
        value, log = self._library.merge_states(
            values.to(dtype).transpose(1, 2).flatten(2, 3).contiguous(),
            logs.transpose(1, 2).flatten(2, 3).contiguous(),
        )
        state = from_flashinfer(
            value.float().view(count, heads, group, width), log.view(count, heads, group)
        )
        merged.state.peak.copy_(state.peak)
        merged.state.mass.copy_(state.mass)
        merged.state.total.copy_(state.total)
        merged.output.copy_(state.total)


def gathered(board: Board, found: Int32[Tensor, "Q H C"]) -> Partials:
    """The states [Q, H, C, G] at the places found; the identity of merging where there is none."""
    is_none = (found < 0)[..., None]
    at = found.clamp(min=0).long()[..., None]
    states = board.states
    each = at.expand(*at.shape[:3], states.peak.shape[-1])
    wide = each[..., None].expand(*each.shape, states.total.shape[-1])
    return Partials(
        states.peak.gather(2, each).masked_fill(is_none, -torch.inf),
        states.mass.gather(2, each).masked_fill(is_none, 0),
        states.total.gather(2, wide).masked_fill(is_none[..., None], 0),
    )


def to_flashinfer(states: Partials) -> tuple[Float[Tensor, "*n G D"], Float[Tensor, "*n G"]]:
    """Outputs, and log2 of the sums of exponentials: -inf where no key was seen."""
    return states.output(), states.mass.log2() + states.peak * LOG2_E


def from_flashinfer(outputs: Float[Tensor, "*n G D"], logs: Float[Tensor, "*n G"]) -> Partials:
    """A state of mass 1 with the same output and sum; the identity where FlashInfer saw no key.

    Merging nothing but empty states gives NaN there (flashinfer-ai/flashinfer#4051).
    """
    is_empty = ~(logs > -torch.inf)
    return Partials(
        (logs / LOG2_E).masked_fill(is_empty, -torch.inf),
        torch.where(is_empty, 0.0, torch.ones_like(logs)),
        outputs.masked_fill(is_empty[..., None], 0),
    )


def _installed() -> Any:
    try:
        return importlib.import_module("flashinfer")
    except ImportError as error:
        raise BadOption(
            "FlashInfer's merge needs flashinfer, which is not installed: pip install "
            "flashinfer-python, or choose the triton kernel, whose merge is bit-equal"
        ) from error
