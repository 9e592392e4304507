"""Fewer steps and no gate: what every gate has to beat at an equal number of forwards."""

import math
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.entries import check, check_count
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.schedule import Plan
from varifocal.errors import BadOption


class Reduced(Gate[None]):
    """A plan with so many steps, or with the given plan's divided by a factor (rounded up)."""

    name = "reduced"
    reads_canvas = False
    changes_path = "it commits more tokens a step, so every step sees another canvas"

    @dataclass(frozen=True, kw_only=True)
    class Config(Gate.Config):
        """One of the two."""

        factor: float | None = None
        steps: int | None = None

        def __post_init__(self) -> None:
            if self.factor is not None and self.steps is not None:
                raise BadOption("reduced takes factor or steps, not both")
            if self.factor is not None:
                check(self.factor >= 1, "factor must be 1 or more", self.factor)
            if self.steps is not None:
                check_count("steps", self.steps)

    def plan(self, plan: Plan, tokenizer: PreTrainedTokenizerBase) -> Plan:
        """With fewer steps, but one for each block."""
        if self.config.steps is not None:
            return replace(plan, steps=self.config.steps)
        steps = math.ceil(plan.total / (self.config.factor or 2))
        return replace(plan, steps=max(steps, len(plan.blocks)))
