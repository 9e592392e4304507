"""The sections of options that commands share: names, help, defaults."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

# Options that stand in sections of several commands, in the same words.
Question = Annotated[str | None, typer.Option("--prompt", metavar="TEXT", help="The question.")]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the likeliest token.")]
TextSeed = Annotated[int, typer.Option("--seed", help="The same seed gives the same text.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:1, ...")]
Threads = Annotated[
    int | None, typer.Option("--threads", help="CPU threads; torch's choice if left out.")
]


class Dtype(StrEnum):
    """Number types of the target."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class SamplingName(StrEnum):
    """Which decoding `verify` compares."""

    GREEDY = "greedy"
    SAMPLED = "sampled"
    BOTH = "both"


@dataclass(frozen=True, kw_only=True)
class AskOptions:
    """What is asked."""

    image: Annotated[
        list[str],
        typer.Option(
            "--image", metavar="PATH", help="A picture, or - for standard input. Repeatable."
        ),
    ] = field(default_factory=list)
    prompt: Question = None
    messages: Annotated[
        Path | None,
        typer.Option(
            "--messages",
            metavar="FILE.json",
            help="A conversation in OpenAI's chat format, instead of --prompt and --image.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """When to stop."""

    max_new_tokens: Annotated[
        int | None,  # None: not typed, so that a suite's own limits hold
        typer.Option(
            "--max-new-tokens",
            help="Most tokens of an answer. If left out: as a suite says, else 256.",
        ),
    ] = None
    stop: Annotated[
        list[str],
        typer.Option("--stop", metavar="TEXT", help="End before this text. Repeatable."),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How a token is chosen."""

    temperature: Temperature = 0.0
    top_k: Annotated[
        int, typer.Option("--top-k", help="Draw from the k likeliest tokens; 0: from all.")
    ] = 0
    top_p: Annotated[
        float, typer.Option("--top-p", help="Draw from the fewest tokens with this mass.")
    ] = 1.0
    min_p: Annotated[
        float,
        typer.Option(
            "--min-p", help="Draw from tokens at least this fraction as likely as the likeliest."
        ),
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        typer.Option(
            "--repetition-penalty",
            help="Above 1: against tokens of the prompt and the answer, as in transformers.",
        ),
    ] = 1.0
    presence_penalty: Annotated[
        float,
        typer.Option(
            "--presence-penalty", help="From -2 to 2: against tokens that the answer has."
        ),
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        typer.Option(
            "--frequency-penalty", help="From -2 to 2: the same, for each time it has them."
        ),
    ] = 0.0
    logit_bias: Annotated[
        list[str],
        typer.Option(
            "--logit-bias",
            metavar="ID=NUMBER",
            help="Make a token likelier or, below 0, less likely; from -100 to 100. Repeatable.",
        ),
    ] = field(default_factory=list)
    bad_word: Annotated[
        list[str],
        typer.Option(
            "--bad-word",
            metavar="TEXT",
            help="Never write this as the tokenizer splits it, with or without a space before it. "
            "Repeatable.",
        ),
    ] = field(default_factory=list)
    min_new_tokens: Annotated[
        int,
        typer.Option(
            "--min-new-tokens", help="Tokens before an end token may come; --stop may end sooner."
        ),
    ] = 0
    seed: TextSeed = 0


@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """The model that answers, and where it runs."""

    target: Annotated[
        str,
        typer.Option(
            "--target", metavar="ID|PATH|demo", help="The model; demo is the embedded one."
        ),
    ] = "demo"
    dtype: Annotated[
        Dtype,
        typer.Option("--dtype", help="auto: bfloat16 where the device computes it natively."),
    ] = Dtype.AUTO
    device: Device = "auto"
    threads: Threads = None
    exact_rows: Annotated[
        bool | None,
        typer.Option(
            "--exact-rows/--no-exact-rows",
            help="Logits that are bit-equal for plain and drafted forwards. If left out: on a "
            "CPU below float32, where it costs a sixth.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DraftingOptions:
    """What guesses for it."""

    drafter: Annotated[
        str,
        typer.Option(
            "--drafter",
            metavar="NAME|PATH|plain|auto",
            help="Left out: fovea where one is shipped for the target, else lookup. auto: each "
            "round the one that pays best, with copied text grafted in.",
        ),
    ] = ""
    set: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="An option of the drafter. Repeatable."),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """The requests to run."""

    suite: Annotated[
        str,
        typer.Option(
            "--suite", metavar="demo|FILE.jsonl|DIR", help="demo: pictures no model was trained on."
        ),
    ] = "demo"
    limit: Annotated[int | None, typer.Option("--limit", help="Requests a family.")] = None
    families: Annotated[
        str, typer.Option("--families", metavar="A,B", help="Only these families.")
    ] = ""


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is shown and written."""

    json: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="[FILE|-]", help="Write the result as JSON; - is standard output."
        ),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress, notes or summary.")] = False
    debug: Annotated[
        bool, typer.Option("--debug", help="Log, and show where errors come from.")
    ] = False
