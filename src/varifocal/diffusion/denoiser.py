"""The contract of a frozen diffusion language model: what it holds likely at every position.

Letters: B rows, T = P + G positions, the prompt (padded on the left to P) and the canvas of G,
W positions of a window, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What ids mean to the model."""

    size: int  # V
    mask: int  # stands where nothing is decided yet
    pad: int
    stops: frozenset[int]  # the text ends before the first of them
    banned: frozenset[int] = frozenset()  # never said, beside the mask

    @property
    def never(self) -> list[int]:
        """Ids that no position may get."""
        return sorted({self.mask, *self.banned} - self.stops)


@dataclass
class Canvas:
    """Rows being denoised together: all that changes of them but what a gate remembers.

    `cache` is the model's own; it is made by the first forward that is asked for one.
    """

    tokens: Int64[Tensor, "B T"]  # padding, prompt, canvas
    is_real: Bool[Tensor, "B T"]  # False at padding
    length: int  # G
    cache: Any = None
    fresh: Bool[Tensor, "B T"] | None = field(default=None)  # computed by the last forward

    @property
    def start(self) -> int:
        """Where the canvas begins: P."""
        return self.tokens.shape[1] - self.length

    @cached_property
    def padding(self) -> list[int]:
        """Padded positions of each row; read from the device once, since they never change."""
        counts: list[int] = (~self.is_real).sum(1).tolist()
        return counts


class Denoiser(ABC):
    """A frozen model. It holds no state of a request: that is on the `Canvas`."""

    name: str
    vocabulary: Vocabulary
    tokenizer: PreTrainedTokenizerBase
    context_length: int  # P + G at most
    device: torch.device
    dtype: torch.dtype
    block: int | None = None  # the block length that the model was trained with, if any

    @abstractmethod
    def forward(
        self, canvas: Canvas, window: slice, *, caching: bool = False
    ) -> Float[Tensor, "B W V"]:
        """Logits about the tokens of `window` (of T), given all others.

        Row i is about token `window.start + i` in every model: a model whose logits are about the
        next position shifts them itself. With `caching`, what is outside of the window is read from
        `canvas.cache` as it was when it was computed last; the first forward must then be over
        everything. Writes `canvas.fresh`.
        """

    @abstractmethod
    def select(self, canvas: Canvas, rows: Sequence[int]) -> Canvas:
        """The canvas of some rows, cache included: the others have ended."""

    def lay(self, prompts: Sequence[Sequence[int]], length: int) -> Canvas:
        """Prompts side by side, padded on the left, each with `length` masks behind it."""
        width = max(map(len, prompts)) + length
        tokens = torch.full((len(prompts), width), self.vocabulary.pad)
        is_real = torch.zeros(len(prompts), width, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            begin = width - length - len(prompt)
            tokens[row, begin : width - length] = torch.tensor(list(prompt), dtype=torch.long)
            is_real[row, begin:] = True
        tokens[:, width - length :] = self.vocabulary.mask
        return Canvas(tokens.to(self.device), is_real.to(self.device), length)
