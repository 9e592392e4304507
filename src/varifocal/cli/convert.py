"""`varifocal convert`: a published drafter in our layout, and an EAGLE-3 in that of speculators."""

import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from varifocal.cli._inputs import load_target_from
from varifocal.cli._options import OutputOptions, TargetOptions
from varifocal.cli._output import Output


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What is converted, and into what."""

    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="PATH|ID", help="A folder or hub id with a drafter's weights."
        ),
    ]
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder for the result.")]
    layout: Annotated[
        str,
        typer.Option(
            "--layout",
            metavar="varifocal|speculators",
            help="varifocal: of a published drafter. speculators: of an eagle3 of ours.",
        ),
    ] = "varifocal"
    family: Annotated[
        str,
        typer.Option(
            "--family",
            metavar="NAME",
            help="eagle, msd, vispec, dream, eagle3, speculators or dflash, where it cannot be "
            "seen.",
        ),
    ] = ""
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            help="Try whether a published drafter guesses what the target says, and write nothing "
            "if not.",
        ),
    ] = True


def convert(convert: ConvertOptions, model: TargetOptions, output: OutputOptions) -> None:
    """Convert a drafter from one layout into another.

    A published one (EAGLE-1/2/3, MSD, ViSpec, DREAM, DFlash, DSpark) becomes a folder that
    --drafter takes anywhere, bound to --target. An eagle3 that was trained here with norms=rms
    becomes an EAGLE-3 of speculators, bit for bit, and back.
    """
    from varifocal.drafters._published.converting import check_place
    from varifocal.drafters._published.converting import convert as converted
    from varifocal.drafters._weights import folder_of

    out = Output(output)
    check_place(convert.to, convert.layout)
    source = folder_of(convert.source)
    target = load_target_from(model, out)
    with out.busy(f"converting {convert.source}"):
        made = converted(
            source,
            convert.to,
            target,
            layout=convert.layout,
            check=convert.check,
            family=convert.family,
            command=f"varifocal {shlex.join(sys.argv[1:])}",
        )
    tried = f"; {made.agreement}" if made.agreement else ""
    out.line(f"{made.source} ({made.layout}) is {made.drafter} in {convert.to}{tried}")
    out.write(
        {
            "source": made.source,
            "out": str(convert.to),
            "drafter": made.drafter,
            "layout": made.layout,
            "agreement": asdict(made.agreement) if made.agreement else None,
        }
    )
