"""`varifocal bench`: how much faster is each drafter than plain decoding?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varifocal.cli._inputs import load_target_from, names, sampling_from
from varifocal.cli._options import OutputOptions, SamplingOptions, SuiteOptions, TargetOptions
from varifocal.cli._output import Output
from varifocal.engine import default_drafter, set_threads
from varifocal.errors import BadOption
from varifocal.evaluation.entries import expand_all, parse_drafters
from varifocal.evaluation.suites import load_suite

if TYPE_CHECKING:
    from varifocal.evaluation.bench import BenchConfig
    from varifocal.evaluation.figures import BenchResult
    from varifocal.evaluation.suites import Case
    from varifocal.targets._hf import HFTarget

PRESETS = {  # what is used where an option is left out
    "quick": {"limit": 3, "repeats": 1},
    "full": {"limit": 20, "repeats": 3},
}


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
            "--preset", metavar="NAME", help=f"Sets limit and repeats: {' or '.join(PRESETS)}."
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
    suite: SuiteOptions,
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
    from varifocal.evaluation.table import table

    out = Output(output)
    journal = _journal(bench, output)
    write_report = _report_writer(bench)
    preset = _preset(bench.preset)
    threads = 1 if model.threads is None else model.threads
    set_threads(threads)
    limit = preset.get("limit") if suite.limit is None else suite.limit
    cases = load_suite(suite.suite, limit=limit, families=names(suite.families))
    if bench.drafters:
        parse_drafters(expand_all(bench.drafters))  # what is misspelt is found at once
    target = load_target_from(model, out)
    config = _config(bench, suite, sampling, target, preset, threads)
    result = _measured(config, cases, target, journal, bench.fresh, out)
    out.write(result.to_dict())
    out.table(table(result))
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


def _config(
    bench: BenchOptions,
    suite: SuiteOptions,
    sampling: SamplingOptions,
    target: "HFTarget",
    preset: dict[str, int],
    threads: int,
) -> "BenchConfig":
    from varifocal.evaluation.bench import BenchConfig

    drafters = bench.drafters or _untrained(default_drafter(target))
    return BenchConfig(
        drafters=expand_all(drafters, target),
        suite=suite.suite,
        repeats=preset.get("repeats", 3) if bench.repeats is None else bench.repeats,
        warm_up=bench.warm_up,
        clock=bench.clock,  # type: ignore[arg-type]  # checked there
        threads=threads,
        sampling=sampling_from(sampling),
        seed=sampling.seed,
        max_new_tokens=bench.max_new_tokens,
        assistant=bench.assistant,
    )


def _untrained(shipped: str) -> str:
    return ",".join(dict.fromkeys(("plain", "lookup", shipped)))


def _preset(name: str) -> dict[str, int]:
    if name and name not in PRESETS:
        raise BadOption(f"there is no preset {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS.get(name, {})


def _report_writer(bench: BenchOptions) -> Any:
    """The function that writes the report, found and its folder made before the work."""
    if bench.report is None:
        return None
    from varifocal.evaluation.report import claim, write_report

    claim(bench.report, is_fresh=bench.fresh)
    return write_report
