"""What a gate and a sampler see of one row at one step: arrays as long as the canvas.

Letter: G canvas positions. All statistics are of the model's own law: never-ids are banned, no
temperature, no noise.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int64

from varifocal.diffusion.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class View:
    """A row after a step's forward and before its commits. Nobody changes its arrays."""

    step: int  # forwards of this row, this one included: from 1
    total: int  # planned
    block: slice  # of canvas positions: the current one
    block_step: int  # forwards of this row in this block, this one included: from 1
    block_steps: int  # planned
    block_masks: int  # masks with which the block began
    is_last: bool  # no block behind the current one has a mask
    seed: int  # of the row's noise

    masked: Bool[np.ndarray, " G"]
    open: Int64[np.ndarray, " n"]  # masks of the current block, ascending: may be committed; >= 1
    says: Int64[np.ndarray, " G"]  # the provisional text: committed tokens, elsewhere the argmax
    changed: bool  # whether `says` differs from the last view's; True at the first
    # At committed positions this and what follows means nothing, unless `Want.committed` is set.
    confidence: Float[np.ndarray, " G"]  # probability of the argmax
    # The same, but where a token is committed the probability that it had when it was: models are
    # trained on masked positions, and what they hold of a visible token means nothing.
    quality: Float[np.ndarray, " G"]
    fresh: Bool[np.ndarray, " G"]  # masks that this forward computed; others' numbers are older
    picks: Int64[np.ndarray, " G"]  # what a commit would write: a draw, or the argmax
    pick_confidence: Float[np.ndarray, " G"]  # its probability

    # Only what a gate's or a sampler's `want` names.
    gap: Float[np.ndarray, " G"] | None = None  # logit of the argmax above that of the second
    margin: Float[np.ndarray, " G"] | None = None  # the same of probabilities
    entropy: Float[np.ndarray, " G"] | None = None  # nats
    divergence: Float[np.ndarray, " G"] | None = None  # nats, KL(now || last fresh); first: inf

    read: Callable[[], Candidate | None]  # parses `says`, once

    @property
    def candidate(self) -> Candidate | None:
        """The answer in the provisional text. Parsed when it is first asked for."""
        return self.read()

    @property
    def canvas(self) -> int:
        """G."""
        return len(self.masked)
