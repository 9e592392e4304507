"""Full decoding that ends early where the rest is known: nobody watches, and the text has ended.

Blocks are filled from left to right and what is committed stays. So once a stop token stands before
the first mask, no later step changes the text; and a gate that has stopped does not see them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.gates.eos_stop import EosStop
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View


@dataclass
class Present:
    """Who has not stopped yet, with what they remember; some only wait for their block."""

    members: dict[str, Any]
    stops: frozenset[int]
    patient: set[str] = field(default_factory=set)


class Audience(Gate[Present]):
    """A full run for members to be replayed on: all that they and the answer need of it.

    Members do nothing but stop. One that finishes a block first is waited for to the end.
    """

    name = "full"

    def __init__(self, members: Mapping[str, Gate[Any]]) -> None:
        super().__init__()
        # The oracle stops no later than the text ends: its answer is final by then.
        self._members = {
            label: gate
            for label, gate in members.items()
            if gate.name != self.name and not gate.needs_future
        }
        self._end = EosStop()
        self.want = _union([gate.want for gate in self._members.values()])  # type: ignore[misc]
        self.needs_format = any(  # type: ignore[misc]
            gate.needs_format for gate in self._members.values()
        )

    def start(self, setting: Setting) -> Present:
        """Everyone is there."""
        members = {label: gate.start(setting) for label, gate in self._members.items()}
        return Present(members, self._end.start(setting))

    def observe(self, state: Present, view: View) -> None:
        """Let those look that have not stopped."""
        for label in state.members.keys() - state.patient:
            exit = self._members[label].observe(state.members[label], view)
            if exit is not None and exit.fill == "finish_block":
                state.patient.add(label)
            elif exit is not None:
                del state.members[label]

    def settle(
        self,
        state: Present,
        tokens: Int64[np.ndarray, " G"],
        masked: Bool[np.ndarray, " G"],
    ) -> Exit | None:
        """Whether the text has ended and everyone has left."""
        for label in state.members.keys() - state.patient:
            if self._members[label].settle(state.members[label], tokens, masked) is not None:
                del state.members[label]
        return None if state.members else self._end.settle(state.stops, tokens, masked)


def _union(wants: Sequence[Want]) -> Want:
    made = Want()
    for want in wants:
        made = made | want
    return made
