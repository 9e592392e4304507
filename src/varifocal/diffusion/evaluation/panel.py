"""Many gates that watch one recorded run: what each would have done, for the price of one pass.

A gate that only stops sees the full run's steps up to its exit, whichever other gates look on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int64

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View


@dataclass(frozen=True)
class Seat:
    """Where a gate stopped, and the canvas as its exit would have filled it."""

    step: int
    tokens: Int64[np.ndarray, " G"]


@dataclass
class Sitting:
    """What the members remember of a row; those that have stopped are not asked again."""

    memories: list[Any]
    open: list[int]
    seats: dict[int, Seat] = field(default_factory=dict)  # by number of the member


class Panel(Gate[Sitting]):
    """Asks its members and never stops.

    Members must do nothing but stop in `observe`, and fill by the argmax: `replay` of one of them
    gives the same exits.
    """

    name = "panel"
    want = Want(gap=True, entropy=True)
    needs_format = True

    def __init__(self, members: Sequence[Gate[Any]]) -> None:
        super().__init__()
        self.members = list(members)
        for member in self.members:
            if member.changes_path is not None or member.needs_future:
                raise ValueError(f"{member.text} does more than to stop")

    def start(self, setting: Setting) -> Sitting:
        """All of them are open."""
        memories = [member.start(setting) for member in self.members]
        return Sitting(memories, list(range(len(memories))))

    def observe(self, state: Sitting, view: View) -> Exit | None:
        """Let every open member look."""
        still = []
        for number in state.open:
            exit = self.members[number].observe(state.memories[number], view)
            if exit is None:
                still.append(number)
                continue
            if exit.fill != "argmax":
                raise ValueError(f"a panel cannot fill by {exit.fill!r}")
            state.seats[number] = Seat(view.step, view.says)
        state.open = still
        return None

    def told(self, state: Sitting) -> Mapping[str, Any]:
        """The seats so far."""
        return {"seats": state.seats}
