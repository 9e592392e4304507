"""Dream's first sampler: every position may be committed in every step, by chance."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion import noise
from varifocal.diffusion.entries import check
from varifocal.diffusion.sampler import Memoryless
from varifocal.diffusion.schedule import dream_rates
from varifocal.diffusion.view import View


class Origin(Memoryless):
    """Each masked position with probability 1 - s/t, all in the last step. [Dream, alg="origin"]

    Where chance has a step commit nothing, the position nearest to it is committed.
    """

    name = "origin"

    @dataclass(frozen=True, kw_only=True)
    class Config(Memoryless.Config):
        """Dream's schedule."""

        eps: float = 1e-3  # where t ends

        def __post_init__(self) -> None:
            check(0 < self.eps < 1, "eps must be between 0 and 1", self.eps)

    def choose(self, state: None, view: View) -> Int64[np.ndarray, " n"]:
        """Those whose noise is below the rate."""
        rates = dream_rates(view.block_steps, self.config.eps)
        rate = rates[min(view.block_step, view.block_steps) - 1]
        open = view.open
        drawn = noise.uniform(view.seed, view.step, view.canvas)[open]
        chosen: Int64[np.ndarray, " n"] = open[(drawn < rate) | (drawn == drawn.min())]
        return chosen
