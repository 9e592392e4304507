"""The stop of DiffusionGemma in transformers: the whole canvas at rest, and sure."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion.entries import check, check_count
from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View


@dataclass
class Rest:
    """How long the text has been as it is."""

    says: Int64[np.ndarray, " G"] | None = None
    steps: int = 0  # earlier ones in a row with the same text


class StableAndConfident(Gate[Rest]):
    """The text equals that of each of the last k steps, and mean entropy is below a threshold.

    [transformers, StableAndConfidentStoppingCriteria] Here a committed position has no entropy: it
    is decided, and a masked model's law about a visible token means nothing.
    """

    name = "stable_and_confident"
    want = Want(entropy=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(Gate.Config):
        """transformers' settings for DiffusionGemma."""

        stability: int = 1  # k; 0 asks for confidence alone
        entropy: float = 0.005  # nats, the mean over the whole canvas

        def __post_init__(self) -> None:
            check_count("stability", self.stability, 0)
            check(self.entropy > 0, "entropy must be positive", self.entropy)

    def start(self, setting: Setting) -> Rest:
        """Nothing seen."""
        return Rest()

    def observe(self, state: Rest, view: View) -> Exit | None:
        """Whether the canvas has rested and is sure."""
        assert view.entropy is not None
        is_same = state.says is not None and np.array_equal(state.says, view.says)
        state.steps = state.steps + 1 if is_same else 0
        state.says = view.says
        if state.steps < self.config.stability:
            return None
        entropy = float(view.entropy[view.masked].sum()) / view.canvas
        if entropy >= self.config.entropy:
            return None
        return Exit(reason=f"the canvas rested, mean entropy {entropy:.4f}")

    def unmet(self, state: Rest) -> str | None:
        """It moved or was unsure."""
        return "the canvas was never at rest and sure as a whole"
