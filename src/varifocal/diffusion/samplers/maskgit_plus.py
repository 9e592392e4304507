"""Dream's order by probability."""

import numpy as np
from jaxtyping import Float

from varifocal.diffusion.samplers._ranked import Dream
from varifocal.diffusion.view import View


class MaskGitPlus(Dream):
    """By the probability of the token. [Dream, alg="maskgit_plus"]"""

    name = "maskgit_plus"

    def scores(self, view: View) -> Float[np.ndarray, " G"]:
        """Probabilities."""
        return view.pick_confidence
