"""Dream's order by the lead of the best token over the second."""

import numpy as np
from jaxtyping import Float

from varifocal.diffusion.samplers._ranked import Dream
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View


class TopkMargin(Dream):
    """By p1 - p2. [Dream, alg="topk_margin"]"""

    name = "topk_margin"
    want = Want(margin=True)

    def scores(self, view: View) -> Float[np.ndarray, " G"]:
        """Margins."""
        assert view.margin is not None
        return view.margin
