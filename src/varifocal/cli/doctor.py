"""`varifocal doctor`: which part of a pair is at fault when little is accepted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from varifocal.cli._inputs import load_target_from, names, pairs
from varifocal.cli._options import DraftingOptions, OutputOptions, SuiteOptions, TargetOptions
from varifocal.cli._output import Output
from varifocal.engine import default_drafter, parse_options
from varifocal.errors import UnsupportedTarget
from varifocal.evaluation.doctor import Diagnosis, Finding, diagnose
from varifocal.evaluation.suites import load_suite

_STYLES = {"ok": "green", "warning": "yellow", "fault": "bold red", "not applicable": "dim"}


@dataclass(frozen=True, kw_only=True)
class ExaminedOptions(SuiteOptions):
    """The requests to examine on: a few are enough."""

    limit: Annotated[int | None, typer.Option("--limit", help="Requests a family.")] = 1


def doctor(
    suite: ExaminedOptions,
    model: TargetOptions,
    drafting: DraftingOptions,
    output: OutputOptions,
) -> None:
    """Examine target and drafter part by part, and say in plain words what is at fault.

    The target alone (template, tokenizer, pictures), its positions and cache, what both share, the
    drafter's guesses from true states against a table that needs no network, and real decoding.
    Exit code 0: all in order, or warnings only. Exit code 1: a fault was found.
    """
    out = Output(output)
    cases = load_suite(suite.suite, limit=suite.limit, families=names(suite.families))
    options = parse_options(drafting.drafter, pairs(drafting.set))
    try:
        target = load_target_from(model, out)
    except UnsupportedTarget as error:
        if not Path(model.target).is_dir():
            raise  # nothing to examine
        _tell(_unread(model, drafting, str(error)), out)
        raise typer.Exit(1) from None
    drafter = drafting.drafter or default_drafter(target)
    with out.progress("examining", None) as bar:
        diagnosis = diagnose(target, drafter, options, cases, lambda stage: bar.step(stage))
    _tell(diagnosis, out)
    if diagnosis.verdict == "fault":
        raise typer.Exit(1)


def _unread(model: TargetOptions, drafting: DraftingOptions, reason: str) -> Diagnosis:
    """What can be said of a checkpoint that does not load."""
    return Diagnosis(
        target=model.target,
        drafter=drafting.drafter,
        dtype=str(model.dtype),
        requests=0,
        findings=(Finding(check="target.load", verdict="fault", measured=reason),),
    )


def _tell(diagnosis: Diagnosis, out: Output) -> None:
    out.write(diagnosis.to_dict())
    table = Table("check", "verdict", "measured, and the way out")
    for finding in diagnosis.findings:
        style = _STYLES[finding.verdict]
        words = finding.measured + (f"\n-> {finding.way_out}" if finding.way_out else "")
        table.add_row(finding.check, finding.verdict, Text(words), style=style)
    out.table(table)
    out.line(f"{diagnosis.drafter} on {diagnosis.target}: {diagnosis.conclusion}")
