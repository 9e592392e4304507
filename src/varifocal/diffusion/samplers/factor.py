"""Fast-dLLM's other rule: the more at once, the surer each must be."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion.entries import check
from varifocal.diffusion.sampler import Memoryless
from varifocal.diffusion.samplers._ranked import ranked
from varifocal.diffusion.view import View


class Factor(Memoryless):
    """The largest n with (n + 1) (1 - c_n) < f, c_n the n-th highest probability; one at least.

    [Fast-dLLM, Sec. 3.3] Needs no plan of steps.
    """

    name = "factor"
    plans = False

    @dataclass(frozen=True, kw_only=True)
    class Config(Memoryless.Config):
        """Fast-dLLM's setting."""

        f: float = 1.0  # larger commits more

        def __post_init__(self) -> None:
            check(self.f > 0, "f must be positive", self.f)

    def choose(self, state: None, view: View) -> Int64[np.ndarray, " n"]:
        """The n most probable."""
        order = ranked(view.pick_confidence, view.open)
        doubt = 1 - view.pick_confidence[order].astype(np.float64)  # rises along the order
        fits = np.arange(2, len(order) + 2) * doubt < self.config.f
        sure: Int64[np.ndarray, " n"] = order[: max(int(fits.sum()), 1)]
        return sure
