"""Plain decoding: drafts nothing. The baseline, through the same loop."""

from dataclasses import dataclass
from typing import ClassVar

from varifocal.drafter import Drafter
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt
from varifocal.tree import DraftTree
from varifocal.verify import Verification


class PlainDrafter(Drafter[None]):
    """One target forward per token."""

    name: ClassVar[str] = "plain"
    pictures: ClassVar[str] = "does not draft"

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        """`fast` is honoured by the loader: it prepacks the target's weights for this CPU."""

        depth: int = 0
        fast: bool = False

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> None:
        """Nothing to remember."""

    def propose(self, state: None, root: int, budget: Budget) -> DraftTree:
        """Just the root."""
        return DraftTree.chain([root], self.target.device)

    def observe(self, state: None, verdict: Verification, seen: Forward) -> None:
        """Nothing to learn."""
