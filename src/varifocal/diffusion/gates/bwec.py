"""LATCH's local rule alone: blocks are committed early, and the canvas is filled to its end."""

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.gates._bwec import BWECConfig, Repeats, may_commit
from varifocal.diffusion.view import View


class BWEC(Gate[Repeats]):
    """Block-wise early commit. [LATCH]"""

    name = "bwec"
    changes_path = "it commits whole blocks early, so later steps see another canvas"
    Config = BWECConfig

    def start(self, setting: Setting) -> Repeats:
        """Nothing repeated yet."""
        return Repeats.of(setting.stops)

    def observe(self, state: Repeats, view: View) -> Exit | None:
        """Never stops."""
        state.observe(view)
        return None

    def early(self, state: Repeats, view: View) -> bool:
        """Whether the block goes as a whole."""
        return may_commit(self.config, state, view)
