"""`varifocal diffusion generate`, `tasks` and `formats`: an answer, and what can be asked."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from varifocal.chat import check_text
from varifocal.cli._diffusion_options import (
    DecodingOptions,
    DenoiserOptions,
    load_denoiser_from,
)
from varifocal.cli._interrupt import interruptible
from varifocal.cli._options import OutputOptions, Question, Temperature, TextSeed
from varifocal.cli._output import Output
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.diffusion.decode import Decoding
    from varifocal.diffusion.masked import MaskedDenoiser
    from varifocal.diffusion.request import Prompt
    from varifocal.diffusion.result import DiffusionResult, StepRecord
    from varifocal.diffusion.tasks import Item

_CANVAS = 64


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """What is asked: a text, or a question of a task."""

    prompt: Question = None
    prompt_file: Annotated[
        Path | None,
        typer.Option("--prompt-file", metavar="FILE", help="The same from a file in UTF-8."),
    ] = None
    raw: Annotated[
        bool,
        typer.Option("--raw", help="As it is, also where the model has a chat template."),
    ] = False
    task: Annotated[
        str | None,
        typer.Option("--task", metavar="NAME", help="Ask a test question of `diffusion tasks`."),
    ] = None
    number: Annotated[
        int | None, typer.Option("--number", help="Which question of the task; 0 if left out.")
    ] = None
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="How the answer is stated, see `diffusion formats`. If left out: the task's, "
            "else free.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DrawOptions:
    """How a token is chosen."""

    temperature: Temperature = 0.0
    seed: TextSeed = 0


@dataclass(frozen=True, kw_only=True)
class StreamOptions(OutputOptions):
    """What is shown and written, and when."""

    stream: Annotated[
        bool, typer.Option("--stream/--no-stream", help="Show what is committed as it comes.")
    ] = True
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE.png|svg", help="Draw the run: the canvas over its steps."
        ),
    ] = None


def generate(
    ask: AskOptions,
    decoding: DecodingOptions,
    sampling: DrawOptions,
    model: DenoiserOptions,
    output: StreamOptions,
) -> None:
    """Fill a canvas, and stop as soon as the gate says that the answer stands.

    Shown are the spans that each step commits, then the text, the answer, the forwards it took of
    those planned, the positions that were verified, and where the time went. Of the text outside of
    these positions nothing was checked.
    """
    from varifocal.diffusion.evaluation.film import check_place

    out = Output(output)
    item = _item(ask)
    if output.picture is not None:
        check_place(output.picture)
    denoiser = load_denoiser_from(model, model.model, out)
    running = _decoding(denoiser, ask, item, decoding, sampling, is_drawn=bool(output.picture))
    is_cancelled = _run(running, denoiser, out, streams=output.stream)
    (result,) = running.results()
    _show(result, denoiser, item, out)
    out.write(result.to_dict() | _judged(result, item))
    if output.picture is not None and result.steps:
        _draw(result, denoiser, output.picture, out)
    if is_cancelled:
        raise typer.Exit(130)


def _item(ask: AskOptions) -> "Item | None":
    """The task's question, if one was asked for; everything about it is checked at once."""
    from varifocal.diffusion import formats, tasks

    given = [name for name in ("prompt", "prompt_file", "task") if getattr(ask, name) is not None]
    if len(given) != 1:
        raise BadOption(
            "give one of --prompt TEXT, --prompt-file FILE and --task NAME, got "
            f"{' and '.join(f'--{name}'.replace('_', '-') for name in given) or 'none'}"
        )
    if ask.format is not None:
        formats.find(ask.format)
    if ask.number is not None and ask.task is None:
        raise BadOption("--number says which question of --task NAME; leave it out")
    number = ask.number or 0
    if number < 0:
        raise BadOption(f"--number must be 0 or more, got {number}")
    return None if ask.task is None else tasks.find(ask.task).draw(number, "test")


def _decoding(
    denoiser: "MaskedDenoiser",
    ask: AskOptions,
    item: "Item | None",
    options: DecodingOptions,
    sampling: DrawOptions,
    *,
    is_drawn: bool,
) -> "Decoding":
    from varifocal.diffusion import tasks
    from varifocal.diffusion.decode import Decoding
    from varifocal.diffusion.evaluation.bench import find_sampler
    from varifocal.diffusion.evaluation.frozen import find_gate
    from varifocal.diffusion.evaluation.watch import watched
    from varifocal.diffusion.schedule import Plan
    from varifocal.sampling import Sampling

    task = None if item is None else tasks.find(item.task)
    canvas = _CANVAS if task is None else task.canvas
    gate = find_gate(options.gate)
    sampler = find_sampler(options.sampler, denoiser)
    return Decoding(
        denoiser,
        [_prompt(ask, item, denoiser)],
        format=ask.format or ("free" if task is None else task.format),
        plan=Plan(
            canvas=canvas if options.canvas is None else options.canvas,
            block=options.block,
            steps=options.steps,
            caching=options.caching,  # type: ignore[arg-type]  # checked there
        ),
        sampler=sampler,
        gate=watched(gate) if is_drawn else gate,
        sampling=Sampling(temperature=sampling.temperature, seed=sampling.seed),
    )


def _prompt(ask: AskOptions, item: "Item | None", denoiser: "MaskedDenoiser") -> "Prompt":
    """A task's question as it is; another one as the model's chat has it, if it has any."""
    if item is not None:
        return item.prompt
    text = ask.prompt
    if ask.prompt_file is not None:
        try:
            text = ask.prompt_file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise BadOption(f"--prompt-file {ask.prompt_file} cannot be read: {error}") from error
    assert text is not None
    check_text(text, "--prompt")
    if not text.strip():
        raise BadOption("the prompt is empty: there is nothing to answer")
    tokenizer = denoiser.tokenizer
    if ask.raw or tokenizer.chat_template is None:
        return text
    asked = [{"role": "user", "content": text}]
    told = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    return str(told)


