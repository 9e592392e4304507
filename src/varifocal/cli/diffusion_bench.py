"""`varifocal diffusion bench` and `tune`: what gates keep and what they save."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from varifocal.cli._diffusion_options import (
    SHIPPED,
    DenoiserOptions,
    PlaceOptions,
    load_denoiser_from,
    numbers,
    task_names,
)
from varifocal.cli._inputs import names
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output, check_writable, write_whole
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.diffusion.evaluation.bench import BenchConfig, BenchResult
    from varifocal.diffusion.evaluation.cells import Cells
    from varifocal.diffusion.evaluation.tune import Tuning
    from varifocal.diffusion.masked import MaskedDenoiser


@dataclass(frozen=True, kw_only=True)
class RowOptions:
    """What is compared."""

    models: Annotated[
        str, typer.Option("--models", metavar="NAME|PATH|ID,...", help="Diffusion language models.")
    ] = SHIPPED
    tasks: Annotated[
        str, typer.Option("--tasks", metavar="A,B", help="Left out: all, see `diffusion tasks`.")
    ] = ""
    gates: Annotated[
        str,
        typer.Option(
            "--gates",
            metavar="NAME[:KEY=VALUE],...",
            help="Rows; full and latch are always there. reduced: as many steps as latch needs "
            "forwards. @tuned behind a rival: its tuned thresholds. all: also the published ones. "
            "Left out: each rival at its best.",
        ),
    ] = ""
    samplers: Annotated[
        str,
        typer.Option(
            "--samplers",
            metavar="NAME[:KEY=VALUE],...",
            help="Each with all gates; the first one makes the baseline. own: the order that the "
            "model was published with.",
        ),
    ] = "own,threshold"
    canvas: Annotated[
        str,
        typer.Option("--canvas", metavar="N,M", help="Left out: what each task is meant for."),
    ] = ""
    block: Annotated[
        str,
        typer.Option(
            "--block",
            metavar="N,M",
            help="Length of the blocks, for all rows alike; with several each place is measured "
            "with each.",
        ),
    ] = "8"
    caching: Annotated[
        str, typer.Option("--caching", metavar="none|prefix|dual", help="For all rows alike.")
    ] = "none"


@dataclass(frozen=True, kw_only=True)
class MeasureOptions:
    """On how much, and by which clock."""

    limit: Annotated[int, typer.Option("--limit", help="Questions of each task.")] = 20
    skip: Annotated[
        int, typer.Option("--skip", help="Questions before the first, for some not seen yet.")
    ] = 0
    rivals: Annotated[
        int | None,
        typer.Option(
            "--rivals",
            help="Of these, for all methods but full, latch, cvc, eos_stop and oracle; all if left "
            "out.",
        ),
    ] = None
    timed_items: Annotated[
        int | None,
        typer.Option(
            "--timed-items", help="Of these, questions that are also timed. [5, or all of fewer]"
        ),
    ] = None
    batch: Annotated[int, typer.Option("--batch", help="Questions decoded together.")] = 16
    split: Annotated[
        str, typer.Option("--split", metavar="test|valid", help="Which questions.")
    ] = "test"
    clock: Annotated[
        str, typer.Option("--clock", metavar="cpu|wall", help="CPU time, or elapsed time.")
    ] = "cpu"
    seed: Annotated[int, typer.Option("--seed", help="Of the intervals.")] = 0


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OutputOptions):
    """What is shown and written."""

    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Write a report with tables and figures. What is measured is kept there piece by "
            "piece: commands that share the folder share their pieces, so that a long benchmark "
            "can be run in parts.",
        ),
    ] = None
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what is kept there, and measure all anew.")
    ] = False


def bench(
    rows: RowOptions, measure: MeasureOptions, place: PlaceOptions, output: ReportOptions
) -> None:
    """Measure gates and samplers against full decoding: answers, forwards and seconds.

    Each question is decoded to its end once; gates that only stop are replayed on that, the others
    run live. Speed-ups are never computed: some questions are decoded one by one with everything
    in turn. With --report DIR, or --json FILE until that is written, finished pieces are kept, and
    the same command goes on after Ctrl-C. Exit code 1 if a replay or a batch is not what the live
    run alone is, or a row of a canvas is left undecided.
    """
    out = Output(output)
    config = _config(rows, measure, place)
    cells = _cells(output)
    denoisers = [load_denoiser_from(place, name, out) for name in _models(rows.models)]
    result = _measured(config, denoisers, cells, out)
    _show(result, out)
    if output.report is not None:
        from varifocal.diffusion.evaluation.report import write_report

        write_report(result, output.report)
        out.note(f"the report is in {output.report}")
    out.write(result.to_dict())
    if output.report is None and cells.folder is not None:
        cells.forget()  # the JSON is whole
    if not result.is_good:
        out.note("a replayed, batched or unfinished run is not what it must be; please report it")
        raise typer.Exit(1)


def _config(rows: RowOptions, measure: MeasureOptions, place: PlaceOptions) -> "BenchConfig":
    from varifocal.diffusion.evaluation.bench import BenchConfig
    from varifocal.diffusion.evaluation.methods import DEFAULT, parse_methods

    asked = task_names(rows.tasks)
    parse_methods(rows.gates)  # what is mistyped is found before a model is loaded
    return BenchConfig(
        tasks=asked,
        gates=rows.gates or DEFAULT,
        samplers=rows.samplers,
        canvases=numbers(rows.canvas, "--canvas"),
        blocks=numbers(rows.block, "--block"),
        caching=rows.caching,  # type: ignore[arg-type]  # checked there
        limit=measure.limit,
        skip=measure.skip,
        rivals=measure.rivals,
        timed=min(5, measure.limit) if measure.timed_items is None else measure.timed_items,
        batch=measure.batch,
        split=measure.split,  # type: ignore[arg-type]  # checked there
        clock=measure.clock,  # type: ignore[arg-type]  # checked there
        threads=1 if place.threads is None else place.threads,
        seed=measure.seed,
    )


def _models(text: str) -> list[str]:
    found = names(text)
    if not found:
        raise BadOption("--models names no model")
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise BadOption(f"the model {twice[0]} is given twice; give it once")
    return found


def _cells(output: ReportOptions) -> "Cells":
    """Where pieces are kept: in the report's folder, else beside the JSON file, else nowhere."""
    from varifocal.diffusion.evaluation.cells import Cells
    from varifocal.diffusion.evaluation.report import claim

    if output.report is not None:
        return Cells(claim(output.report, is_fresh=output.fresh), is_fresh=output.fresh)
    file = None if output.json in (None, "-") else Path(str(output.json))
    if file is not None and (file.is_file() or not file.exists()):  # no pipe or device
        return Cells(file.with_name(f"{file.name}.cells"), is_fresh=output.fresh)
    if output.fresh:
        raise BadOption("--fresh forgets kept pieces, which need --report DIR or --json FILE")
    return Cells()


