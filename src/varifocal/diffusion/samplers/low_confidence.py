"""LLaDA's order: the most confident positions are committed, the others stay masked."""

import numpy as np
from jaxtyping import Float

from varifocal.diffusion.samplers._ranked import Llada
from varifocal.diffusion.view import View


class LowConfidence(Llada):
    """By the probability of the token. [LLaDA, generate.py, remasking="low_confidence"]

    A committed token is never masked again: "remasking" there means not committed yet.
    Classifier-free guidance is left out.
    """

    name = "low_confidence"

    def scores(self, view: View) -> Float[np.ndarray, " G"]:
        """Probabilities."""
        return view.pick_confidence
