"""`varifocal diffusion verify`: are a gate's answers those of full decoding?"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from varifocal.cli._diffusion_options import (
    DecodingOptions,
    DenoiserOptions,
    load_denoiser_from,
    task_names,
)
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.diffusion.evaluation.verify import Verdict

_HEAD = (
    "task", "items", "agreement", "helped", "hurt", "changed", "premature", "forwards",
    "whole rows", "batch = alone", "replay = live",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """On what, and how far answers may differ."""

    tasks: Annotated[
        str, typer.Option("--tasks", metavar="A,B", help="Left out: all that are scored.")
    ] = ""
    limit: Annotated[int, typer.Option("--limit", help="Questions of each task.")] = 20
    sample: Annotated[
        int,
        typer.Option(
            "--sample", help="Of these, questions that are also decoded alone and replayed."
        ),
    ] = 3
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="POINTS",
            help="Answers of a hundred that may differ from full decoding's, on each task.",
        ),
    ] = 2.0
    batch: Annotated[int, typer.Option("--batch", help="Questions decoded together.")] = 16


def verify(
    verify: VerifyOptions, decoding: DecodingOptions, model: DenoiserOptions, output: OutputOptions
) -> None:
    """Compare a gate's answers with those of full decoding, item by item.

    Also checked: every position is decided and none by a mask or another id that must not be said;
    rows of a batch equal single runs; a replay of the gate, or of its stop rule, on a recorded run
    equals the live run. Exit code 0: all of this holds, and no more answers differ on any task
    than the tolerance allows. Exit code 1: one does not.
    """
    out = Output(output)
    verdict = _verified(verify, decoding, model, out)
    out.write(verdict.to_dict())
    _show_verdict(verdict, out)
    if not verdict.is_good:
        raise typer.Exit(1)


def _verified(
    verify: VerifyOptions, options: DecodingOptions, model: DenoiserOptions, out: Output
) -> "Verdict":
    from varifocal.diffusion import tasks
    from varifocal.diffusion.evaluation.bench import find_sampler
    from varifocal.diffusion.evaluation.frozen import find_gate
    from varifocal.diffusion.evaluation.items import draw
    from varifocal.diffusion.evaluation.measure import Setup
    from varifocal.diffusion.evaluation.verify import Verdict, check
    from varifocal.diffusion.schedule import Plan

    for name in ("limit", "sample", "batch"):
        if getattr(verify, name) < 1:
            raise BadOption(f"--{name} must be at least 1, got {getattr(verify, name)}")
    if not 0 <= verify.tolerance <= 100:
        raise BadOption(f"--tolerance is in points, from 0 to 100, got {verify.tolerance:g}")
    asked = task_names(verify.tasks) or [n for n in tasks.names() if tasks.find(n).is_scored]
    found = [tasks.find(name) for name in asked]
    gate = find_gate(options.gate)
    denoiser = load_denoiser_from(model, model.model, out)
    sampler = find_sampler(options.sampler, denoiser)
    plan = Plan(block=options.block, steps=options.steps, caching=options.caching)  # type: ignore[arg-type]  # checked there
    checks = []
    with out.progress("verifying", 3 * len(found)) as bar:
        for task in found:
            canvas = task.canvas if options.canvas is None else options.canvas
            setup = Setup(
                denoiser=denoiser,
                task=task,
                plan=replace(plan, canvas=canvas),
                batch=verify.batch,
            )
            drawn = draw(denoiser.tokenizer, task.name, verify.limit, canvas)
            checks.append(
                check(
                    setup,
                    drawn,
                    sampler,
                    gate,
                    tolerance=verify.tolerance,
                    sample=verify.sample,
                    done=lambda task=task: bar.step(task.name),  # type: ignore[misc]  # bound now
                )
            )
    return Verdict(
        model=denoiser.name,
        gate=gate.text,
        sampler=sampler.text,
        tolerance=verify.tolerance,
        checks=tuple(checks),
    )


def _show_verdict(verdict: "Verdict", out: Output) -> None:
    table = Table(title=f"{verdict.gate} on {verdict.model}, {verdict.sampler}")
    for name in _HEAD:
        table.add_column(name, justify="left" if name == "task" else "right")
    for c in verdict.checks:
        table.add_row(
            c.task,
            str(c.items),
            f"{c.agreement:.1%}{'' if c.is_within else ' BEYOND'}",
            *(str(count) for count in (c.helped, c.hurt, c.changed)),
            f"{c.premature:.1%}",
            f"{c.nfe:.1f} of {c.nfe_full:.0f}",
            "all" if not c.broken_rows else f"{c.broken_rows} NOT",
            f"{c.batch_equal}/{c.batch_checked}",
            f"{c.replay_equal}/{c.replay_checked}",
        )
    out.table(table)
    points = f"{verdict.tolerance:g} of 100 answers may differ"
    out.line(f"{'good' if verdict.is_good else 'NOT good'}: {points} on each task")
