"""Block-wise early commit: LATCH's local rule, for the gates that have it. [LATCH]

Cheaper than verifying an answer: no parsing, one comparison of ids. The abstract names the rule and
no test; confidence and rest are ours. A block goes as a whole or not at all, which is what
distinguishes it from threshold decoding.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion.entries import check_count, check_share
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.view import View


@dataclass(frozen=True, kw_only=True)
class BWECConfig(Gate.Config):
    """When a block is committed at once."""

    tau_b: float = 0.995  # least mean confidence of its masks
    tau_lo: float = 0.995  # least confidence of each; at 0.9 small models lost looked-up digits
    w_b: int = 2  # fresh observations in a row that repeated the argmax of each
    s_min: int = 1  # forwards spent in the block at least, this one included

    def __post_init__(self) -> None:
        check_share("tau_b", self.tau_b)
        check_share("tau_lo", self.tau_lo)
        check_count("w_b", self.w_b)
        check_count("s_min", self.s_min)


@dataclass
class Repeats:
    """How often each position has repeated its argmax."""

    stops: Int64[np.ndarray, " e"]  # ids that end a text
    says: Int64[np.ndarray, " G"] | None = None
    count: Int64[np.ndarray, " G"] = field(default_factory=lambda: np.zeros(0, np.int64))

    @classmethod
    def of(cls, stops: frozenset[int]) -> "Repeats":
        """Of a new row."""
        return cls(np.array(sorted(stops), dtype=np.int64))

    def observe(self, view: View) -> None:
        """Count on where the forward was fresh."""
        if self.says is None:
            self.count = np.zeros(view.canvas, np.int64)
        else:
            repeated = np.where(self.says == view.says, self.count + 1, 0)
            self.count = np.where(view.fresh, repeated, self.count)
        self.says = view.says


def may_commit(config: BWECConfig, repeats: Repeats, view: View) -> bool:
    """Whether the current block goes as a whole. The last one never does."""
    if view.is_last or view.block_step < config.s_min:
        return False
    open = view.open
    confidence = view.confidence[open]
    if confidence.min() < config.tau_lo or confidence.mean() < config.tau_b:
        return False
    if not view.fresh[open].all() or repeats.count[open].min() < config.w_b:
        return False
    return _may_end(repeats.stops, view)


def _may_end(stops: Int64[np.ndarray, " e"], view: View) -> bool:
    """The guard of blocks that say nothing but stop tokens: they would end the text for good.

    They may do so if the answer, if there is one, stands before them, and nothing is said behind.
    """
    if not np.isin(view.says[view.block], stops).all():
        return True
    if not np.isin(view.says[view.block.stop :], stops).all():
        return False
    found = view.candidate
    return found is None or found.span[0] < view.block.start