def _measured(
    config: "BenchConfig", denoisers: "list[MaskedDenoiser]", cells: "Cells", out: Output
) -> "BenchResult":
    from varifocal.diffusion.evaluation.bench import run_bench

    at = [0, 0]
    with out.progress("measuring", None) as bar:

        def progress(done: int, total: int, label: str) -> None:
            at[:] = [done, total]
            bar.at(done, total, label)

        with _told_if_interrupted(cells, out, "--report DIR", lambda: f"{at[0]} of {at[1]}"):
            result = run_bench(config, denoisers, cells=cells, progress=progress)
    if cells.num_found:
        out.note(f"{cells.num_found} pieces were in {cells.folder} already")
    return result


def _show(result: "BenchResult", out: Output) -> None:
    from varifocal.diffusion.evaluation.summary import story
    from varifocal.diffusion.evaluation.table import notes, tables

    for table in tables(result):
        out.table(table)
    told = [*story(result.rows, result.summaries), result.frozen, *notes(result)]
    for sentence in told:
        out.line(sentence)


# -- tune --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """On what settings are chosen, and what they may hurt."""

    tasks: Annotated[
        str, typer.Option("--tasks", metavar="A,B", help="Two: one short, one long.")
    ] = "lookup,chain"
    canvas: Annotated[
        str,
        typer.Option(
            "--canvas", metavar="N,M", help="One for each; left out: what they are meant for."
        ),
    ] = ""
    block: Annotated[int, typer.Option("--block", help="Length of the blocks.")] = 8
    samplers: Annotated[
        str,
        typer.Option(
            "--samplers", metavar="A,B", help="Recorded with each. own: that of the model's family."
        ),
    ] = "own,threshold"
    limit: Annotated[int, typer.Option("--limit", help="Questions of each task.")] = 400
    split: Annotated[
        str, typer.Option("--split", metavar="valid|train", help="Which questions.")
    ] = "valid"
    loss: Annotated[
        float,
        typer.Option("--loss", metavar="POINTS", help="Answers of a hundred that may be hurt."),
    ] = 0.5
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE.json",
            help="Write the settings and where they are from. Until then, or until --json FILE is "
            "written, finished pieces are kept beside it, and the same command goes on.",
        ),
    ] = None


