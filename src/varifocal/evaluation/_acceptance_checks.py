"""Checks of what a drafter guesses from true states: against a table, and with changed inputs."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from varifocal.drafter import Drafter
from varifocal.drafters._weights import network_of
from varifocal.evaluation._changed_states import changed_states
from varifocal.evaluation._findings import Finding, percent, skipped
from varifocal.evaluation._lessons import (
    Agreement,
    Lesson,
    States,
    agreement,
    floor_hits,
)
from varifocal.targets._hf import HFTarget

LEAST = 0.05  # differences of agreement below this are nothing
CHANGED = 3  # requests on which changed states are tried
CHANGED_POSITIONS = 32  # of each

UNTRAINED = "untrained weights"
_BACK, _AHEAD = "features one position back", "features one position ahead"
_RANDOM, _PICTURE = "features in random order", "picture of another request"
# What is the matter if a drafter agrees more often when its inputs are changed like this.
_REASONS = {
    _BACK: "the drafter was trained with another shift: it wants the features one position earlier",
    _AHEAD: "the drafter was trained with another shift: it wants the features one position later, "
    "which are not known yet when it drafts",
    "features before the last norm": "the drafter was trained on features before the last norm",
    "features of the layer before the last": "the drafter was trained on the layer before the last",
    "features of the layer below": "the drafter counts layers from another end or from 0: it was "
    "trained on the layers below those that it asks for",
    "features of the layer above": "the drafter counts layers from another end or from 0: it was "
    "trained on the layers above those that it asks for",
}


@dataclass(frozen=True)
class Trial:
    """A drafter led along all answers, and the floor at the same places."""

    base: Agreement
    floor: list[bool]
    lessons: list[Lesson]  # the first few, kept for changed inputs

    @property
    def floor_share(self) -> float:
        """What a table without a network guesses."""
        return sum(self.floor) / len(self.floor) if self.floor else 0.0

    @property
    def is_at_floor(self) -> bool:
        """Whether it is not clearly better than the table."""
        p, f, n = self.base.top1, self.floor_share, max(len(self.floor), 1)
        error = math.sqrt((p * (1 - p) + f * (1 - f)) / n)
        return p <= f + max(LEAST, 2 * error)


def try_out(drafter: Drafter[Any], lessons: Iterable[Lesson]) -> Trial:
    """Draft along every answer from true states."""
    base = Agreement(drafter.config.depth)
    answers: list[list[int]] = []
    kept: list[Lesson] = []  # states of a long prompt take much memory
    for lesson in lessons:
        base.add(agreement(drafter, lesson))
        answers.append(lesson.answer)
        if len(kept) < CHANGED:
            kept.append(lesson)
    return Trial(base, floor_hits(answers), kept)


def promises(check: str, trial: Trial) -> Finding:
    """Only text of the target's vocabulary, within the budget."""
    count = len(trial.base.hits)
    if trial.base.broken:
        listed = ", ".join(f"{n} {what}" for what, n in trial.base.broken.most_common())
        return Finding(
            check=check,
            verdict="fault",
            measured=f"in {count} drafts there were {listed}",
            way_out="a drafter must mask target.banned_ids and keep to its budget; correct its "
            "`propose` (pytest tests/drafters holds drafters to this)",
            numbers={"drafts": count, **trial.base.broken},
        )
    return Finding(
        check=check,
        verdict="ok",
        measured=f"{count} drafts keep to text, vocabulary and budget "
        f"({len(trial.base.proposed)} different tokens)",
        numbers={"drafts": count, "different_tokens": len(trial.base.proposed)},
    )


def agreed(check: str, drafter: Drafter[Any], trial: Trial) -> Finding:
    """From true states, at each draft depth; against a table that knows no picture."""
    base = trial.base
    first, any_ = _shares(base.hit_first, base.tried_first), _shares(base.hit_any, base.tried_any)
    floor = trial.floor_share
    numbers = {
        "positions": len(base.hits),
        "top1": first,
        "any": any_,
        "tried_top1": base.tried_first,
        "tried_any": base.tried_any,
        "floor": floor,
        "tau_from_true_states": base.walk.tau,
        "at_floor": trial.is_at_floor,
    }
    shown = ", ".join("-" if s is None else percent(s) for s in first)
    measured = (
        f"the likeliest token is right in {percent(base.top1)} of {len(base.hits)} places, a table "
        f"without a network in {percent(floor)}; by draft depth {shown}; first token in the tree "
        f"{percent(any_[0] or 0.0)}; {base.walk.tau:.2f} tokens a round"
    )
    is_learned = network_of(drafter) is not None
    if not is_learned:
        measured += f" ({drafter.name} learns nothing, so nothing is expected of it)"
    elif trial.is_at_floor:
        return Finding(
            check=check,
            verdict="fault",
            measured=f"it is at the floor: {measured}",
            way_out="see acceptance.inputs for the likely reason",
            numbers=numbers,
        )
    return Finding(check=check, verdict="ok", measured=measured, numbers=numbers)


def _shares(hits: Sequence[int], tried: Sequence[int]) -> list[float | None]:
    return [h / t if t else None for h, t in zip(hits, tried, strict=True)]


