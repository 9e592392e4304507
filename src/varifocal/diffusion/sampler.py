"""The contract of a sampler: which positions a step commits."""

from abc import abstractmethod
from typing import ClassVar, Generic, TypeVar

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion.entries import Entry
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View

S = TypeVar("S")


class Sampler(Entry, Generic[S]):
    """Settings live here; what it remembers of a row, if anything, in its state S.

    Where a published rule takes a drawn token's probability from the tempered law (Dream) or the
    noisy one (KLASS), the model's own law is taken here: at temperature 0 it is the same.
    """

    want: ClassVar[Want] = Want()
    plans: ClassVar[bool] = True  # whether it keeps to the planned steps; else it needs no plan
    # Whether the plan alone says how many positions each step commits, and so how many forwards a
    # full run takes.
    has_fixed_pace: ClassVar[bool] = False

    @abstractmethod
    def start(self, canvas: int) -> S:
        """Begin a row with a canvas of so many positions."""

    @abstractmethod
    def choose(self, state: S, view: View) -> Int64[np.ndarray, " n"]:
        """Some of `view.open`, one at least. May mutate the state: it is asked once a step."""


class Memoryless(Sampler[None]):
    """A sampler that decides by what it sees now."""

    def start(self, canvas: int) -> None:
        """Nothing to remember."""
