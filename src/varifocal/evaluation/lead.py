"""Which drafter leads, and whether drawing other requests could have made another one lead."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

Floats = Float[np.ndarray, "..."]
FEW = 5  # requests a family below which drawing them anew shows little of their spread


@runtime_checkable
class Scored(Protocol):
    """What of an entry's means decides."""

    @property
    def decode_speedup(self) -> float:
        """Mean over families."""

    @property
    def different(self) -> int:
        """Texts that differ from plain decoding."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The leader's mean decode speed-up divided by another entry's."""

    ratio: float
    ci95: tuple[float, float]  # both on the same requests, drawn anew together
    is_clear: bool  # the interval lies beyond 1, and is one of `FEW` requests a family or more


@dataclass(frozen=True, kw_only=True)
class Lead:
    """The drafter with the highest mean decode speed-up among ours whose texts are all right.

    Only speed-ups over the same plain loop are ranked: over that on the target's own weights, if
    any of ours has it.
    """

    drafter: str
    baseline: str  # the plain loop
    runner_up: str | None  # of the others but plain loops, outside baselines too, with right texts
    over: dict[str, Gap]  # the plain loop, and every other entry that is compared with it


def find_lead(
    means: Mapping[str, Scored],
    draws: Mapping[str, Floats],
    baselines: Mapping[str, str],
    requests: int,
) -> Lead | None:
    """None where there is none.

    `draws` are bootstrapped mean speed-ups over the same requests, `baselines` each entry's plain
    loop, `requests` how many the smallest family has. Of equals the first leads.
    """
    ours = [e for e in means if not (is_plain(e) or is_outside(e) or means[e].different)]
    if not ours:
        return None
    stock = next(entry for entry, baseline in baselines.items() if entry == baseline)
    baseline = stock if any(baselines[e] == stock for e in ours) else baselines[ours[0]]
    ranked = [e for e in means if e == baseline or baselines[e] == baseline]
    by_speed = sorted(ranked, key=lambda entry: -means[entry].decode_speedup)
    drafter = next(entry for entry in by_speed if entry in ours)
    others = (e for e in by_speed if e != drafter and not is_plain(e) and not means[e].different)
    return Lead(
        drafter=drafter,
        baseline=baseline,
        runner_up=next(others, None),
        over={
            entry: _gap(
                means[drafter].decode_speedup,
                draws[drafter],
                # The loop has 1 by definition, even where its own row compares it with another.
                1.0 if entry == baseline else means[entry].decode_speedup,
                1.0 if entry == baseline else draws[entry],
                requests,
            )
            for entry in ranked
            if entry != drafter
        },
    )


def _gap(
    speed: float, draws: Floats, other: float, other_draws: Floats | float, requests: int
) -> Gap:
    low, high = interval(draws / other_draws)
    is_clear = requests >= FEW and (low > 1 or high < 1)
    return Gap(ratio=speed / other, ci95=(low, high), is_clear=is_clear)


def interval(draws: Floats) -> tuple[float, float]:
    """The middle 95 %."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def is_plain(entry: str) -> bool:
    """Whether it is one of the plain loops that others are compared with."""
    return entry == "plain" or entry.startswith(("plain:", "plain,"))


def is_outside(entry: str) -> bool:
    """Whether transformers decodes it, not our loop."""
    return entry.startswith("hf-")
