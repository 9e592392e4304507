"""`varifocal verify`: are the texts with a drafter those of plain decoding?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from varifocal.cli._inputs import (
    ask_earlier_turns,
    engine_from,
    is_asked,
    names,
    note_idle,
    request_from,
    sampling_from,
)
from varifocal.cli._options import (
    AskOptions,
    DraftingOptions,
    LimitOptions,
    OutputOptions,
    SamplingName,
    SamplingOptions,
    SuiteOptions,
    TargetOptions,
)
from varifocal.cli._output import Output
from varifocal.errors import BadOption
from varifocal.evaluation.compare import Comparison, Mismatch, compare, requests_of
from varifocal.evaluation.suites import Case, load_suite
from varifocal.request import Request


@dataclass(frozen=True, kw_only=True)
class CompareOptions(SuiteOptions):
    """The requests to compare on."""

    sampling: Annotated[
        SamplingName,
        typer.Option("--sampling", help="sampled draws at temperature 1 unless told otherwise."),
    ] = SamplingName.BOTH


def verify(
    suite: CompareOptions,
    ask: AskOptions,
    limits: LimitOptions,
    sampling: SamplingOptions,
    model: TargetOptions,
    drafting: DraftingOptions,
    output: OutputOptions,
) -> None:
    """Run requests plainly and with the drafter, and compare the texts.

    Exit code 0: every text is identical, or in lower precision every difference is a near-tie.
    Exit code 1: one is not. Give --prompt and --image to compare one request of your own.
    """
    out = Output(output)
    cases = _cases(suite, ask, limits, sampling)
    requests = _requests(cases, suite, limits, sampling)  # what is wrong with them is found at once
    if suite.sampling == SamplingName.GREEDY:
        note_idle(replace(sampling_from(sampling), temperature=0.0), out)
    engine = engine_from(model, drafting, out)
    cases = ask_earlier_turns(cases, engine.target, limits.max_new_tokens or 0, out)
    requests = _requests(cases, suite, limits, sampling)
    with out.progress("comparing", len(requests)) as bar:

        def done(request: Request, mismatch: Mismatch | None) -> None:
            bar.step(request.id or None)

        verdict = compare(engine, requests, done)
    out.write(verdict.to_dict())
    _show(verdict, out)
    if not verdict.is_good:
        raise typer.Exit(1)


def _cases(
    suite: CompareOptions, ask: AskOptions, limits: LimitOptions, sampling: SamplingOptions
) -> list[Case]:
    if is_asked(ask):
        if suite.limit is not None or suite.families or suite.suite != "demo":
            raise BadOption("--prompt, --image and --messages ask one thing; leave out the suite")
        request = request_from(ask, limits, sampling)
        return [Case(id="typed", family="typed", request=replace(request, id="typed"))]
    return load_suite(
        suite.suite, limit=suite.limit, families=names(suite.families), with_later=True
    )


def _requests(
    cases: Sequence[Case], suite: CompareOptions, limits: LimitOptions, sampling: SamplingOptions
) -> list[Request]:
    return requests_of(
        cases,
        suite.sampling.value,
        max_new_tokens=limits.max_new_tokens,
        sampling=sampling_from(sampling),
        stop=limits.stop,
    )


def _show(verdict: Comparison, out: Output) -> None:
    for m in verdict.mismatches:
        what = "near-tie" if m.near_tie else "DIFFERENT"
        ended = "a text ended" if min(m.plain, m.drafted) < 0 else "an excluded token"
        margin = ended if m.margin is None else f"margin {m.margin:.3g}"
        kind = "greedy" if m.temperature == 0 else f"temperature {m.temperature:g}"
        out.line(
            f"{m.id or 'request'} ({kind}): {what} at token {m.position}: plain {m.plain}, "
            f"drafted {m.drafted}; {margin}, rounding explains {m.tolerance:.3g}"
        )
    out.line(
        f"{verdict.identical} of {verdict.requests} texts identical in {verdict.dtype}, "
        f"{verdict.near_tie} near-ties, {verdict.different} different"
    )
