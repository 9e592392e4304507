"""`varifocal generate`: answer one request."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

from varifocal.cli._inputs import engine_from, note_idle, request_from
from varifocal.cli._options import (
    AskOptions,
    DraftingOptions,
    LimitOptions,
    OutputOptions,
    SamplingOptions,
    TargetOptions,
)
from varifocal.cli._output import Output
from varifocal.decode import Generation
from varifocal.drafter import Drafter
from varifocal.errors import BadOption
from varifocal.request import check_n
from varifocal.result import GenerationResult, Round


@dataclass(frozen=True, kw_only=True)
class StreamOptions(OutputOptions):
    """What is shown and written, and when."""

    stream: Annotated[bool, typer.Option("--stream/--no-stream", help="Show text as it comes.")] = (
        True
    )
    weights_plot: Annotated[
        Path | None,
        typer.Option(
            "--weights-plot",
            metavar="FILE.png|svg",
            help="Draw what each view weighed along the answer; for --drafter ensemble.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class AnswerOptions:
    """How much is answered."""

    n: Annotated[
        int | None,  # None: not typed, so that the JSON has no list of answers
        typer.Option("--n", help="Answers to give; the prompt is read once. Each has a next seed."),
    ] = None
    logprobs: Annotated[
        int | None,
        typer.Option(
            "--logprobs",
            metavar="K",
            help="Log-probs of the answer's tokens before any setting, with the K best; 0: alone.",
        ),
    ] = None


def generate(
    ask: AskOptions,
    limits: LimitOptions,
    sampling: SamplingOptions,
    answers: AnswerOptions,
    model: TargetOptions,
    drafting: DraftingOptions,
    output: StreamOptions,
) -> None:
    """Answer a question about pictures.

    The text is the one that plain decoding gives, whatever the drafter. Ctrl-C keeps what has come.
    """
    out = Output(output)
    request = request_from(ask, limits, sampling, logprobs=answers.logprobs)
    n = check_n(1 if answers.n is None else answers.n)
    if output.weights_plot is not None:
        check_plot(output.weights_plot, n)
    note_idle(request.sampling, out)
    if n > 1 and sampling.temperature == 0:
        out.note(f"at temperature 0 all {n} answers are the same")
    engine = engine_from(model, drafting, out)
    if output.weights_plot is not None:
        check_drafter(engine.drafter)
    results = []
    is_cancelled = False
    for number, generation in enumerate(engine.answers(request, n), start=1):
        if n > 1:
            out.line(f"[{number}]", style="dim")
        is_cancelled = _decode(generation, out, streams=output.stream)
        results.append(_shown(generation, out, streams=output.stream))
        if output.weights_plot is not None and generation.rounds:
            write_plot(generation, output.weights_plot, out)
        if is_cancelled:
            break
    first = results[0].to_dict()
    listed = {} if answers.n is None else {"answers": [r.to_dict() for r in results]}
    out.write(first | listed)
    if is_cancelled:
        raise typer.Exit(130)


def _shown(generation: Generation, out: Output, *, streams: bool) -> GenerationResult:
    """The result, once what is left to show of it has been shown."""
    result = finished(generation)
    shown = sum(len(decided.text) for decided in generation.rounds) if streams else 0
    out.line(result.text[shown:])  # of a cancelled text, what could have become a stop text
    for entry in result.logprobs or ():
        best = [(entry.token, entry.logprob), *entry.best]
        words = [f"{value:.4f} {generation.target.decode([token])!r}" for token, value in best]
        out.line("  ".join(words[:1] + (["|", *words[1:]] if entry.best else [])))
    out.note(summary(result))
    return result


def _decode(generation: Generation, out: Output, *, streams: bool) -> bool:
    """Run to the end or to Ctrl-C; whether it was Ctrl-C."""
    with interruptible() as interrupt:
        try:
            for decided in generation:
                if streams:
                    out.piece(decided.text)
                if interrupt.is_asked:
                    break
                interrupt.can_wait = True
        except KeyboardInterrupt:
            interrupt.is_asked = True
    return interrupt.is_asked


@dataclass
class Interrupt:
    """Ctrl-C during a generation: a round is finished first, so that text and counts agree."""

    is_asked: bool = False
    can_wait: bool = False  # a round is short; the prefill may not be

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler. A second Ctrl-C does not wait."""
        if self.is_asked or not self.can_wait:
            raise KeyboardInterrupt
        self.is_asked = True


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Take over Ctrl-C for a while. Only the main thread can, and not where it is ignored."""
    interrupt = Interrupt()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None):
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, before)


def check_drafter(drafter: Drafter[Any]) -> None:
    """Before the work: whether it has weights to draw."""
    from varifocal.evaluation import weighing

    weighing.check_drafter(drafter)


def check_plot(path: Path, n: int) -> None:
    """Before the work: whether a picture of one answer can be written there."""
    from varifocal.evaluation.weighing import check_place

    if n > 1:
        raise BadOption(f"--weights-plot draws one answer, and --n asks for {n}; leave one out")
    check_place(path)


def write_plot(generation: Generation, path: Path, out: Output) -> None:
    """What the views weighed along an answer."""
    from varifocal.evaluation.weighing import drawing, weighing_of, write_picture

    write_picture(drawing(weighing_of(generation)), path)
    out.note(f"the weights are drawn in {path}")


def finished(generation: Generation) -> GenerationResult:
    """The result, also of a generation that was cancelled before its first token."""
    if generation.rounds:
        return generation.result()
    return GenerationResult(
        text="",
        token_ids=[],
        finish_reason="cancelled",
        prompt_tokens=len(generation.prompt.tokens),
        image_tokens=int(generation.prompt.is_image.sum()),
        prefill=Round(tokens=[], text="", is_prefill=True),
        rounds=[],
        drafter=generation.drafter.name,
        target=generation.target.name,
        logprobs=None if generation.request.logprobs is None else [],
    )


def summary(result: GenerationResult) -> str:
    """One line on how it went."""
    seconds = result.seconds["decode"]
    rate = f", {(len(result.token_ids) - 1) / seconds:.0f} tokens/s" if result.rounds else ""
    line = (
        f"{result.drafter} on {result.target}: {len(result.token_ids)} tokens, "
        f"{result.num_spec_steps} target forwards after the prefill, "
        f"tau {result.mean_acceptance_length:.2f}{rate}; ended by {result.finish_reason}"
    )
    return f"{line}\n{result.fallback}" if result.fallback else line
