"""`varifocal sparse bench`: speed, hit rates and equal texts, by selector, predictor and length."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varifocal.cli._inputs import names
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output, check_writable, write_whole
from varifocal.cli._sparse_options import (
    IndexerOptions,
    ModelOptions,
    ReachOptions,
    Selectors,
    model_from,
    queues_from,
)
from varifocal.cli._sparse_texts import TextOptions, draw_from
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.sparse.bench import BenchConfig, Row
    from varifocal.targets._hf import HFTarget

_LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)  # of which the longest that fit are the default


@dataclass(frozen=True, kw_only=True)
class MeasureOptions(ReachOptions, IndexerOptions):
    """What is measured, and how far queries see meanwhile."""

    budget: Annotated[
        int, typer.Option("--budget", help="Tokens that the selector may choose.")
    ] = 512
    selectors: Selectors = "quest,infllm"
    predictors: Annotated[
        str,
        typer.Option("--predictors", metavar="A,B", help="last is measured beside them always."),
    ] = "last,ema"
    contexts: Annotated[
        str,
        typer.Option(
            "--contexts",
            metavar="N,M",
            help="Tokens that are read first. Left out: the two longest powers of 2 that fit.",
        ),
    ] = ""
    guesses: Annotated[
        float, typer.Option("--guesses", help="For each block that will be chosen.")
    ] = 1.0
    tokens: Annotated[int, typer.Option("--tokens", help="Timed tokens of a text.")] = 32
    warm_up: Annotated[int, typer.Option("--warm-up", help="Tokens before any is timed.")] = 4
    free: Annotated[
        bool,
        typer.Option(
            "--free", help="Let the model go on with its own words rather than read the text's."
        ),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ReportOptions(OutputOptions):
    """What is shown and written."""

    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.md", help="Write the table as Markdown."),
    ] = None


def bench(
    measure: MeasureOptions, texts: TextOptions, model: ModelOptions, output: ReportOptions
) -> None:
    """Decode long texts densely, sparsely and with PRR, all in turn at every token.

    Speeds are of elapsed time: medians, with the slow and the fast tenth. PRR comes thrice: on one
    thread, on two, and on two with no more guesses than pay. Exit code 1 if one of its logits is
    not that of plain sparse attention, bit for bit.
    """
    from varifocal.evaluation.machine import git_commit, machine_info
    from varifocal.sparse.bench import run_bench

    out = Output(output)
    if output.report is not None:
        check_writable(output.report, "--report")
    if not names(measure.selectors):
        raise BadOption(f"--selectors names none, got {measure.selectors!r}")
    measure.reach()
    target = model_from(model, out)
    config = _config(measure, target)
    draw = draw_from(texts, target)
    with out.progress("measuring", None) as bar, queues_from(model, target.device) as queues:
        result = run_bench(config, target, draw, queues=queues, progress=bar.step)
    about: dict[str, Any] = {
        "machine": machine_info(target.device),
        "commit": git_commit(),
        "clock": "wall",
        "target": target.name,
        "dtype": str(target.dtype).removeprefix("torch."),
        "queues": type(queues).__name__,
    }
    table = markdown(result.rows)
    out.line(table)
    if output.report is not None:
        write_whole(output.report, f"{_heading(about)}\n\n{table}\n")
    out.write(about | result.to_dict())
    if not result.is_good:
        out.note("PRR differs from plain sparse attention; please report it")
        raise typer.Exit(1)


def _config(measure: MeasureOptions, target: "HFTarget") -> "BenchConfig":
    from varifocal.sparse.bench import BenchConfig

    after = measure.tokens + measure.warm_up
    fitting = [n for n in _LENGTHS if n + after <= target.context_length]
    try:
        asked = [int(name) for name in names(measure.contexts)]
    except ValueError:
        raise BadOption(f"--contexts wants numbers, got {measure.contexts!r}") from None
    selectors = names(measure.selectors)
    contexts = asked or fitting[-2:] or [target.context_length - after]
    return BenchConfig(
        selectors=tuple(selectors),
        indexer=measure.load_indexer(target, selectors),
        predictors=tuple(names(measure.predictors)),
        contexts=tuple(contexts),
        reach=measure.reach(),
        block_size=measure.block_size,
        kernel=measure.kernel,
        share=measure.guesses,
        tokens=measure.tokens,
        warm_up=measure.warm_up,
        follows=not measure.free,
    )


def _heading(about: dict[str, Any]) -> str:
    machine = about["machine"]
    return (
        f"# varifocal sparse bench\n\n{about['target']}, {about['dtype']}, {machine['cpu']}, "
        f"{machine['threads']} torch thread a queue, torch {machine['torch']}, commit "
        f"{about['commit']}. Tokens a second of elapsed time: median (slow tenth to fast tenth). "
        "Hit rates beside those of the last choice. Saved: of the select-and-attend window and of "
        "the whole token, against plain sparse attention; CPU time likewise, which other work on "
        "the machine hardly disturbs."
    )


def markdown(rows: "Sequence[Row]") -> str:
    """A table, one row for each selector, predictor and length."""
    from varifocal.sparse.contest import DENSE, GUARDED, PARALLEL, PLAIN, SERIAL

    head = (
        *("selector", "predictor", "context", "dense", "plain sparse", "PRR, 1 thread"),
        *("PRR, 2 threads", "PRR, guarded", "hit rate (last)", "repaired", "saved: window"),
        *("token", "guarded: window", "token", "its CPU time", "identical", "as dense"),
    )
    lines = [head, ("---",) * len(head)]
    for row in rows:
        made = row.to_dict()
        saved = [made["saved"][way] for way in (PARALLEL, GUARDED)]
        lines.append(
            (
                row.selector,
                row.predictor,
                str(row.context),
                *(_speed(row.speed(way)) for way in (DENSE, PLAIN, SERIAL, PARALLEL, GUARDED)),
                f"{_share(made['hit_rate'])} ({_share(made['hit_rate_last'])})",
                str(made["repaired_blocks"]),
                *(f"{part[key]:+.1%}" for part in saved for key in ("window", "token")),
                f"{row.work(GUARDED) / row.work(PLAIN) - 1:+.1%}",
                f"{row.identical}/{row.identical + row.different}",
                _share(row.agreement),
            )
        )
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _speed(speed: dict[str, float]) -> str:
    return f"{speed['median']:.1f} ({speed['p10']:.1f}–{speed['p90']:.1f})"


def _share(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1%}"
