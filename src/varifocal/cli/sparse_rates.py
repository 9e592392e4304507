"""`varifocal sparse rates`: how often each predictor would be right, and what sparse texts say."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varifocal.cli._inputs import names
from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output, check_writable, write_whole
from varifocal.cli._sparse_options import IndexerOptions, ModelOptions, Selectors, model_from
from varifocal.cli._sparse_texts import TextOptions, draw_nested_from
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.sparse.rates import RatesConfig
    from varifocal.targets._hf import HFTarget

_LENGTHS = (2000, 4000, 8000)  # of which those that fit are the default


@dataclass(frozen=True, kw_only=True)
class RateOptions(IndexerOptions):
    """What is measured."""

    selectors: Selectors = "quest,infllm"
    predictors: Annotated[
        str,
        typer.Option(
            "--predictors",
            metavar="A,B",
            help="Left out: all. Averages take a beta: ema:beta=0.9. last is always among them.",
        ),
    ] = ""
    contexts: Annotated[
        str,
        typer.Option(
            "--contexts",
            metavar="N,M",
            help="Tokens that are read first. Left out: 2000, 4000 and 8000, if they fit.",
        ),
    ] = ""
    budgets: Annotated[
        str,
        typer.Option(
            "--budgets", metavar="N,M", help="Tokens that the selector may choose; a run for each."
        ),
    ] = "512"
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens decoded at each place.")] = 64
    first: Annotated[int, typer.Option("--first", help="First tokens that are always kept.")] = 16
    recent: Annotated[int, typer.Option("--recent", help="Newest tokens that are always kept.")] = (
        64
    )
    block_size: Annotated[int, typer.Option("--block-size", help="Tokens of a block.")] = 16
    dense_layers: Annotated[
        int, typer.Option("--dense-layers", help="First layers that attend to everything.")
    ] = 0


@dataclass(frozen=True, kw_only=True)
class RatesOutput(OutputOptions):
    """What is shown and written."""

    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FILE.md", help="Write the tables as Markdown."),
    ] = None
    figure: Annotated[
        Path | None,
        typer.Option("--figure", metavar="FILE.png", help="Draw the hit rates by layer."),
    ] = None


def rates(
    measure: RateOptions, texts: TextOptions, model: ModelOptions, output: RatesOutput
) -> None:
    """Measure how often each predictor's guesses would be right, on long texts.

    Plain sparse attention decodes each text once for each selector and budget; its choices judge
    all predictors at every number of guesses. Nothing is timed. What it says is compared with what
    dense attention says, and with the answers where a text has some.
    """
    from varifocal.evaluation.hit_rates import png, tables
    from varifocal.evaluation.machine import git_commit, machine_info
    from varifocal.sparse.rates import run_rates

    out = Output(output)
    for option, path in (("--report", output.report), ("--figure", output.figure)):
        if path is not None:
            check_writable(path, option)
    if output.figure is not None and output.figure.suffix.lower() != ".png":
        raise BadOption(f"--figure writes .png, got {output.figure}")
    _numbers("--contexts", measure.contexts)  # what is mistyped is found before a model is loaded
    if not _numbers("--budgets", measure.budgets):
        raise BadOption(f"--budgets names none, got {measure.budgets!r}")
    target = model_from(model, out)
    config = _config(measure, target)
    draw = draw_nested_from(texts, target)
    with out.progress("measuring", None) as bar:
        try:
            result = run_rates(config, target, draw, progress=bar.step)
        except KeyboardInterrupt:
            out.note("interrupted; nothing is kept: rates are written once all are measured")
            raise typer.Exit(130) from None
    about: dict[str, Any] = {
        "command": shlex.join(["varifocal", *sys.argv[1:]]),
        "machine": machine_info(target.device),
        "commit": git_commit(),
        "seed": None,  # nothing is drawn: places are spread evenly, answers are greedy
        "target": target.name,
        "dtype": str(target.dtype).removeprefix("torch."),
    }
    made = tables(result)
    out.line(made)
    if output.report is not None:
        write_whole(output.report, f"{_heading(about)}\n\n{made}\n")
    if output.figure is not None:
        output.figure.write_bytes(png(result, target.name))
    out.write(about | result.to_dict())


def _config(measure: RateOptions, target: "HFTarget") -> "RatesConfig":
    from varifocal.sparse.predictors import PREDICTORS
    from varifocal.sparse.rates import RatesConfig
    from varifocal.sparse.selection import Reach

    budgets = _numbers("--budgets", measure.budgets)
    fitting = [n for n in _LENGTHS if n + measure.tokens <= target.context_length]
    contexts = _numbers("--contexts", measure.contexts) or fitting
    selectors = names(measure.selectors)
    return RatesConfig(
        selectors=tuple(selectors),
        indexer=measure.load_indexer(target, selectors),
        predictors=tuple(names(measure.predictors) or PREDICTORS),
        contexts=tuple(contexts or [target.context_length - measure.tokens]),
        budgets=tuple(budgets),
        reach=Reach(
            budget=max(budgets, default=0),
            first=measure.first,
            recent=measure.recent,
            dense_layers=measure.dense_layers,
        ),
        block_size=measure.block_size,
        tokens=measure.tokens,
    )


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(name) for name in names(text)]
    except ValueError:
        raise BadOption(f"{option} wants numbers, got {text!r}") from None


def _heading(about: dict[str, Any]) -> str:
    machine = about["machine"]
    return (
        f"# varifocal sparse rates\n\n`{about['command']}`\n\n{about['target']}, "
        f"{about['dtype']}, {machine['cpu']}, torch {machine['torch']}, transformers "
        f"{machine['transformers']}, commit {about['commit']}; nothing is drawn at random, nothing "
        "is timed."
    )
