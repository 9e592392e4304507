"""SchED: stop when the mean gap over all masks reaches a threshold that falls with progress."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion.entries import check
from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View


@dataclass
class Last:
    """The provisional text of the last step."""

    says: Int64[np.ndarray, " G"] | None = None


class Sched(Gate[Last]):
    """Mean gap of the logits over the masks of the whole canvas. [SchED, Sec. 3]

    The released code also demands, by its defaults patience_steps=0 and max_change_ratio=0 and the
    test counter > patience, that no masked argmax changed since the last step; the paper's rule is
    that without it: unchanged=false.
    """

    name = "sched"
    want = Want(gap=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(Gate.Config):
        """The released settings; thresholds in logits."""

        shape: Literal["linear", "cosine", "exp"] = "cosine"
        high: float = 7.5  # at the first step
        low: float = 2.5  # at the last; "exp" only comes near it
        k: float = 4.0  # of "exp": low + (high - low) exp(-k t)
        unchanged: bool = True

        def __post_init__(self) -> None:
            check(self.low <= self.high, f"low must be {self.high} (high) or less", self.low)
            check(self.k > 0, "k must be positive", self.k)

    def start(self, setting: Setting) -> Last:
        """Nothing seen."""
        return Last()

    def observe(self, state: Last, view: View) -> Exit | None:
        """Whether the mean gap reaches the threshold of this step."""
        assert view.gap is not None
        last, state.says = state.says, view.says
        is_calm = last is not None and bool((last == view.says)[view.masked].all())
        if self.config.unchanged and not is_calm:
            return None
        gap = float(view.gap[view.masked].mean())
        least = self.threshold((view.step - 1) / max(view.total - 1, 1))
        if gap < least:
            return None
        return Exit(reason=f"mean gap {gap:.2f} >= {least:.2f} over all masks")

    def threshold(self, t: float) -> float:
        """At progress t, from 0 at the first planned step to 1 at the last."""
        config = self.config
        t = min(t, 1.0)
        if config.shape == "linear":
            part = 1 - t
        elif config.shape == "cosine":
            part = (1 + math.cos(math.pi * t)) / 2
        else:
            part = math.exp(-config.k * t)
        value: float = config.low + (config.high - config.low) * part
        return value

    def unmet(self, state: Last) -> str | None:
        """The gap stayed too small, or the text moved."""
        return "the mean gap never reached its threshold with the masks' argmax at rest"
