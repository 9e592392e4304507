"""What a caller gets back: plain Python, so that reports need no torch."""

from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["eos", "stop", "length"]
Look = list[tuple[int, float]]  # (visual token, weight): where the drafter looked for a token


@dataclass(frozen=True, kw_only=True)
class TokenLogprob:
    """What the target thought of a delivered token, from its own logits before any setting."""

    token: int
    logprob: float  # natural logarithm
    best: tuple[tuple[int, float], ...] = ()  # the k likeliest (token, log-prob), best first

    def to_dict(self) -> dict[str, Any]:
        """As it stands in the JSON of a result."""
        best = [{"token_id": token, "logprob": value} for token, value in self.best]
        return {"token_id": self.token, "logprob": self.logprob, "best": best}


@dataclass(frozen=True, kw_only=True)
class Round:
    """One draft-verify-accept round, or the prefill (which delivers the first token)."""

    tokens: list[int]  # delivered by this round; the last one is the target's own unless cut
    text: str  # what may be shown now; pieces join to the whole text
    num_drafted: int = 0
    num_accepted: int = 0  # drafted tokens that were delivered
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0  # the prefill's forward, in the prefill
    other_seconds: float = 0.0
    is_prefill: bool = False
    looks: list[Look] | None = None  # per delivered token, if asked for and known
    logprobs: list[TokenLogprob] | None = None  # per delivered token, if asked for


@dataclass(frozen=True, kw_only=True)
class GenerationResult:
    """A finished generation with everything that was counted and timed."""

    text: str
    token_ids: list[int]
    finish_reason: FinishReason | Literal["cancelled"]
    prompt_tokens: int
    image_tokens: int
    rounds: list[Round] = field(repr=False)  # without the prefill
    prefill: Round = field(repr=False)
    drafter: str
    target: str
    fallback: str | None = None  # why rounds were decoded plainly, if any were
    logprobs: list[TokenLogprob] | None = field(default=None, repr=False)  # if asked for

    @property
    def num_spec_steps(self) -> int:
        """Target forwards after the prefill."""
        return len(self.rounds)

    @property
    def mean_acceptance_length(self) -> float:
        """tau: tokens per target forward after the prefill, the bonus token included.

        Plain decoding has 1.0; so has a text that the prefill alone finished.
        """
        return (len(self.token_ids) - 1) / len(self.rounds) if self.rounds else 1.0

    @property
    def acceptance_histogram(self) -> list[int]:
        """Entry j counts the rounds that delivered exactly j drafted tokens."""
        counts = [0] * (1 + max((r.num_accepted for r in self.rounds), default=0))
        for r in self.rounds:
            counts[r.num_accepted] += 1
        return counts

    @property
    def seconds(self) -> dict[str, float]:
        """Where the time went. `decode` is everything after the prefill."""
        draft = sum(r.draft_seconds for r in self.rounds)
        verify = sum(r.verify_seconds for r in self.rounds)
        other = sum(r.other_seconds for r in self.rounds)
        prefill = self.prefill.verify_seconds + self.prefill.other_seconds
        start = self.prefill.draft_seconds  # building the drafter's state from the prompt
        decode = start + draft + verify + other
        return {
            "prefill": prefill,
            "draft": start + draft,
            "verify": verify,
            "other": other,
            "decode": decode,
            "total": prefill + decode,
        }

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal generate --json`; `logprobs` only if they were asked for."""
        made: dict[str, Any] = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "usage": {
                "prompt_tokens": self.prompt_tokens,
                "image_tokens": self.image_tokens,
                "completion_tokens": len(self.token_ids),
            },
            "drafter": self.drafter,
            "target": self.target,
            "spec": {
                "num_spec_steps": self.num_spec_steps,
                "num_draft_tokens": sum(r.num_drafted for r in self.rounds),
                "num_accepted_draft_tokens": sum(r.num_accepted for r in self.rounds),
                "mean_acceptance_length": self.mean_acceptance_length,
                "acceptance_histogram": self.acceptance_histogram,
                "fallback": self.fallback,
            },
            "seconds": self.seconds,
        }
        if self.logprobs is not None:
            made["logprobs"] = [entry.to_dict() for entry in self.logprobs]
        return made
