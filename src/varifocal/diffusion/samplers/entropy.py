"""Dream's order by certainty of the whole law."""

import numpy as np
from jaxtyping import Float

from varifocal.diffusion.samplers._ranked import Dream
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View


class Entropy(Dream):
    """By negative entropy. [Dream, alg="entropy"]"""

    name = "entropy"
    want = Want(entropy=True)

    def scores(self, view: View) -> Float[np.ndarray, " G"]:
        """Sums of p log p."""
        assert view.entropy is not None
        return -view.entropy
