"""LLaDA's other order: at random."""

import numpy as np
from jaxtyping import Float

from varifocal.diffusion import noise
from varifocal.diffusion.samplers._ranked import Llada
from varifocal.diffusion.view import View


class Random(Llada):
    """By noise that belongs to the row's seed, step and position. [LLaDA, remasking="random"]"""

    name = "random"

    def scores(self, view: View) -> Float[np.ndarray, " G"]:
        """Noise."""
        return noise.uniform(view.seed, view.step, view.canvas)