# -- changed inputs ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Agreement at the same places with and without a change of what the drafter reads."""

    name: str
    before: float
    after: float
    effect: str  # "better", "worse" or "none"

    def __str__(self) -> str:
        effect = "changes nothing" if self.effect == "none" else f"is {self.effect}"
        return f"{self.name} {effect} ({percent(self.before)} -> {percent(self.after)})"


def inputs(
    check: str,
    target: HFTarget,
    drafter: Drafter[Any],
    trial: Trial,
) -> Finding:
    """Which changes of its inputs the drafter notices; at the floor also the likely reason."""
    network = network_of(drafter)
    if network is None:
        return skipped(check, f"{drafter.name} has no weights that could want other inputs")
    few = trial.lessons
    before = _hits(drafter, few, None)
    changes = [
        _change(name, before, _hits(drafter, few, name)) for name in _names(target, drafter, few)
    ]
    fresh = _untrained(drafter)
    if fresh is not None:
        changes.append(_change(UNTRAINED, before, _hits(fresh, few, None)))
    numbers = {"changes": {c.name: {"top1": c.after, "effect": c.effect} for c in changes},
               "top1": sum(before) / max(len(before), 1), "positions": len(before)}  # fmt: skip
    told = "; ".join(str(c) for c in changes)
    reason = _reason(changes, trial.is_at_floor)
    if reason is None:
        return Finding(check=check, verdict="ok", measured=told, numbers=numbers)
    return Finding(
        check=check,
        verdict="fault" if trial.is_at_floor else "warning",
        measured=f"{reason[0]}. {told}",
        way_out=reason[1],
        numbers=numbers | {"reason": reason[0]},
    )


def _names(target: HFTarget, drafter: Drafter[Any], lessons: Sequence[Lesson]) -> list[str]:
    found: dict[str, None] = {}
    for lesson in lessons:
        found |= dict.fromkeys(_changed(target, drafter, lesson, lessons))
    return list(found)


def _changed(
    target: HFTarget, drafter: Drafter[Any], lesson: Lesson, lessons: Sequence[Lesson]
) -> dict[str, States]:
    others = (x for x in lessons if x is not lesson and bool(x.prompt.is_image.any()))
    return changed_states(target, drafter.want, lesson, next(others, None))


def _hits(drafter: Drafter[Any], lessons: Sequence[Lesson], change: str | None) -> list[bool]:
    """First tokens that are right; a lesson without this change counts as it is."""
    found: list[bool] = []
    for lesson in lessons:
        states = lesson.states
        if change is not None:
            target: Any = drafter.target
            states = _changed(target, drafter, lesson, lessons).get(change, states)
        found += agreement(drafter, lesson, states, CHANGED_POSITIONS).hits
    return found


def _change(name: str, before: Sequence[bool], after: Sequence[bool]) -> Change:
    """Paired: the same places, so the error is that of the differences."""
    moves = [int(b) - int(a) for a, b in zip(before, after, strict=True)]
    n = max(len(moves), 1)
    mean = sum(moves) / n
    error = math.sqrt(max(sum(m * m for m in moves) / n - mean**2, 0.0) / n)
    effect = "none"
    if abs(mean) > max(LEAST, 2 * error):
        effect = "better" if mean > 0 else "worse"
    return Change(name, sum(before) / n, sum(after) / n, effect)


def _untrained(drafter: Drafter[Any]) -> Drafter[Any] | None:
    """The same method and settings with the weights that training starts from."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        fresh = type(drafter)(drafter.target, drafter.config)
    fresh.prepare()
    return fresh if network_of(fresh) is not None else None


def _reason(changes: Sequence[Change], is_at_floor: bool) -> tuple[str, str] | None:
    """What is probably the matter, by elimination, and what to do."""
    # Features from the future tell a healthy drafter something too: they count at the floor only.
    better = [
        c
        for c in changes
        if c.effect == "better" and c.name in _REASONS and (is_at_floor or c.name != _AHEAD)
    ]
    if better:
        best = max(better, key=lambda c: c.after)
        return (
            f"{best.name} are accepted better than what it is given: {_REASONS[best.name]}",
            "train it on artifacts of this version (`varifocal record`, `varifocal train`), or "
            "correct what its `start` and `observe` make of the features",
        )
    if not is_at_floor:
        return None
    effect = {c.name: c.effect for c in changes}
    if effect.get(UNTRAINED) in ("none", "better"):
        return (
            "its weights are no better than untrained ones: never trained, shuffled, or assigned "
            "to the wrong names when they were converted",
            "convert or train it again; compare its card's scores with the log of the training",
        )
    if effect.get(_RANDOM) == "none":
        return (
            "it makes nothing of the target's features: in random order they do as well",
            "it was trained without them or on those of another model: train it on artifacts of "
            "this target",
        )
    return (
        "inputs and weights are in order, as far as this can tell: it was probably trained on "
        "other kinds of text than these requests, or too little",
        "run it with --suite on data like its training data; if it agrees there, train it on more",
    )