def tune(tune: TuneOptions, model: DenoiserOptions, output: OutputOptions) -> None:
    """Choose the thresholds of every gate on the same questions, by the same rule.

    Of a gate's settings that hurt no more than --loss points of the right answers on any of the
    tasks, the one with the fewest forwards is chosen. bwec changes the path and cannot be replayed:
    its settings run live beside the setting that was chosen for cvc, as latch.
    """
    from varifocal.diffusion.evaluation.bench import find_samplers
    from varifocal.diffusion.evaluation.tune import TuneConfig
    from varifocal.diffusion.evaluation.tune import tune as choose

    out = Output(output)
    if tune.limit < 1:
        raise BadOption(f"--limit must be at least 1, got {tune.limit}")
    if tune.out is not None:
        check_writable(tune.out, "--out")
    if tune.split == "test":
        raise BadOption("settings must not be chosen on what they are tested on; take valid")
    asked = TuneConfig(
        tasks=tuple(names(tune.tasks)),
        split=tune.split,  # type: ignore[arg-type]  # checked there
        limit=tune.limit,
        canvases=numbers(tune.canvas, "--canvas"),
        block=tune.block,
        loss=tune.loss,
    )
    denoiser = load_denoiser_from(model, model.model, out)
    samplers = tuple(sampler.text for sampler in find_samplers(tune.samplers, denoiser))
    config = replace(asked, samplers=samplers)
    cells = _kept(tune.out or output.json)
    with (
        out.progress("trying settings", None) as bar,
        _told_if_interrupted(cells, out, "--out FILE"),
    ):
        tuning = choose(config, denoiser, done=bar.at, cells=cells)
    out.table(_tuned(tuning))
    if tune.out is not None:
        write_whole(tune.out, f"{json.dumps(tuning.frozen(), indent=1)}\n")
    out.write(asdict(tuning) | {"frozen": tuning.frozen()})
    cells.forget()  # all is written


def _kept(file: "Path | str | None") -> "Cells":
    """Pieces beside a file that is to be written; in memory where there is none."""
    from varifocal.diffusion.evaluation.cells import Cells

    path = None if file in (None, "-") else Path(str(file))
    if path is None or (path.exists() and not path.is_file()):  # a pipe or a device
        return Cells()
    return Cells(path.with_name(f"{path.name}.cells"))


@contextmanager
def _told_if_interrupted(
    cells: "Cells", out: Output, option: str, done: Callable[[], str] = lambda: "finished"
) -> Iterator[None]:
    """Say what is kept, and what would have kept it: `option`, or --json."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"nothing is kept without {option} or --json FILE"
        if cells.folder is not None:
            kept = f"{done()} pieces are in {cells.folder}; the same command goes on"
        out.note(f"interrupted; {kept}")
        raise typer.Exit(130) from None


def _tuned(tuning: "Tuning") -> Table:
    told = tuning.provenance
    on, by = " and ".join(told["tasks"]), " and ".join(told["samplers"])
    table = Table(title=f"{told['model']}: chosen on {told['items']} questions each of {on}, {by}")
    for name in ("gate", "tried", "setting", "hurt", "forwards", "as published: hurt", "forwards"):
        table.add_column(name, justify="left" if name in ("gate", "setting") else "right")
    for gate, trial in tuning.chosen.items():
        before = tuning.published[gate]
        figures = [
            text
            for one in (trial, before)
            for text in (
                " / ".join(f"{100 * share:.1f}" for share in one.hurt),
                " / ".join(f"{share:.1%}" for share in one.nfe_share),
            )
        ]
        table.add_row(gate, str(told["settings_tried"][gate]), trial.setting, *figures)
    return table
