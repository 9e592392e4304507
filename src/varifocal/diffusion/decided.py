"""What is decided of a row's canvas, what a step adds to it, and how it ends.

Letter: G canvas positions.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64
from numpy.typing import NDArray

from varifocal.diffusion.gate import Exit
from varifocal.diffusion.result import Finish
from varifocal.diffusion.schedule import Plan


@dataclass(frozen=True)
class Commits:
    """Tokens for canvas positions, with the probabilities that they have now."""

    positions: Int64[np.ndarray, " n"]
    tokens: Int64[np.ndarray, " n"]
    confidence: Float[np.ndarray, " n"]


@dataclass(frozen=True)
class Decided:
    """What is decided of a canvas. Replaced as a whole, so that it is never half changed."""

    tokens: Int64[np.ndarray, " G"]  # the mask where nothing is decided
    masked: Bool[np.ndarray, " G"]
    confidence: Float[np.ndarray, " G"]  # at the time of the commit; 0 at masks
    step: Int64[np.ndarray, " G"]  # of the commit; 0 at pins, -1 at masks

    @classmethod
    def of(cls, plan: Plan, mask: int) -> "Decided":
        """Nothing but the plan's pins."""
        blank = cls(
            np.full(plan.canvas, mask, np.int64),
            np.ones(plan.canvas, np.bool_),
            np.zeros(plan.canvas, np.float32),
            np.full(plan.canvas, -1, np.int64),
        )
        positions, tokens = (np.array([pin[i] for pin in plan.pins], np.int64) for i in (0, 1))
        return blank.having(Commits(positions, tokens, np.ones(len(positions), np.float32)), 0)

    def having(self, commits: Commits, step: int) -> "Decided":
        """After commits."""
        tokens, masked = self.tokens.copy(), self.masked.copy()
        confidence, steps = self.confidence.copy(), self.step.copy()
        tokens[commits.positions] = commits.tokens
        confidence[commits.positions] = commits.confidence
        steps[commits.positions] = step
        masked[commits.positions] = False
        return Decided(tokens, masked, confidence, steps)

    def filled(
        self, exit: Exit, says: Int64[np.ndarray, " G"], stops: frozenset[int]
    ) -> NDArray[np.int64]:
        """The tokens that an exit leaves: all of the canvas, or its beginning. No mask stays."""
        told: NDArray[np.int64] = np.where(self.masked, says, self.tokens)
        if exit.fill == "cut":
            assert exit.candidate is not None, "only a candidate can be cut behind"
            return told[: exit.candidate.span[-1] + 1]
        if exit.fill == "stop":
            ends = np.isin(self.tokens, sorted(stops)) & ~self.masked
            assert ends.any(), "only a committed stop token can be repeated"
            told = np.where(self.masked, self.tokens[ends.argmax()], self.tokens)
        return told


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a row ended, and with what."""

    finish: Finish
    tokens: Int64[np.ndarray, " n"]
    exit: Exit | None = None
    exit_step: int | None = None
    num_filled: int = 0


@dataclass(kw_only=True)
class Cost:
    """What a step of a row takes. It comes with the row's part of what was spent before."""

    forward: float = 0.0  # seconds, as all but the last
    gate: float = 0.0
    sample: float = 0.0
    other: float = 0.0
    window: tuple[int, int]  # canvas positions that the forward computed
    num_computed: int = 0  # all positions that it computed
