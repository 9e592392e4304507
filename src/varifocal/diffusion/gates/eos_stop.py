"""Stop when the text has ended: the trivial gate."""

import numpy as np
from jaxtyping import Bool, Int64

from varifocal.diffusion.gate import Exit, Gate, Setting


class EosStop(Gate[frozenset[int]]):
    """When a stop token and all before it are committed, the rest becomes stop tokens.

    [dInfer, early_stop; here after every commit, so that no forward follows] The text is that of
    the full run. In one block as long as the canvas, stop tokens are committed first, and it does
    not help.
    """

    name = "eos_stop"
    reads_canvas = False

    def start(self, setting: Setting) -> frozenset[int]:
        """The ids that end a text."""
        return setting.stops

    def settle(
        self,
        state: frozenset[int],
        tokens: Int64[np.ndarray, " G"],
        masked: Bool[np.ndarray, " G"],
    ) -> Exit | None:
        """Whether a stop token stands before the first mask."""
        decided = int(masked.argmax()) if masked.any() else len(masked)
        if state.isdisjoint(tokens[:decided].tolist()):
            return None
        return Exit(reason="the text has ended", fill="stop")

    def unmet(self, state: frozenset[int]) -> str | None:
        """The whole canvas was filled first."""
        return "no stop token was decided before the last step"
