"""How a canvas is divided into blocks, steps over them, and tokens over steps. [LLaDA; Dream]

Letters: G canvas positions, K blocks, T planned steps.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from varifocal.errors import BadOption

Caching = Literal["none", "prefix", "dual"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The shape of a decoding, known before it begins.

    The published loops demand lengths that divide; here the last block is the shorter one, and a
    block's share of the steps is that of its length, rounded so that the shares add up to T.
    """

    canvas: int = 128  # G
    block: int = 32  # filled from left to right; one as long as the canvas, or longer, is no block
    steps: int | None = None  # T; None plans a step for every position
    # What a step computes again: everything; what begins with its block; its block alone. The two
    # caches are filled anew whenever a block begins. [Fast-dLLM, Sec. 3.2]
    caching: Caching = "none"
    pins: tuple[tuple[int, int], ...] = ()  # (canvas position, token): there from the beginning

    def __post_init__(self) -> None:
        for name in ("canvas", "block"):
            _check_count(name, getattr(self, name))
        if self.caching not in get_args(Caching):
            raise BadOption(f"caching must be {', '.join(get_args(Caching))}, got {self.caching!r}")
        self._check_pins()
        if self.steps is None:
            return
        _check_count("steps", self.steps)
        num_blocks = len(self.blocks)
        if self.steps < num_blocks:
            raise BadOption(
                f"{self.steps} steps cannot fill {num_blocks} blocks of {self.block}: each needs "
                f"one at least; give steps={num_blocks} or more, or longer blocks"
            )
        if self.steps > self.canvas:
            raise BadOption(
                f"{self.steps} steps on a canvas of {self.canvas}: a step that decides nothing "
                f"only repeats its forward; give steps={self.canvas} at most"
            )

    def _check_pins(self) -> None:
        positions = [position for position, _ in self.pins]
        if len(set(positions)) < len(positions):
            raise BadOption(f"a canvas position is pinned twice: {sorted(positions)}")
        if any(not 0 <= position < self.canvas for position in positions):
            raise BadOption(
                f"pinned positions must lie on the canvas of {self.canvas}, got {sorted(positions)}"
            )
        if len(positions) == self.canvas:
            raise BadOption("every position of the canvas is pinned: nothing is left to decide")

    @property
    def blocks(self) -> tuple[slice, ...]:
        """Canvas positions of each block."""
        starts = range(0, self.canvas, self.block)
        return tuple(slice(start, min(start + self.block, self.canvas)) for start in starts)

    @property
    def total(self) -> int:
        """Planned steps: what the progress of a decoding is measured by."""
        return self.canvas if self.steps is None else self.steps

    @property
    def shares(self) -> tuple[int, ...]:
        """Planned steps of each block: one or more, T together."""
        ends = [0, *(self.total * block.stop // self.canvas for block in self.blocks)]
        return tuple(end - start for start, end in pairwise(ends))


def llada_counts(masks: int, steps: int) -> list[int]:
    """Tokens that LLaDA commits in each step of a block: even, the first steps take the rest."""
    base, rest = divmod(masks, steps)
    return [base + (step < rest) for step in range(steps)]


@cache
def dream_rates(steps: int, eps: float = 1e-3) -> NDArray[np.float32]:
    """The share of the masks left that Dream commits in each step: 1 - s/t, and all at the end.

    t goes from 1 to `eps` in even steps; in float32, as published, since counts are cut to whole
    numbers.
    """
    times = torch.linspace(1, eps, steps + 1, dtype=torch.float32)
    rates: NDArray[np.float32] = (1 - times[1:] / times[:-1]).numpy()
    rates[-1] = 1
    rates.flags.writeable = False  # shared by all callers
    return rates


def dream_count(masks: int, rate: np.float32) -> int:
    """Tokens that Dream commits of the masks left: none, if the share is less than a token."""
    return int(np.float32(masks) * rate)


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadOption(f"{name} must be a count from 1, got {value!r}")
