"""Hit rates that `varifocal sparse rates` measured, read back for projections."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.phases import SHARES
from varifocal.sparse.profiles import Profile


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """Of one predictor, where a selector chose so many blocks of a context."""

    selector: str
    predictor: str
    context: int  # tokens
    budget: int  # tokens
    chosen: int  # blocks
    curve: tuple[float, ...]  # hit rates at each of SHARES


def read_rates(path: Path) -> list[MeasuredRates]:
    """All of a file. Raises BadRequest where it is not one that `sparse rates` wrote."""
    try:
        made = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadRequest(f"the rates {path} cannot be read as JSON: {error}") from error
    try:
        return [found for row in made["rows"] for found in _of_row(row, made["settings"])]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadRequest(
            f"the rates {path} are not those of `varifocal sparse rates --json`: {error!r}"
        ) from error


def _of_row(row: dict[str, Any], settings: dict[str, Any]) -> list[MeasuredRates]:
    at = [settings["guesses"].index(share) for share in SHARES]
    return [
        MeasuredRates(
            selector=row["selector"],
            predictor=name,
            context=row["context"],
            budget=row["budget"],
            chosen=row["budget"] // settings["block_size"],
            curve=tuple(float(judged["hit_rates"][n]) for n in at),
        )
        for name, judged in row["predictors"].items()
    ]


def nearest(
    rates: Sequence[MeasuredRates], profile: Profile, predictors: Sequence[str] = ()
) -> list[MeasuredRates]:
    """Those of the profile's selector that are nearest to it, one for each predictor.

    The number of chosen blocks comes first, then the length of the context. All predictors, or
    those named. Raises BadOption where there are none.
    """
    own = [r for r in rates if r.selector == profile.name]
    if not own:
        there = ", ".join(dict.fromkeys(r.selector for r in rates))
        raise BadOption(f"the rates are of {there}, and the profile is of {profile.name}")
    known = [*dict.fromkeys(r.predictor for r in own)]
    if unknown := [name for name in predictors if name not in known]:
        raise BadOption(f"the rates have no predictor {unknown[0]!r}; there are {', '.join(known)}")

    def distance(measured: MeasuredRates) -> tuple[int, int]:
        return abs(measured.chosen - profile.chosen), abs(measured.context - profile.context)

    return [min((r for r in own if r.predictor == n), key=distance) for n in predictors or known]
