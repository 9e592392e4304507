"""LATCH: stop when the answer is verified, and commit easy blocks early on the way there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.gates._bwec import BWECConfig, Repeats, may_commit
from varifocal.diffusion.gates._cvc import CVCConfig, Streak, ended, told, unmet, verify
from varifocal.diffusion.view import View


@dataclass(frozen=True, kw_only=True)
class LatchConfig(BWECConfig, CVCConfig):
    """The settings of both rules."""

    def __post_init__(self) -> None:
        BWECConfig.__post_init__(self)
        CVCConfig.__post_init__(self)


class Latch(Gate[tuple[Streak, Repeats]]):
    """CVC says when to stop, BWEC where to go faster. [LATCH]

    The last block, and the stop, are CVC's alone. What BWEC committed wrongly cannot be mended.
    """

    name = "latch"
    needs_format = True
    changes_path = "it commits whole blocks early, so later steps see another canvas"
    Config = LatchConfig

    def start(self, setting: Setting) -> tuple[Streak, Repeats]:
        """No candidate, nothing repeated."""
        return Streak(stops=setting.stops), Repeats.of(setting.stops)

    def observe(self, state: tuple[Streak, Repeats], view: View) -> Exit | None:
        """Whether the candidate is verified."""
        streak, repeats = state
        repeats.observe(view)
        return verify(self.config, streak, view)

    def early(self, state: tuple[Streak, Repeats], view: View) -> bool:
        """Whether the block goes as a whole."""
        return may_commit(self.config, state[1], view)

    def settle(
        self,
        state: tuple[Streak, Repeats],
        tokens: Int64[np.ndarray, " G"],
        masked: Bool[np.ndarray, " G"],
    ) -> Exit | None:
        """Whether the text has ended with its candidate."""
        return ended(self.config, state[0], tokens, masked)

    def told(self, state: tuple[Streak, Repeats]) -> Mapping[str, Any]:
        """The candidate, its streak and its confidence."""
        return told(state[0])

    def unmet(self, state: tuple[Streak, Repeats]) -> str | None:
        """What was missing to stop."""
        return unmet(self.config, state[0])
