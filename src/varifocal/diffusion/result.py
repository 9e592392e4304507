"""What a decoding gives back: plain Python, so that reports need no torch."""

from dataclasses import dataclass, field
from typing import Any, Literal

from varifocal.diffusion.candidate import Candidate

# Every position was decided by steps; a gate stopped the row; it was broken off.
Finish = Literal["filled", "exit", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """One forward of one row, and what it decided."""

    row: int  # which prompt, from 0
    step: int  # from 1
    block: int  # number of the current block, from 0
    positions: tuple[int, ...]  # committed in this step, or filled by an exit; ascending
    tokens: tuple[int, ...]  # at these positions
    num_masked: int  # left after it
    filled: tuple[int, ...] = ()  # of these positions, those that an exit filled
    is_early: bool = False  # a gate committed the whole block at once
    exit: str | None = None  # a gate's reason, if it ended the row here
    is_done: bool = False  # the row's last step
    # Text that is decided up to here without a gap and not yet told: pieces join to the result's.
    text: str = ""
    told: dict[str, Any] = field(default_factory=dict)  # what the gate made of the step
    window: tuple[int, int]  # canvas positions that the forward computed
    num_computed: int = 0  # all positions that it computed, the prompt's included
    forward_seconds: float = 0.0  # this row's part of it
    gate_seconds: float = 0.0
    sample_seconds: float = 0.0  # statistics and the choice of commits
    other_seconds: float = 0.0

    @property
    def spans(self) -> list[tuple[int, tuple[int, ...]]]:
        """Runs of neighbouring positions that were committed: (first position, tokens)."""
        runs: list[tuple[int, tuple[int, ...]]] = []
        for position, token in zip(self.positions, self.tokens, strict=True):
            if runs and runs[-1][0] + len(runs[-1][1]) == position:
                first, tokens = runs.pop()
                runs.append((first, (*tokens, token)))
            else:
                runs.append((position, (token,)))
        return runs


@dataclass(frozen=True, kw_only=True)
class DiffusionResult:
    """A finished row with everything that was counted and timed."""

    text: str  # before the first stop token
    # All of the canvas, no mask among them; less if a gate cut it or it was cancelled, when it is
    # what is decided without a gap.
    token_ids: list[int]
    finish: Finish
    reason: str  # why a gate stopped it, or why it did not; "" if there is nothing to say
    prompt_tokens: int
    canvas: int  # G
    block: int  # length of the blocks
    planned_steps: int
    exit_step: int | None  # when a gate decided to stop; counted from 1
    num_filled: int  # positions that the exit filled or dropped, beside those of steps
    candidate: Candidate | None  # in the final text; None too if no format was given
    # Canvas positions that a gate verified. Of all other text nothing was checked; None where
    # nothing was verified, or where steps after it decided otherwise.
    verified_span: tuple[int, ...] | None
    confidence: float | None  # of the verified candidate
    num_computed: int  # positions that the forwards computed: with caches fewer than NFE times T
    steps: list[StepRecord] = field(repr=False)
    model: str
    sampler: str
    gate: str
    format: str | None
    seed: int

    @property
    def nfe(self) -> int:
        """Forwards of this row. One of a batch counts once for each of its rows."""
        return len(self.steps)

    @property
    def value(self) -> str | None:
        """The answer, normalised."""
        return None if self.candidate is None else self.candidate.value

    @property
    def seconds(self) -> dict[str, float]:
        """Where the time went: this row's part of what it shared with others."""
        parts = {
            name: sum(getattr(step, f"{name}_seconds") for step in self.steps)
            for name in ("forward", "gate", "sample", "other")
        }
        return {**parts, "total": sum(parts.values())}

    @property
    def gate_share(self) -> float:
        """Of the time, what the gate took."""
        seconds = self.seconds
        return seconds["gate"] / seconds["total"] if seconds["total"] else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal diffusion generate --json`."""
        span = None if self.verified_span is None else list(self.verified_span)
        return {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish": self.finish,
            "reason": self.reason,
            "value": self.value,
            "verified_span": span,
            "confidence": self.confidence,
            "usage": {"prompt_tokens": self.prompt_tokens, "canvas": self.canvas},
            "model": self.model,
            "sampler": self.sampler,
            "gate": self.gate,
            "format": self.format,
            "seed": self.seed,
            "nfe": self.nfe,
            "planned_steps": self.planned_steps,
            "exit_step": self.exit_step,
            "num_filled": self.num_filled,
            "num_computed": self.num_computed,
            "seconds": self.seconds,
            "gate_share": self.gate_share,
        }
