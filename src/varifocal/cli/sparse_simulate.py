"""`varifocal sparse simulate`: what PRR would save, from times of phases and hit rates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from varifocal.cli._inputs import names
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.sparse.profiles import Profile
    from varifocal.sparse.simulator import Projection


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """The machine and the model."""

    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="quest|infllm|FILE.csv",
            help="The paper authors' measurements with a selector, or a table of your own.",
        ),
    ] = "quest"
    batch: Annotated[int | None, typer.Option("--batch", help="Texts decoded together.")] = None
    group: Annotated[int | None, typer.Option("--group", help="Query heads of a KV head.")] = None
    layers: Annotated[int | None, typer.Option("--layers", help="Layers of the model.")] = None


@dataclass(frozen=True, kw_only=True)
class GuessOptions:
    """How well guesses do, and how much the two queues are in each other's way."""

    hit_rates: Annotated[
        str,
        typer.Option(
            "--hit-rates",
            metavar="A,B",
            help="Of the chosen blocks, where as many are guessed as chosen.",
        ),
    ] = "0.7,0.8,0.9,0.95,1"
    rates: Annotated[
        Path | None,
        typer.Option(
            "--rates",
            metavar="FILE.json",
            help="Measured ones instead: what sparse rates --json wrote. Of its rows, those count "
            "whose selector, number of chosen blocks and length are nearest to the profile's.",
        ),
    ] = None
    predictors: Annotated[
        str,
        typer.Option(
            "--predictors",
            metavar="A,B",
            help="Whose measured rates; last is always among them. Left out: all.",
        ),
    ] = ""
    contention: Annotated[
        str,
        typer.Option(
            "--contention",
            metavar="A,B",
            help="How much slower each queue is while both are busy; 1: not at all, 2: they take "
            "turns. Left out: as the profile says.",
        ),
    ] = ""
    may_outlast: Annotated[
        bool,
        typer.Option(
            "--may-outlast", help="Guess also what is attended to after selection has ended."
        ),
    ] = False


def simulate(machine: ProfileOptions, guess: GuessOptions, output: OutputOptions) -> None:
    """Project what PRR saves, from measured times of the phases and hit rates.

    Both denominators are shown: the select-and-attend window, and the whole token. Where nothing
    pays, nothing is guessed. Projections are no measurements.
    """
    from varifocal.sparse.profiles import SOURCE
    from varifocal.sparse.simulator import simulate as project

    out = Output(output)
    if guess.predictors and guess.rates is None:
        raise BadOption("--predictors chooses among measured rates: give --rates FILE.json as well")
    contentions: list[float | None] = [*_numbers("--contention", guess.contention)] or [None]
    curves = _curves(guess)
    made = [
        (
            named,
            project(profile, curve, contention=contention, may_outlast=guess.may_outlast),
        )
        for profile in _profiles(machine)
        for contention in contentions
        for named, curve in curves(profile)
    ]
    source = SOURCE if machine.profile in ("quest", "infllm") else machine.profile
    rows = [row.to_dict() | {"rates": named} for named, row in made]
    out.write({"source": source, "rows": rows})
    out.table(_table(made))
    out.note(
        f"projected from {source}" + (f", hit rates from {guess.rates}" if guess.rates else "")
    )


_Curve = tuple[dict[str, Any] | None, float | Sequence[float]]  # where it is from; the rates


def _curves(guess: GuessOptions) -> "Callable[[Profile], list[_Curve]]":
    """What hit rates to project a profile with."""
    if guess.rates is None:
        assumed: list[_Curve] = [(None, rate) for rate in _numbers("--hit-rates", guess.hit_rates)]
        if not assumed:
            raise BadOption(f"--hit-rates names none, got {guess.hit_rates!r}")
        return lambda _: assumed
    from varifocal.sparse.measured import nearest, read_rates

    measured = read_rates(guess.rates)
    asked = names(guess.predictors)
    wanted = [*dict.fromkeys(("last", *asked))] if asked else []

    def found(profile: "Profile") -> list[_Curve]:
        return [
            ({"predictor": r.predictor, "context": r.context, "budget": r.budget}, r.curve)
            for r in nearest(measured, profile, wanted)
        ]

    return found


def _profiles(options: ProfileOptions) -> "list[Profile]":
    from varifocal.sparse.profiles import paper_profiles, read_profiles

    if not options.profile:
        raise BadOption("--profile wants quest, infllm or FILE.csv, got nothing")
    is_file = options.profile.lower().endswith(".csv")
    found = read_profiles(Path(options.profile)) if is_file else paper_profiles(options.profile)
    return [
        profile.scaled(batch=options.batch, group=options.group, layers=options.layers)
        for profile in found
    ]


def _numbers(option: str, text: str) -> list[float]:
    try:
        return [float(name) for name in names(text)]
    except ValueError:
        raise BadOption(f"{option} wants numbers, got {text!r}") from None


def _table(rows: "Sequence[tuple[dict[str, Any] | None, Projection]]") -> Table:
    is_measured = rows[0][0] is not None
    table = Table(
        *("profile", "context", "batch", "contention"),
        *(("predictor", "measured at") if is_measured else ()),
        *("hit rate", "guessed of chosen", "window", "saved", "token", "saved"),
    )
    for named, row in rows:
        table.add_row(
            row.profile,
            f"{row.context}",
            f"{row.batch}",
            f"{row.contention:.2f}",
            *((named["predictor"], f"{named['context']}/{named['budget']}") if named else ()),
            "–" if row.asked_rate is None else f"{row.asked_rate:.0%}",
            "off" if row.guessed is None else f"{row.guessed} of {row.chosen}",
            f"{1e3 * row.plain_window:.2f} → {1e3 * row.window:.2f} ms",
            f"{row.window_saving:.1%}",
            f"{1e3 * row.plain_token:.2f} → {1e3 * row.token:.2f} ms",
            f"{row.token_saving:.1%}",
        )
    return table
