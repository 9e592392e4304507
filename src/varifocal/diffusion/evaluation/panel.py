"""Many gates that watch one recorded run: what each would have done, for the price of one pass.

A gate that only stops sees the full run's steps up to its exit, whichever other gates look on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View


@dataclass(frozen=True)
class Seat:
    """Where a gate stopped, and the canvas as its exit would have filled it."""

    step: int
    tokens: Int64[np.ndarray, " G"]  # behind the end of the text there may be masks


@dataclass
class Sitting:
    """What the members remember of a row; those that have stopped are not asked again."""

    memories: list[Any]
    open: list[int]
    step: int = 0  # of the last view
    seats: dict[int, Seat] = field(default_factory=dict)  # by number of the member


class Panel(Gate[Sitting]):
    """Asks its members and never stops.

    Members must do nothing but stop, and fill by the argmax, or with stop tokens once the text has
    ended: `replay` of one of them gives the same exits.
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
        state.step, still = view.step, list[int]()
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

    def settle(
        self,
        state: Sitting,
        tokens: Int64[np.ndarray, " G"],
        masked: Bool[np.ndarray, " G"],
    ) -> Exit | None:
        """Ask every open member whether the text has ended; masks stay in its seat behind it."""
        for number in list(state.open):
            if self.members[number].settle(state.memories[number], tokens, masked) is not None:
                state.seats[number] = Seat(state.step, tokens)
                state.open.remove(number)
        return None

    def told(self, state: Sitting) -> Mapping[str, Any]:
        """The seats so far."""
        return {"seats": state.seats}
