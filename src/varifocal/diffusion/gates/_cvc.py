"""Confidence-verified commit: the stop rule of LATCH, for the gates that have it. [LATCH]

The rule follows the candidate answer wherever it stands in the provisional text. Of LATCH only the
abstract is public: it asks for confidence on the candidate's tokens and for sustained stability of
their argmax; the thresholds, the count of observations, freshness and the context are ours.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int64

from varifocal.diffusion.candidate import Candidate
from varifocal.diffusion.entries import check_count, check_share
from varifocal.diffusion.gate import Exit, Gate
from varifocal.diffusion.view import View


@dataclass(frozen=True, kw_only=True)
class CVCConfig(Gate.Config):
    """When a candidate counts as verified."""

    tau: float = 0.95  # least confidence of the candidate's span
    agg: Literal["min", "mean", "geo"] = "min"  # of its tokens; geo: the geometric mean
    w: int = 4  # observations of the same candidate in a row, the first and this one included
    # tokens: 1 + the tokens committed since the first of them. With one token a step it is the
    # same; where steps commit many, each of them is evidence that the candidate withstood. Where
    # nothing is committed before the end (DiffusionGemma), steps count.
    unit: Literal["steps", "tokens"] = "tokens"
    t_min: int = 2  # no exit before this step
    min_len: int = 1  # tokens of the span at least
    # Of the positions before the marker, at least the share `rho` must be committed, or all: a
    # model may guess its answer with confidence before it has worked it out.
    context: Literal["none", "prefix_frac", "prefix_committed"] = "prefix_frac"
    rho: float = 0.5
    fill: Literal["argmax", "cut", "finish_block"] = "argmax"  # see `gate.Fill`

    def __post_init__(self) -> None:
        check_share("tau", self.tau)
        check_share("rho", self.rho)
        check_count("w", self.w)
        check_count("t_min", self.t_min)
        check_count("min_len", self.min_len)


@dataclass
class Streak:
    """A candidate, and how long it has been the same."""

    stops: frozenset[int] = frozenset()  # ids that end a text
    says: Int64[np.ndarray, " G"] | None = None  # the text of the last view
    candidate: Candidate | None = None
    span: Int64[np.ndarray, " s"] = field(default_factory=lambda: np.zeros(0, np.int64))
    length: int = 0  # observations; 0 too while none of them was fresh
    begun: int = 0  # tokens that were committed at the first of them
    confidence: float = 0.0  # at the last view
    best: int = 0  # longest streak of the row, in the rule's unit
    num_found: int = 0  # views with a closed candidate

    def restart(self, candidate: Candidate | None) -> None:
        """Another candidate, or none, not observed yet."""
        if candidate is not self.candidate:
            self.candidate = candidate
            self.span = np.array(() if candidate is None else candidate.span, dtype=np.int64)
        self.length, self.confidence = 0, 0.0


def verify(config: CVCConfig, streak: Streak, view: View) -> Exit | None:
    """Observe a view, and say whether its candidate is verified."""
    found, streak.says = view.candidate, view.says
    if found is None or not found.closed or len(found.span) < config.min_len:
        streak.restart(None)
        return None
    streak.num_found += 1
    if not _is_same(found, streak.candidate):
        streak.restart(found)
    run = _count(config, streak, view)
    streak.best = max(streak.best, run)
    streak.confidence = _aggregate(view.quality[streak.span], config.agg)
    if run < config.w or view.step < config.t_min or streak.confidence < config.tau:
        return None
    if not _has_context(config, found.marker, view):
        return None
    reason = (
        f"candidate {found.value!r:.40} held for {run} {config.unit}, "
        f"{config.agg} confidence {streak.confidence:.3f}"
    )
    return Exit(reason=reason, fill=config.fill, candidate=found, confidence=streak.confidence)


def ended(
    config: CVCConfig,
    streak: Streak,
    tokens: Int64[np.ndarray, " G"],
    masked: Bool[np.ndarray, " G"],
) -> Exit | None:
    """Say whether nothing can change the candidate any more, however sure of it the model is.

    That is so once a stop token and all before it are committed, as the parser last saw them.
    """
    found, says = streak.candidate, streak.says
    if found is None or says is None:
        return None
    decided = tokens[: int(masked.argmax()) if masked.any() else len(masked)].tolist()
    end = next((n for n, token in enumerate(decided) if token in streak.stops), None)
    if end is None or decided[: end + 1] != says[: end + 1].tolist():
        return None
    return Exit(
        reason=f"the text has ended, with candidate {found.value!r:.40}",
        fill="cut" if config.fill == "cut" else "stop",
        candidate=found,
        confidence=streak.confidence,
    )


def told(streak: Streak) -> dict[str, Any]:
    """For the trace."""
    found = streak.candidate
    if found is None:
        return {"candidate": None, "streak": 0}
    return {
        "candidate": found.value,
        "span": found.span,
        "streak": streak.length,
        "confidence": streak.confidence,
    }


def unmet(config: CVCConfig, streak: Streak) -> str:
    """Why no candidate was verified."""
    if not streak.num_found:
        return "the format's parser never found a closed candidate"
    if streak.best < config.w:
        return f"no candidate held for {config.w} {config.unit}: the longest did for {streak.best}"
    return f"no candidate that held was confident ({config.agg} >= {config.tau:g}) in its context"


def _is_same(found: Candidate, last: Candidate | None) -> bool:
    if last is None or found is last:
        return found is last
    return (found.value, found.span, found.ids) == (last.value, last.span, last.ids)


def _count(config: CVCConfig, streak: Streak, view: View) -> int:
    """Take this observation into account, and give the run in the rule's unit.

    A committed token cannot change. Of the masked ones of the span, all must have been computed
    again; if none was, nothing was observed, and if some were, the streak begins again.
    """
    pending = streak.span[view.masked[streak.span]]
    is_fresh = view.fresh[pending]
    committed = view.canvas - int(view.masked.sum())
    if is_fresh.all():
        streak.length += 1
    elif is_fresh.any():
        streak.length = 1
    else:
        return 0
    if streak.length == 1:
        streak.begun = committed
    if config.unit == "steps":
        return streak.length
    return max(streak.length, 1 + committed - streak.begun)


def _aggregate(quality: Float[np.ndarray, " s"], agg: str) -> float:
    if agg == "min":
        return float(quality.min())
    if agg == "mean":
        return float(quality.mean())
    return float(np.exp(np.log(np.maximum(quality, 1e-30)).mean()))


def _has_context(config: CVCConfig, marker: int, view: View) -> bool:
    if config.context == "none" or marker == 0:
        return True
    committed = 1 - float(view.masked[:marker].mean())
    return committed >= (config.rho if config.context == "prefix_frac" else 1)
