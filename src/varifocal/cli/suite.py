"""`varifocal suite`: requests made of published files, and files of requests looked through."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output

if TYPE_CHECKING:
    from varifocal.evaluation.importers._import import Imported
    from varifocal.evaluation.importers._layout import Layout

_SPLITS = "test|train|all"
_NAMED = 3  # records that are named of those that are left out


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """What is imported, and where it goes."""

    layout: Annotated[
        str, typer.Argument(metavar="LAYOUT", help="A published set; `suite list` names them.")
    ]
    source: Annotated[
        Path, typer.Option("--from", metavar="PATH", help="A file of the set, or their folder.")
    ]
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new folder for the suite.")]
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="DIR", help="Its pictures, if not beside the file."),
    ] = None
    split: Annotated[
        str,
        typer.Option(
            "--split", metavar=_SPLITS, help="What to measure on, what to train on, or all of it."
        ),
    ] = "test"
    limit: Annotated[
        int | None, typer.Option("--limit", help="Records a family, the first of the split.")
    ] = None


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What is looked through."""

    file: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl|DIR", help="A suite, or the folder of one.")
    ]


def import_layout(suite: ImportOptions, output: OutputOptions) -> None:
    """Make a suite of the files of a published set; nothing is fetched.

    The folder gets suite.jsonl, the pictures, and source.json, which says what was taken, how the
    split was made and what was left out. The same command again does nothing.
    """
    from varifocal.evaluation.importers._import import import_suite

    out = Output(output)
    with out.progress("importing", None) as bar:
        imported = import_suite(
            suite.layout,
            suite.source,
            suite.out,
            images=suite.images,
            split=suite.split,
            limit=suite.limit,
            progress=bar.at,
        )
    out.write({"out": str(suite.out), "new": imported.is_new, **imported.source})
    _tell(imported, out)


def _tell(imported: "Imported", out: Output) -> None:
    made = imported.source
    for reason, records in made["left_out"].items():
        more = ", ..." if records["count"] > _NAMED else ""
        first = ", ".join(records["first"][:_NAMED])
        out.note(f"{records['count']} left out {reason}: {first}{more}")
    if made["later_turns_left_out"]:
        out.note(
            f"{made['later_turns_left_out']} later turns are not asked: they follow on answers of "
            "the model"
        )
    out.note(f"split: {made['rule']}; {made['leakage']['rule']}")
    counts = made["records"]
    done = "" if imported.is_new else ", as it was there before"
    out.line(
        f"{counts['written']} of {counts['chosen']} requests of {made['title']} are in "
        f"{imported.folder}{done}"
    )


def list_layouts(output: OutputOptions) -> None:
    """List the published sets that can be imported."""
    from varifocal.evaluation.importers import find_layout, layout_names

    layouts = {name: find_layout(name) for name in layout_names()}
    out = Output(output)
    out.write({"layouts": [_row(name, layout) for name, layout in layouts.items()]})
    table = Table("layout", "split", "files", "fields checked against")
    for name, layout in layouts.items():
        files = (f"{', '.join(form.file_names)} ({form.name})" for form in layout.forms)
        table.add_row(name, layout.split, "\n".join(files), layout.verified)
    out.table(table)


def _row(name: str, layout: "Layout") -> dict[str, Any]:
    return {
        "name": name,
        "title": layout.title,
        "split": layout.split,
        "max_new_tokens": layout.max_new_tokens,
        "forms": [
            {
                "name": form.name,
                "files": list(form.file_names),
                "fields": list(form.required),
                "pictures": form.holding,
                "prompt": form.prompt,
            }
            for form in layout.forms
        ],
        "verified": layout.verified,
    }


def check(suite: CheckOptions, output: OutputOptions) -> None:
    """Look through a suite, its pictures too, and list every bad line.

    Exit code 2: there is one.
    """
    from varifocal.evaluation.suites import examine

    out = Output(output)
    reading = examine(suite.file)
    out.write(
        {
            "suite": str(reading.path),
            "lines": reading.num_lines,
            "families": reading.families,
            "bad": [{"line": number, "reason": reason} for number, reason in reading.bad],
        }
    )
    table = Table("family", "requests")
    for family, number in reading.families.items():
        table.add_row(family, str(number))
    out.table(table)
    for number, reason in reading.bad:
        out.line(f"line {number}: {reason}")
    out.line(f"{len(reading.bad)} of {reading.num_lines} lines are bad")
    if reading.bad:
        raise typer.Exit(2)
