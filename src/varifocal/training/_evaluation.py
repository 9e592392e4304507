"""What is measured in the middle of a training, and the way out of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from varifocal.decode import generate
from varifocal.drafter import Drafter
from varifocal.request import Request
from varifocal.target import Target

Scores = dict[str, float]
ShouldStop = Callable[[], bool]


class Stopped(Exception):  # what was asked for is no error
    """The work was put down because it was asked to end before its time."""


def never() -> bool:
    """Nobody asks to stop."""
    return False


def heed(should_stop: ShouldStop) -> None:
    """Raise `Stopped` if so asked."""
    if should_stop():
        raise Stopped


def tau_of(
    target: Target,
    drafter: Drafter[Any],
    requests: Mapping[str, Sequence[Request]],
    should_stop: ShouldStop = never,
) -> Scores:
    """tau by family, each over all its requests: tokens per target forward after the prefill.

    Without a cost model every round drafts the fixed number of nodes of the drafter's settings.
    `should_stop` is asked before each request; raises `Stopped` once it says yes.
    """
    scores = {}
    for family, asked in requests.items():
        num_tokens = num_rounds = 0
        for request in asked:
            heed(should_stop)
            result = generate(target, drafter, request)
            num_tokens += len(result.token_ids) - 1
            num_rounds += result.num_spec_steps
        scores[f"tau_{family}"] = num_tokens / num_rounds if num_rounds else 1.0
    if scores:
        scores["tau"] = mean(list(scores.values()))
    return scores


def mean(values: Sequence[float]) -> float:
    """The mean; NaN of nothing."""
    return sum(values) / len(values) if values else math.nan
