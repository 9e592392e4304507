"""`varifocal diffusion record` and `replay`: one full run, many gates, no model."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from varifocal.cli._diffusion_options import (
    CanvasOptions,
    DenoiserOptions,
    load_denoiser_from,
)
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.diffusion.evaluation.reel import Replayed


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """What is recorded, and where it is kept."""

    task: Annotated[
        str, typer.Option("--task", metavar="NAME", help="Whose questions, see `diffusion tasks`.")
    ]
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A new or empty folder.")]
    limit: Annotated[int, typer.Option("--limit", help="Questions.")] = 100
    split: Annotated[
        str, typer.Option("--split", metavar="test|valid|train", help="Of which part.")
    ] = "test"
    batch: Annotated[int, typer.Option("--batch", help="Questions decoded together.")] = 16


@dataclass(frozen=True, kw_only=True)
class FullOptions(CanvasOptions):
    """How the canvas is filled to its end."""

    sampler: Annotated[
        str,
        typer.Option(
            "--sampler", metavar="NAME[:KEY=VALUE]", help="own: the one of the model's family."
        ),
    ] = "own"


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """What is replayed."""

    recorded: Annotated[
        Path, typer.Option("--recorded", metavar="DIR", help="What `diffusion record` wrote.")
    ]
    gates: Annotated[
        str,
        typer.Option(
            "--gates",
            metavar="NAME[:KEY=VALUE],...",
            help="Gates that do nothing but stop. @tuned behind a name: its tuned setting.",
        ),
    ] = "full,eos_stop,prophet@tuned,sched@tuned,stable_and_confident@tuned,cvc,oracle"


def record(
    record: RecordOptions, decoding: FullOptions, model: DenoiserOptions, output: OutputOptions
) -> None:
    """Decode a task's questions to their end, and keep what gates would have read at every step.

    The folder holds all that `diffusion replay` needs: runs, questions and the tokenizer.
    """
    from varifocal.diffusion import tasks
    from varifocal.diffusion.evaluation.bench import find_sampler
    from varifocal.diffusion.evaluation.items import draw
    from varifocal.diffusion.evaluation.measure import Setup
    from varifocal.diffusion.evaluation.reel import check_folder, record_reel
    from varifocal.diffusion.schedule import Plan

    out = Output(output)
    for name in ("limit", "batch"):
        if getattr(record, name) < 1:
            raise BadOption(f"--{name} must be at least 1, got {getattr(record, name)}")
    task = tasks.find(record.task)
    check_folder(record.out)
    denoiser = load_denoiser_from(model, model.model, out)
    sampler = find_sampler(decoding.sampler, denoiser)
    plan = Plan(
        canvas=task.canvas if decoding.canvas is None else decoding.canvas,
        block=decoding.block,
        steps=decoding.steps,
        caching=decoding.caching,  # type: ignore[arg-type]  # checked there
    )
    drawn = draw(denoiser.tokenizer, task.name, record.limit, plan.canvas, record.split)  # type: ignore[arg-type]  # checked there
    setup = Setup(denoiser=denoiser, task=task, plan=plan, batch=record.batch)
    with out.progress("recording", len(drawn.items)) as bar:
        size = record_reel(setup, drawn, sampler, record.out, bar.step)
    out.write(
        {
            "out": str(record.out),
            "model": denoiser.name,
            "task": task.name,
            "items": len(drawn.items),
            "canvas": plan.canvas,
            "bytes": size,
        }
    )
    out.line(f"{len(drawn.items)} full runs of {task.name}, {size / 2**20:.1f} MiB in {record.out}")


def replay(replay: ReplayOptions, output: OutputOptions) -> None:
    """What gates would have done on recorded runs: answers and forwards, in seconds, exactly.

    Gates that change the path (latch, bwec, reduced) need live runs: `diffusion bench`.
    """
    from varifocal.diffusion.evaluation.reel import load_reel, replay_reel

    out = Output(output)
    reel = load_reel(replay.recorded)
    with out.progress("replaying", None) as bar:
        found = replay_reel(reel, replay.gates, bar.step)
    out.write({"model": reel.model, "task": reel.task, "items": len(reel.items),
               "rows": [row.to_dict() for row in found]})  # fmt: skip
    out.table(_table(found, f"{reel.task} by {reel.model}, {len(reel.items)} recorded runs"))


def _table(rows: "list[Replayed]", title: str) -> Table:
    table = Table(title=title)
    for name in ("gate", "accuracy", "agreement", "helped", "hurt", "changed", "premature",
                 "exits", "forwards"):  # fmt: skip
        table.add_column(name, justify="left" if name == "gate" else "right")
    for row in rows:
        table.add_row(
            row.gate,
            f"{row.accuracy:.1%}",
            f"{row.agreement:.1%}",
            *(str(count) for count in (row.helped, row.hurt, row.changed)),
            f"{row.premature:.1%}",
            f"{row.exits:.1%}",
            f"{row.nfe:.1f} of {row.nfe_full:.0f}",
        )
    return table
