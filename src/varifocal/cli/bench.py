"""`varifocal bench`: how much faster is each drafter than plain decoding?"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varifocal.cli._inputs import load_target_from, names, sampling_from
from varifocal.cli._options import OutputOptions, SamplingOptions, SuiteOptions, TargetOptions
from varifocal.cli._output import Output
from varifocal.engine import default_drafter, set_threads
from varifocal.errors import BadOption
from varifocal.evaluation.entries import parse_drafters
from varifocal.evaluation.suites import load_suite

if TYPE_CHECKING:
    from varifocal.evaluation.bench import BenchConfig
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
            help="One row each; also hf-generate, hf-prompt-lookup, hf-assistant. Left out: all "
            "that need no training, and fovea where one is shipped.",
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
        typer.Option("--report", metavar="DIR", help="Write a report with tables and figures."),
    ] = None


def bench(
    bench: BenchOptions,
    suite: SuiteOptions,
    sampling: SamplingOptions,
    model: TargetOptions,
    output: OutputOptions,
) -> None:
    """Measure drafters against plain decoding on the same requests.

    CPU time on one thread by default: the figures then hardly depend on what else is running.
    Exit code 1 if a text of one of our drafters differs from the plain one.
    """
    from varifocal.evaluation.bench import run_bench
    from varifocal.evaluation.table import table

    out = Output(output)
    write_report = _report_writer(bench.report)
    preset = _preset(bench.preset)
    threads = 1 if model.threads is None else model.threads
    set_threads(threads)
    limit = preset.get("limit") if suite.limit is None else suite.limit
    cases = load_suite(suite.suite, limit=limit, families=names(suite.families))
    if bench.drafters:
        parse_drafters(bench.drafters)  # what is misspelt is found before the target is loaded
    target = load_target_from(model, out)
    config = _config(bench, suite, sampling, target, preset, threads)
    with out.progress("measuring", len(cases)) as bar:
        result = run_bench(config, cases, target, progress=bar.at)
    out.write(result.to_dict())
    out.table(table(result))
    if write_report is not None:
        write_report(result, bench.report)
        out.note(f"the report is in {bench.report}")
    if not result.is_good:
        raise typer.Exit(1)


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
        drafters=drafters,
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


def _report_writer(folder: Path | None) -> Any:
    """The function that writes the report, found and its folder made before the work."""
    if folder is None:
        return None
    from varifocal.evaluation.report import write_report

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"--report wants a folder, {folder} cannot be one ({error.strerror or error}); name "
            "another"
        ) from error
    return write_report
