"""No gate: every position is decided by steps. What all others are compared with."""

from varifocal.diffusion.gate import Gate


class Full(Gate[None]):
    """Never stops."""

    name = "full"
    reads_canvas = False
