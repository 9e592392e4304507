"""The contract of a gate: when a row may stop, and when a block may be committed at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
from jaxtyping import Bool, Int64
from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.candidate import Candidate
from varifocal.diffusion.entries import Entry
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View

S = TypeVar("S")

# What becomes of the masks: the argmax everywhere; nothing, and what is behind the candidate's
# closer is dropped; ordinary steps up to the end of the candidate's block, then the argmax; the
# stop token that stands before them.
Fill = Literal["argmax", "cut", "finish_block", "stop"]


@dataclass(frozen=True, kw_only=True)
class Exit:
    """The end of a row, before all of its canvas was decided in the ordinary way."""

    reason: str  # one phrase
    fill: Fill = "argmax"
    candidate: Candidate | None = None  # what was verified
    confidence: float | None = None  # of the candidate, as the gate measured it


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a gate is told of a row when it begins."""

    plan: Plan
    stops: frozenset[int]  # ids that end a text
    has_format: bool  # whether `View.candidate` can be asked for
    # Replay alone: the candidate at each step of the full run, and that of its final text.
    future: Sequence[Candidate | None] | None = None


class Gate(Entry, Generic[S]):
    """Settings live here, what it remembers of a row in its state S.

    A gate never sees the model. In every step it is asked after the forward and before the commit.
    """

    want: ClassVar[Want] = Want()
    # Whether it reads statistics beyond the current block, or fills there by the argmax. Where
    # nobody reads them they are not computed, and `View.says` has the mask.
    reads_canvas: ClassVar[bool] = True
    needs_format: ClassVar[bool] = False  # whether it asks for candidates
    needs_future: ClassVar[bool] = False  # whether it can only be replayed
    # Why a run with it is not the beginning of the full run, if so: it cannot be replayed then.
    changes_path: ClassVar[str | None] = None

    def plan(self, plan: Plan, tokenizer: PreTrainedTokenizerBase) -> Plan:
        """The plan as this gate has it: fewer steps, pinned tokens. The same when asked again."""
        return plan

    def start(self, setting: Setting) -> S:
        """Begin a row."""
        return None  # type: ignore[return-value]  # for gates that remember nothing

    def observe(self, state: S, view: View) -> Exit | None:
        """Whether the row stops here. Asked in every step, and so the place to remember."""
        return None

    def early(self, state: S, view: View) -> bool:
        """Whether to commit all of the current block, which is not the last, by its argmax."""
        return False

    def settle(
        self, state: S, tokens: Int64[np.ndarray, " G"], masked: Bool[np.ndarray, " G"]
    ) -> Exit | None:
        """Whether the row stops now, after a commit and before another forward."""
        return None

    def told(self, state: S) -> Mapping[str, Any]:
        """What it made of the last view, for the trace: numbers and texts."""
        return {}

    def unmet(self, state: S) -> str | None:
        """Why it let a row run to its end, in a phrase; None if that is what it does."""
        return None
