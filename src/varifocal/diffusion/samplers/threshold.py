"""Fast-dLLM's parallel decoding: all that is confident enough at once."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion.entries import check_share
from varifocal.diffusion.sampler import Memoryless
from varifocal.diffusion.view import View


class Threshold(Memoryless):
    """Every position whose token is at least so probable, and the most probable one anyway.

    [Fast-dLLM, Sec. 3.3] Needs no plan of steps: it takes as many as it takes.
    """

    name = "threshold"
    plans = False

    @dataclass(frozen=True, kw_only=True)
    class Config(Memoryless.Config):
        """Fast-dLLM's setting."""

        tau: float = 0.9  # least probability

        def __post_init__(self) -> None:
            check_share("tau", self.tau)

    def choose(self, state: None, view: View) -> Int64[np.ndarray, " n"]:
        """Those at tau or above; the leftmost of the best if there are none."""
        open = view.open
        likely = view.pick_confidence[open]
        chosen = likely >= self.config.tau
        chosen[likely.argmax()] = True
        sure: Int64[np.ndarray, " n"] = open[chosen]
        return sure
