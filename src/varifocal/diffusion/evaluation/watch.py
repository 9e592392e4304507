"""A gate that does what another does, and notes what it was shown: for pictures of a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Int64
from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.view import View


@dataclass
class Seen:
    """Another gate's memory, and the provisional text of the last step."""

    memory: Any
    says: tuple[int, ...] = ()


def watched(gate: Gate[Any]) -> Gate[Any]:
    """The same decisions; what it tells of a step has the provisional text too, as "says"."""

    class Watched(Gate[Seen]):
        """Hands everything on."""

        name = gate.name
        want = gate.want
        reads_canvas = True  # the picture shows all of it
        needs_format = gate.needs_format
        needs_future = gate.needs_future
        changes_path = gate.changes_path
        Config = type(gate).Config

        def plan(self, plan: Plan, tokenizer: PreTrainedTokenizerBase) -> Plan:
            return gate.plan(plan, tokenizer)

        def start(self, setting: Setting) -> Seen:
            return Seen(gate.start(setting))

        def observe(self, state: Seen, view: View) -> Exit | None:
            state.says = tuple(view.says.tolist())
            return gate.observe(state.memory, view)

        def early(self, state: Seen, view: View) -> bool:
            return gate.early(state.memory, view)

        def settle(
            self, state: Seen, tokens: Int64[np.ndarray, " G"], masked: Bool[np.ndarray, " G"]
        ) -> Exit | None:
            return gate.settle(state.memory, tokens, masked)

        def told(self, state: Seen) -> Mapping[str, Any]:
            return {**gate.told(state.memory), "says": state.says}

        def unmet(self, state: Seen) -> str | None:
            return gate.unmet(state.memory)

    return Watched(gate.config)
