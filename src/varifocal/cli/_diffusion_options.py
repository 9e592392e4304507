"""What the commands of `varifocal diffusion` share: options, and what they name."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from varifocal.cli._inputs import names, quiet_transformers
from varifocal.cli._options import Device, Dtype, Threads
from varifocal.cli._output import Output
from varifocal.engine import find_device, find_dtype, set_threads
from varifocal.errors import BadOption

if TYPE_CHECKING:
    from varifocal.diffusion.masked import MaskedDenoiser

SHIPPED = "llada-tiny,dream-tiny"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions:
    """Where a model runs."""

    dtype: Annotated[
        Dtype, typer.Option("--dtype", help="auto: that of the checkpoint's file.")
    ] = Dtype.AUTO
    device: Device = "auto"
    threads: Threads = None


@dataclass(frozen=True, kw_only=True)
class DenoiserOptions(PlaceOptions):
    """The model that answers, and where it runs."""

    model: Annotated[
        str,
        typer.Option(
            "--model", metavar="llada-tiny|dream-tiny|PATH|ID", help="A diffusion language model."
        ),
    ] = "llada-tiny"


@dataclass(frozen=True, kw_only=True)
class CanvasOptions:
    """What is filled, and in how many steps."""

    canvas: Annotated[
        int | None,
        typer.Option(
            "--canvas", help="Positions. If left out: what the task is meant for, else 64."
        ),
    ] = None
    block: Annotated[
        int,
        typer.Option(
            "--block",
            help="Filled from left to right, in blocks so long; 8 as LLaDA was published for "
            "GSM8K. The canvas's own length is no blocks, as Dream was.",
        ),
    ] = 8
    steps: Annotated[
        int | None, typer.Option("--steps", help="Planned forwards; one a position if left out.")
    ] = None
    caching: Annotated[
        str,
        typer.Option(
            "--caching",
            metavar="none|prefix|dual",
            help="What a step does not compute again: what stands before its block; all but it.",
        ),
    ] = "none"


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(CanvasOptions):
    """How the canvas is filled, and when it is enough."""

    gate: Annotated[
        str,
        typer.Option(
            "--gate",
            metavar="NAME[:KEY=VALUE]",
            help="When to stop: latch, cvc, bwec, full, reduced, eos_stop, prophet, sched, "
            "stable_and_confident; with @tuned behind it, a rival's setting for the tiny models.",
        ),
    ] = "latch"
    sampler: Annotated[
        str,
        typer.Option(
            "--sampler",
            metavar="NAME[:KEY=VALUE]",
            help="Which positions a step commits: own (the order that the model was published "
            "with), low_confidence, entropy, topk_margin, maskgit_plus, origin, random, "
            "threshold, factor, klass.",
        ),
    ] = "own"


def load_denoiser_from(options: PlaceOptions, model: str, out: Output) -> "MaskedDenoiser":
    """A model by what was typed; loading may take a while, so it is announced."""
    from varifocal.diffusion.loading import load_denoiser

    quiet_transformers()
    if options.threads is not None:
        set_threads(options.threads)
    device = str(find_device(options.device))
    with out.busy(f"loading {model}"):
        return load_denoiser(model, dtype=find_dtype(str(options.dtype)), device=device)


def task_names(text: str) -> tuple[str, ...]:
    """Tasks separated by commas, each known and named once; none where the option is left out."""
    from varifocal.diffusion import tasks

    found = tuple(names(text))
    if text.strip() and not found:
        raise BadOption(f"--tasks names no task, got {text!r}; leave it out for all")
    if twice := sorted({name for name in found if found.count(name) > 1}):
        raise BadOption(f"the task {twice[0]} is given twice; give it once")
    for name in found:
        tasks.find(name)
    return found


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Numbers separated by commas."""
    try:
        return tuple(int(part) for part in names(text))
    except ValueError:
        raise BadOption(f"{option} wants numbers separated by commas, got {text!r}") from None
