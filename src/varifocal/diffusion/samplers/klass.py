"""KLASS: positions that are confident and whose whole law has stopped moving."""

from collections import deque
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int64

from varifocal.diffusion.entries import check, check_count, check_share
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.samplers._ranked import first, llada_count
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View

Past = deque[Float[np.ndarray, " G"]]  # the last divergences of each position


class Klass(Sampler[Past]):
    """Positions above a probability whose law moved little in each of the last steps.

    Where there are none, LLaDA's schedule and order. [KLASS, Alg. 1; unmask_strategy "all"] The
    last planned step of a block commits what is left of it: as published, the ready positions of
    earlier steps may be fewer than planned, and masks stay.
    """

    name = "klass"
    want = Want(divergence=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(Sampler.Config):
        """KLASS's settings."""

        tau: float = 0.9  # probability to be exceeded
        kl: float = 0.01  # nats from step to step, to stay below
        history: int = 2  # steps that must have stayed below

        def __post_init__(self) -> None:
            check_share("tau", self.tau)
            check(self.kl > 0, "kl must be positive", self.kl)
            check_count("history", self.history)

    def start(self, canvas: int) -> Past:
        """No past yet."""
        return deque(maxlen=self.config.history)

    def choose(self, state: Past, view: View) -> Int64[np.ndarray, " n"]:
        """The ready ones, or else the planned number of the most probable."""
        assert view.divergence is not None
        state.append(view.divergence)
        open = view.open
        if view.block_step >= view.block_steps:
            return open
        if view.block_step >= self.config.history and len(state) == self.config.history:
            calm = np.all([past[open] < self.config.kl for past in state], axis=0)
            ready: Int64[np.ndarray, " n"] = open[
                calm & (view.pick_confidence[open] > self.config.tau)
            ]
            if len(ready):
                return ready
        return first(llada_count(view), view.pick_confidence, open)
