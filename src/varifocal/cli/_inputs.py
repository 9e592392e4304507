"""From options to requests, engines and lists."""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from varifocal.chat import check_text, read_messages
from varifocal.cli._options import (
    AskOptions,
    DraftingOptions,
    LimitOptions,
    SamplingOptions,
    TargetOptions,
)
from varifocal.cli._output import Output
from varifocal.engine import Engine, find_dtype, load, open_target, parse_options, set_threads
from varifocal.errors import BadOption, BadRequest
from varifocal.evaluation.suites import Case
from varifocal.images import MAX_BYTES, load_image
from varifocal.request import Message, Request
from varifocal.sampling import Sampling
from varifocal.targets._hf import HFTarget


def request_from(
    ask: AskOptions,
    limits: LimitOptions,
    sampling: SamplingOptions,
    *,
    logprobs: int | None = None,
) -> Request:
    """The request that was typed; everything about it that can be checked without the target is."""
    for number, stop in enumerate(limits.stop):
        check_text(stop, f"--stop number {number + 1}")
    limit = limits.max_new_tokens
    return Request(
        messages=_messages(ask),
        max_new_tokens=Request.max_new_tokens if limit is None else limit,
        sampling=sampling_from(sampling),
        stop=tuple(limits.stop),
        logprobs=logprobs,
    )


def sampling_from(options: SamplingOptions) -> Sampling:
    """How tokens are chosen."""
    for number, word in enumerate(options.bad_word):
        check_text(word, f"--bad-word number {number + 1}")
    return Sampling(
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        min_p=options.min_p,
        repetition_penalty=options.repetition_penalty,
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        logit_bias=_biases(options.logit_bias),
        bad_words=tuple(options.bad_word),
        min_new_tokens=options.min_new_tokens,
        seed=options.seed,
    )


def _biases(texts: Sequence[str]) -> dict[int, float]:
    """ID=NUMBER texts of --logit-bias."""
    found: dict[int, float] = {}
    for text in texts:
        token, _, value = text.partition("=")
        try:
            key, number = int(token), float(value)
        except ValueError:
            raise BadOption(
                f"--logit-bias wants a token id and a number such as 42=-5, got {text!r}"
            ) from None
        if key in found:
            raise BadOption(f"--logit-bias gives token {key} twice")
        found[key] = number
    return found


def note_idle(sampling: Sampling, out: Output) -> None:
    """Say which settings of a greedy request change nothing."""
    if idle := sampling.idle_when_greedy:
        names = [name.replace("_", "-") for name in idle]
        listed = " and ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)
        out.note(
            f"{listed} change{'' if names[1:] else 's'} nothing at temperature 0, which takes the "
            "likeliest token"
        )


def is_asked(ask: AskOptions) -> bool:
    """Whether any part of a request was typed."""
    return bool(ask.image) or ask.prompt is not None or ask.messages is not None


def _messages(ask: AskOptions) -> tuple[Message, ...]:
    if ask.messages is not None:
        if ask.prompt is not None or ask.image:
            raise BadOption(
                "--messages holds the whole conversation; leave out --prompt and --image, or put "
                "them into the file"
            )
        return _from_file(ask.messages)
    if ask.prompt is None:
        raise BadOption("there is no question: give --prompt TEXT or --messages FILE.json")
    check_text(ask.prompt, "--prompt")
    if ask.image.count("-") > 1:
        raise BadOption("--image - reads standard input, which can be read only once")
    return (Message("user", (*(_picture(path) for path in ask.image), ask.prompt)),)


def _picture(path: str) -> Image.Image:
    if path != "-":
        return load_image(path)
    if sys.stdin.isatty():
        raise BadOption("--image - reads a picture from standard input; pipe one in")
    return load_image(sys.stdin.buffer.read(MAX_BYTES + 1), name="standard input")


def _from_file(path: Path) -> tuple[Message, ...]:
    """A list of messages, or an object that holds one under `messages`."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise BadRequest(f"there is no file {path}; --messages wants a JSON file") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadRequest(f"--messages {path} cannot be read as JSON: {error}") from error
    if isinstance(raw, dict):
        if unknown := sorted(set(raw) - {"messages"}):
            raise BadRequest(
                f"{path} has the field {', '.join(unknown)}, which is not read from there; only "
                "messages is. Use the options of the command line."
            )
        raw = raw.get("messages")
    return read_messages(raw, path.parent, where=f"{path}: messages")


def engine_from(target: TargetOptions, drafting: DraftingOptions, out: Output) -> Engine:
    """Load what was named; loading may take a while, so it is announced."""
    quiet_transformers()
    drafter = drafting.drafter or None
    with out.busy(f"loading {target.target}"):
        engine = load(
            target.target,
            drafter,
            dtype=str(target.dtype),
            device=target.device,
            threads=target.threads,
            exact_rows=target.exact_rows,
            drafter_options=parse_options(drafter, pairs(drafting.set)),
        )
    if drafter is None and engine.drafter.name == "lookup":
        out.note(
            f"no trained drafter is shipped for {target.target}: drafting by lookup, which copies "
            "from the text"
        )
    return engine


def load_target_from(
    model: TargetOptions, out: Output, *, dtype: torch.dtype | None = None
) -> HFTarget:
    """The target alone; `dtype` is what "auto" means here, if not what suits the device."""
    quiet_transformers()
    if model.threads is not None:
        set_threads(model.threads)
    with out.busy(f"loading {model.target}"):
        return open_target(
            model.target,
            dtype=find_dtype(str(model.dtype)) or dtype,
            device=model.device,
            exact_rows=model.exact_rows,
        )


def ask_earlier_turns(
    cases: Sequence[Case], target: HFTarget, max_new_tokens: int, out: Output
) -> list[Case]:
    """Cases whose conversations have the target's own answers; those without `later` stay."""
    if not any(case.later for case in cases):
        return list(cases)
    from varifocal.evaluation.turns import answered

    with out.progress("asking earlier turns", len(cases)) as bar:
        return answered(cases, target, max_new_tokens, bar.step)


def pairs(texts: Sequence[str]) -> dict[str, str]:
    """KEY=VALUE texts of --set."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise BadOption(f"--set wants KEY=VALUE, got {text!r}")
        if key in found:
            raise BadOption(f"--set gives {key} twice")
        found[key] = value.strip()
    return found


def names(text: str) -> list[str]:
    """Names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def quiet_transformers() -> None:
    """Its progress bars and advice would mix with our words; its errors reach us as exceptions."""
    import transformers

    logging: Any = transformers.utils.logging
    logging.disable_progress_bar()
    logging.set_verbosity_error()


def versions() -> str:
    """The three that decide what is computed."""
    lines = []
    for package in ("varifocal", "torch", "transformers"):
        try:
            lines.append(f"{package} {version(package)}")
        except PackageNotFoundError:  # run from a source tree
            lines.append(f"{package} (not installed)")
    return "\n".join(lines)