# -- shown -------------------------------------------------------------------------------------


def _run(running: "Decoding", denoiser: "MaskedDenoiser", out: Output, *, streams: bool) -> bool:
    """To the end or to Ctrl-C; whether it was Ctrl-C."""
    shows = _Canvas(out, denoiser, running.plan.canvas) if streams else None
    with interruptible(can_wait=True) as interrupt:
        for step in running:
            if shows is not None:
                shows.step(step)
            if interrupt.is_asked:
                running.cancel()
    if shows is not None:
        shows.close()
    return interrupt.is_asked


class _Canvas:
    """The canvas as it fills: repainted on a terminal, else a line for each step."""

    def __init__(self, out: Output, denoiser: "MaskedDenoiser", length: int) -> None:
        self._out, self._decode = out, denoiser.tokenizer.decode
        self._cells = ["·"] * length
        self._live = Live(refresh_per_second=20, transient=True) if out.is_live else None
        if self._live is not None:
            self._live.start()

    def step(self, step: "StepRecord") -> None:
        """What it decided, in the canvas's order."""
        for position, token in zip(step.positions, step.tokens, strict=True):
            self._cells[position] = self._decode([token]).replace("\n", "⏎")
        if self._live is not None:
            self._live.update(self._painted(set(step.positions)))
            return
        spans = " | ".join(
            f"{start}: {self._decode(list(tokens))!r}" for start, tokens in step.spans
        )
        mark = "  whole block" if step.is_early else "  exit" if step.exit else ""
        self._out.line(f"{step.step:4}  {spans}{mark}")

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def _painted(self, news: set[int]) -> Text:
        painted = Text()
        for position, cell in enumerate(self._cells):
            painted.append(cell, style="bold green" if position in news else "")
        return painted


def _show(
    result: "DiffusionResult", denoiser: "MaskedDenoiser", item: "Item | None", out: Output
) -> None:
    out.line(result.text)
    answer = "none found" if result.value is None else result.value
    out.note(f"answer    {answer}{_right(result, item)}")
    ended = {"exit": f"exit at step {result.exit_step}", "filled": "ran to its end"}
    why = f": {result.reason}" if result.reason else ""
    out.note(
        f"forwards  {result.nfe} of {result.planned_steps} planned; "
        f"{ended.get(result.finish, result.finish)}{why}"
    )
    if result.verified_span:
        ids = [result.token_ids[position] for position in result.verified_span]
        first, last = result.verified_span[0], result.verified_span[-1]
        said = denoiser.tokenizer.decode(ids)
        out.note(f"verified  positions {first} to {last}, {said!r}; nothing else was checked")
    seconds = result.seconds
    parts = ", ".join(f"{name} {seconds[name]:.3f}" for name in seconds if name != "total")
    out.note(f"seconds   {seconds['total']:.3f}: {parts}")


def _right(result: "DiffusionResult", item: "Item | None") -> str:
    judged = _judged(result, item)
    if not judged or item is None or not item.reference:
        return ""
    return f" ({'right' if judged['is_right'] else f'wrong: it is {item.reference}'})"


def _judged(result: "DiffusionResult", item: "Item | None") -> dict[str, Any]:
    """Of a task's question, whether the answer is right."""
    if item is None:
        return {}
    from varifocal.diffusion import formats, tasks
    from varifocal.diffusion.evaluation.outcome import is_right

    format = formats.find(tasks.find(item.task).format)
    return {
        "task": item.task,
        "prompt": item.prompt,
        "reference": item.reference,
        "is_right": is_right(result.text, item, format),
    }


def _draw(result: "DiffusionResult", denoiser: "MaskedDenoiser", path: Path, out: Output) -> None:
    from varifocal.diffusion.evaluation.film import film
    from varifocal.evaluation.weighing import write_picture

    write_picture(film(result), path)
    out.note(f"the run is drawn in {path}")


# -- lists -------------------------------------------------------------------------------------


def tasks(output: OutputOptions) -> None:
    """The synthetic tasks: what each asks, in which format, how long its answers are."""
    from varifocal.diffusion import tasks as known

    out = Output(output)
    found = [known.find(name) for name in known.names()]
    rows = [
        {"name": t.name, "format": t.format, "regime": t.regime, "canvas": t.canvas,
         "is_scored": t.is_scored, "example": asdict(t.draw(0, "test"))}
        for t in found
    ]  # fmt: skip
    out.write({"tasks": rows})
    table = Table("task", "format", "answers", "canvas", "scored", "a question", "its answer")
    for task in found:
        item = task.draw(0, "test")
        table.add_row(task.name, task.format, task.regime, str(task.canvas),
                      "yes" if task.is_scored else "no", Text(item.prompt.strip()),
                      Text(item.answer))  # fmt: skip
    out.table(table)


def formats(output: OutputOptions) -> None:
    """The formats in which answers are found and scored."""
    from varifocal.diffusion import formats as known

    out = Output(output)
    found: Sequence[Any] = [known.find(name) for name in known.names()]
    out.write({"formats": [{"name": one.name, "hint": one.hint} for one in found]})
    table = Table("format", "how a prompt may ask for it")
    for one in found:
        table.add_row(one.name, Text(one.hint))
    out.table(table)
