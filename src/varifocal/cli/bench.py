"""`varifocal bench`: how much faster is each drafter than plain decoding?"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from varifocal.cli._inputs import ask_earlier_turns, load_target_from, names, sampling_from
from varifocal.cli._options import OutputOptions, SamplingOptions, SuiteOptions, TargetOptions
from varifocal.cli._output import Output
from varifocal.engine import default_drafter, set_threads
from varifocal.errors import BadOption
from varifocal.evaluation.entries import expand_all, parse_drafters, with_model
from varifocal.evaluation.presets import GENERAL, Preset, find_preset, presets
from varifocal.evaluation.suites import load_suite

if TYPE_CHECKING:
    from rich.console import RenderableType

    from varifocal.evaluation.bench import BenchConfig
    from varifocal.evaluation.figures import BenchResult
    from varifocal.evaluation.suites import Case
    from varifocal.targets._hf import HFTarget

_LIST = "list"  # as a preset's name: say which there are
_NONE = Preset(title="nothing preset", limit=0, repeats=3)


@dataclass(frozen=True, kw_only=True)
class RequestOptions(SuiteOptions):
    """The requests to run."""

    suite: Annotated[
        str,
        typer.Option(
            "--suite",
            metavar="demo|scenarios|FILE.jsonl|DIR",
            help="demo: pictures no model was trained on. scenarios: one turn and two, one picture "
            "and more, kinds that no model was trained on. If left out: as the preset says, else "
            "demo.",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """What is measured, and how."""

    drafters: Annotated[
        str,
        typer.Option(
            "--drafters",
            metavar="NAME[:KEY=VALUE],...",
            help="One row each; also hf-generate, hf-prompt-lookup, hf-assistant. all: plain, "
            "auto, lookahead, lookup, every trained one that is shipped for the target, "
            "hf-generate and hf-prompt-lookup. Left out: plain, lookup, and fovea where one is "
            "shipped.",
        ),
    ] = ""
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="Options of a known benchmark; what is typed goes before. "
            f"{' and '.join(GENERAL)}: limit and repeats. tabed-1 to tabed-8: the tables of that "
            "paper. list: say what each measures.",
        ),
    ] = ""
    draft_model: Annotated[
        str,
        typer.Option(
            "--draft-model",
            metavar="ID|PATH",
            help="Small model for the entries with {model}, as of tabed-*. If left out: the one "
            "that is shipped for the target.",
        ),
    ] = ""
    repeats: Annotated[
        int | None, typer.Option("--repeats", help="Runs of each request; the median counts. [3]")
    ] = None
    warm_up: Annotated[
        int, typer.Option("--warm-up", help="Requests that every entry decodes before.")
    ] = 1
    clock: Annotated[
        str, typer.Option("--clock", metavar="cpu|wall", help="CPU time, or elapsed time.")
    ] = "cpu"
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", help="Most tokens of an answer; 0: as the suite says."),
    ] = 0
    assistant: Annotated[
        str, typer.Option("--assistant", metavar="PATH", help="Checkpoint for hf-assistant.")
    ] = ""
    report: Annotated[
        Path | None,
        typer.Option(
            "--report",
            metavar="DIR",
            help="Write a report with tables and figures into a new or empty folder. The runs are "
            "kept there as well: the same command goes on where it was cut off, and only writes "
            "the report anew where all is measured; another command is refused.",
        ),
    ] = None
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Forget the runs that are kept there, and measure all anew."),
    ] = False


def bench(
    bench: BenchOptions,
    suite: RequestOptions,
    sampling: SamplingOptions,
    model: TargetOptions,
    output: OutputOptions,
) -> None:
    """Measure drafters against plain decoding on the same requests.

    CPU time on one thread by default: the figures then hardly depend on what else is running. With
    --report DIR, or --json FILE until that is written, finished runs are kept, and the same
    command goes on after Ctrl-C. Exit code 1 if a text of one of our drafters differs from the
    plain one.
    """
    out = Output(output)
    if bench.preset == _LIST:
        _list_presets(out)
        return
    preset = find_preset(bench.preset) if bench.preset else _NONE
    journal = _journal(bench, output)
    write_report = _report_writer(bench)
    threads = 1 if model.threads is None else model.threads
    set_threads(threads)
    suite = _requests(suite, preset)
    cases = load_suite(
        suite.suite, limit=suite.limit, families=names(suite.families), with_later=True
    )
    drafters = with_model(bench.drafters or preset.drafters, bench.draft_model)
    if drafters:
        parse_drafters(expand_all(drafters))  # what is misspelt is found at once
    target = load_target_from(model, out)
    config = _config(bench, drafters, suite, sampling, target, preset, threads)
    cases = ask_earlier_turns(cases, target, config.max_new_tokens, out)
    result = _measured(config, cases, target, journal, bench.fresh, out)
    if preset.experiment is not None:
        from varifocal.evaluation.outcome import outcome_of

        result = replace(result, outcome=outcome_of(result, preset.experiment))
    out.write(result.to_dict())
    out.table(_table(result))
    if write_report is not None:
        write_report(result, bench.report)
        out.note(f"the report is in {bench.report}")
    elif journal is not None:
        journal.unlink(missing_ok=True)  # the JSON is whole
    if not result.is_good:
        raise typer.Exit(1)


def _journal(bench: BenchOptions, output: OutputOptions) -> Path | None:
    """Where finished runs are kept: in the report's folder, else beside the JSON file."""
    from varifocal.evaluation.report import JOURNAL

    file = None if output.json in (None, "-") else Path(str(output.json))
    if bench.report is not None:
        return bench.report / JOURNAL
    if file is not None and (file.is_file() or not file.exists()):  # no pipe or device
        return file.with_name(f"{file.name}.{JOURNAL}")
    if bench.fresh:
        raise BadOption("--fresh forgets kept runs, which need --report DIR or --json FILE")
    return None


