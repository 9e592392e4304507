"""LATCH's global stop alone: the candidate answer is confident and has held."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.gates._cvc import CVCConfig, Streak, ended, told, unmet, verify
from varifocal.diffusion.view import View


class CVC(Gate[Streak]):
    """Confidence-verified commit. [LATCH]"""

    name = "cvc"
    needs_format = True
    Config = CVCConfig

    def start(self, setting: Setting) -> Streak:
        """No candidate yet."""
        return Streak(stops=setting.stops)

    def observe(self, state: Streak, view: View) -> Exit | None:
        """Whether the candidate is verified."""
        return verify(self.config, state, view)

    def settle(
        self,
        state: Streak,
        tokens: Int64[np.ndarray, " G"],
        masked: Bool[np.ndarray, " G"],
    ) -> Exit | None:
        """Whether the text has ended with its candidate."""
        return ended(self.config, state, tokens, masked)

    def told(self, state: Streak) -> Mapping[str, Any]:
        """The candidate, its streak and its confidence."""
        return told(state)

    def unmet(self, state: Streak) -> str | None:
        """What was missing."""
        return unmet(self.config, state)
