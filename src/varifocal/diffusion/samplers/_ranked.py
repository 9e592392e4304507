"""What ranked samplers share: so many positions, the highest scores first."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from varifocal.diffusion import noise
from varifocal.diffusion.entries import check
from varifocal.diffusion.sampler import Memoryless
from varifocal.diffusion.schedule import dream_count, dream_rates, llada_counts
from varifocal.diffusion.view import View


def ranked(
    scores: Float[np.ndarray, " G"], open: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " n"]:
    """Positions by falling score; of equal ones the leftmost first, on every machine."""
    order: Int64[np.ndarray, " n"] = open[np.argsort(-scores[open], kind="stable")]
    return order


def first(
    count: int, scores: Float[np.ndarray, " G"], open: Int64[np.ndarray, " n"]
) -> Int64[np.ndarray, " k"]:
    """So many of them."""
    best: Int64[np.ndarray, " k"] = ranked(scores, open)[:count]
    return best


def llada_count(view: View) -> int:
    """Tokens of this step by LLaDA's schedule of the block; all that is left in its last step."""
    step, left = view.block_step - 1, len(view.open)
    if step >= view.block_steps - 1:
        return left
    return min(max(llada_counts(view.block_masks, view.block_steps)[step], 1), left)


class Llada(Memoryless):
    """The k positions of the highest scores, k by LLaDA's schedule."""

    has_fixed_pace = True

    @abstractmethod
    def scores(self, view: View) -> Float[np.ndarray, " G"]:
        """Higher is sooner."""

    def choose(self, state: None, view: View) -> Int64[np.ndarray, " n"]:
        """The first k, ties from the left."""
        return first(llada_count(view), self.scores(view), view.open)


@dataclass(frozen=True, kw_only=True)
class DreamConfig(Memoryless.Config):
    """Settings of Dream's samplers, by their published names."""

    eps: float = 1e-3  # where t ends
    alg_temp: float = 0.0  # above 0: positions are drawn by softmax(score / alg_temp)

    def __post_init__(self) -> None:
        check(0 < self.eps < 1, "eps must be between 0 and 1", self.eps)
        check(self.alg_temp >= 0, "alg_temp must be 0 (the best) or positive", self.alg_temp)


class Dream(Memoryless):
    """The k positions of the highest scores, k by Dream's t-schedule over the block.

    Dream has one block, of the whole canvas: give block=canvas for its own. Where its schedule
    has a step commit nothing, the best position is committed: the forward would only be repeated.
    """

    Config = DreamConfig
    has_fixed_pace = True

    @abstractmethod
    def scores(self, view: View) -> Float[np.ndarray, " G"]:
        """Higher is sooner."""

    def choose(self, state: None, view: View) -> Int64[np.ndarray, " n"]:
        """The first k, or k draws without putting back."""
        rates = dream_rates(view.block_steps, self.config.eps)
        step = min(view.block_step, view.block_steps) - 1
        count = max(dream_count(len(view.open), rates[step]), 1)
        scores = self.scores(view)
        if self.config.alg_temp > 0:
            shaken = noise.gumbel(view.seed, view.step, view.canvas)
            scores = scores / self.config.alg_temp + shaken
        return first(count, scores, view.open)