def _measured(
    config: "BenchConfig",
    cases: Sequence["Case"],
    target: "HFTarget",
    journal: Path | None,
    is_fresh: bool,
    out: Output,
) -> "BenchResult":
    """The benchmark run or gone on with; Ctrl-C says what is kept."""
    from varifocal.evaluation.bench import run_bench

    kept: list[int] = []  # requests, first those that were there before
    with out.progress("measuring", len(cases)) as bar:

        def progress(done: int, total: int) -> None:
            if not kept and done:
                rest = "nothing is measured anew" if done == total else "it goes on there"
                out.note(f"{done} of {total} requests are in {journal} already; {rest}")
            kept.append(done)
            bar.at(done, total)

        try:
            return run_bench(
                config, cases, target, progress=progress, journal=journal, is_fresh=is_fresh
            )
        except KeyboardInterrupt:
            said = "nothing is kept without --report DIR or --json FILE"
            if journal is not None:
                said = (
                    f"the runs of {max(kept, default=0)} of {len(cases)} requests are kept in "
                    f"{journal}, and the same command goes on there"
                )
            out.note(f"interrupted; {said}")
            raise typer.Exit(130) from None


def _requests(suite: RequestOptions, preset: Preset) -> RequestOptions:
    """What was typed, and for the rest what the preset says; its families are of its suite."""
    is_its_own = suite.suite in ("", preset.suite)
    limit = preset.limit or None
    return replace(
        suite,
        suite=suite.suite or preset.suite or "demo",
        limit=limit if suite.limit is None else suite.limit,
        families=suite.families or (",".join(preset.families) if is_its_own else ""),
    )


def _table(result: "BenchResult") -> "RenderableType":
    """All rows, or for a paper's table that."""
    from varifocal.evaluation import sheet, table

    if result.outcome is None:
        return table.table(result)
    return sheet.terminal(result.outcome, table.heading(result), list(table.notes(result)))


def _list_presets(out: Output) -> None:
    known = presets()
    out.write({"presets": [{"name": name} | asdict(preset) for name, preset in known.items()]})
    table = Table("preset", "measures", "suite", "requests a family")
    for name, preset in known.items():
        table.add_row(name, preset.title, preset.suite or "as given", str(preset.limit))
    out.table(table)


def _config(
    bench: BenchOptions,
    drafters: str,
    suite: RequestOptions,
    sampling: SamplingOptions,
    target: "HFTarget",
    preset: Preset,
    threads: int,
) -> "BenchConfig":
    from varifocal.evaluation.bench import BenchConfig

    return BenchConfig(
        drafters=expand_all(drafters or _untrained(default_drafter(target)), target),
        suite=suite.suite,
        repeats=preset.repeats if bench.repeats is None else bench.repeats,
        warm_up=bench.warm_up,
        clock=bench.clock,  # type: ignore[arg-type]  # checked there
        threads=threads,
        sampling=sampling_from(sampling),
        seed=sampling.seed,
        max_new_tokens=bench.max_new_tokens or preset.max_new_tokens,
        assistant=bench.assistant,
    )


def _untrained(shipped: str) -> str:
    return ",".join(dict.fromkeys(("plain", "lookup", shipped)))


def _report_writer(bench: BenchOptions) -> Any:
    """The function that writes the report, found and its folder made before the work."""
    if bench.report is None:
        return None
    from varifocal.evaluation.report import claim, write_report

    claim(bench.report, is_fresh=bench.fresh)
    return write_report
