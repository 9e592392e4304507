"""A table of a paper as something to measure again: what it compares and claims, and what came out.

Plain data alone; `outcome` computes it from a benchmark, `sheet` draws it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

ALL = "all"  # the column of the mean over all families
Kind = Literal["family", "group", "all"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A method is best or second best of its block everywhere, and never far from some others."""

    method: str  # entry by its label
    near: tuple[str, ...]  # entries whose best it is divided by
    those: str = "single view"  # what they are, in words


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """What a table compares. Entries go by their labels."""

    name: str
    source: str  # where the table stands
    depth: int  # draft steps of each round, the same for all entries; their gamma
    blocks: tuple[tuple[str, ...], ...]  # entries that are ranked among each other
    claims: tuple[Claim, ...]
    groups: Mapping[str, tuple[str, ...]]  # families over which the paper averages


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One entry on one family, or averaged over several."""

    drafter: str
    family: str  # or the name of a group, or `ALL`
    kind: Kind
    block_efficiency: float  # tau
    rank: int | None  # in its block: 1 is best, equals share one; None where its texts differ
    latency_ratio: float | None  # seconds of a draft step / of a plain token; None without a round
    expected_speedup: float | None  # by the paper's formula
    decode_speedup: float  # as measured
    decode_speedup_ci95: tuple[float, float] | None  # None for a group
    verify_ratio: float | None  # seconds of a checking forward / of a plain token; the formula: 1
    identical: int
    near_tie: int
    different: int
    is_compared: bool


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What became of a claim."""

    claim: Claim
    ranks: dict[str, int | None]  # by family
    beyond: tuple[str, ...]  # families in which it is neither best nor second best
    ratios: dict[str, float]  # by family: its block efficiency / the best one's of `claim.near`
    worst_family: str | None  # where the ratio is lowest; None if none of those was measured
    worst_ratio: float | None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A table measured again."""

    experiment: Experiment
    figures: tuple[Figure, ...]  # by entry: families, groups, all
    standings: tuple[Standing, ...]
    rule: str
    entries: dict[str, str] = field(default_factory=dict)  # label: as given

    @property
    def drafters(self) -> list[str]:
        """Entries, block by block."""
        return list(dict.fromkeys(figure.drafter for figure in self.figures))

    @property
    def families(self) -> list[str]:
        """Families in the order in which they were measured."""
        return list(dict.fromkeys(f.family for f in self.figures if f.kind == "family"))

    def at(self, drafter: str, family: str) -> Figure:
        """The one figure of an entry on a family, a group or `ALL`."""
        return next(f for f in self.figures if (f.drafter, f.family) == (drafter, family))

    def groups(self) -> list[tuple[str, Sequence[str]]]:
        """Names of groups with those of their families that were measured; the rest without one."""
        known = [
            (group, [family for family in self.families if family in own])
            for group, own in self.experiment.groups.items()
        ]
        grouped = {family for _, own in known for family in own}
        rest = [family for family in self.families if family not in grouped]
        return [pair for pair in [*known, ("", rest)] if pair[1]]
