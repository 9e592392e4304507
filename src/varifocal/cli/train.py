"""`varifocal train`: fit a drafter to what was recorded of its target."""

import shlex
import signal
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import torch
import typer

from varifocal.cli._inputs import load_target_from, pairs
from varifocal.cli._interrupt import interruptible
from varifocal.cli._options import OutputOptions, TargetOptions
from varifocal.cli._output import Output
from varifocal.drafters import drafter_class
from varifocal.engine import parse_options
from varifocal.errors import BadOption, DrafterMismatch
from varifocal.evaluation.suites import load_suite
from varifocal.request import Request
from varifocal.training._evaluation import ShouldStop, Stopped
from varifocal.training._files import check_folder, check_no_recording, make_folder

if TYPE_CHECKING:
    from varifocal.drafter import Drafter
    from varifocal.targets._hf import HFTarget
    from varifocal.training.artifacts import ArtifactStore
    from varifocal.training.trainer import TrainResult


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """What is trained, on what."""

    drafter: Annotated[
        str, typer.Option("--drafter", metavar="NAME", help="Which one; see `varifocal drafters`.")
    ] = "fovea"
    set: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the drafter. Repeatable."),
    ] = field(default_factory=list)
    artifacts: Annotated[
        Path, typer.Option("--artifacts", metavar="DIR", help="What `varifocal record` wrote.")
    ] = Path("runs/artifacts")
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Drafter, checkpoints and logs.")
    ] = Path("runs/drafter")
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False
    held_out: Annotated[
        str,
        typer.Option(
            "--held-out",
            metavar="demo|FILE.jsonl|none",
            help="Requests to measure tau on; demo draws pictures of its valid split.",
        ),
    ] = "demo"
    held_out_limit: Annotated[
        int, typer.Option("--held-out-limit", help="Of those, how many a family.")
    ] = 4
    valid: Annotated[
        float, typer.Option("--valid", help="Share of the artifacts kept for the held-out loss.")
    ] = 0.05


@dataclass(frozen=True, kw_only=True)
class RecordedTargetOptions(TargetOptions):
    """The model whose artifacts these are, and where it runs."""

    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="ID|PATH|demo",
            help="The model; if left out, the one that was recorded.",
        ),
    ] = ""


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """How it is trained."""

    epochs: Annotated[int, typer.Option("--epochs", help="Passes over the samples.")] = 12
    steps: Annotated[
        int, typer.Option("--steps", help="Updates; 0: as many as the epochs make.")
    ] = 0
    batch: Annotated[int, typer.Option("--batch", help="Samples an update.")] = 16
    rate: Annotated[float, typer.Option("--rate", help="Highest learning rate.")] = 5e-5
    warmup: Annotated[
        float, typer.Option("--warmup", help="Share of updates in which the rate rises.")
    ] = 0.1
    schedule: Annotated[
        str, typer.Option("--schedule", metavar="linear|cosine|constant", help="The rate's fall.")
    ] = "linear"
    optimizer: Annotated[
        str, typer.Option("--optimizer", metavar="adamw|muon", help="How weights are updated.")
    ] = "adamw"
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Pull to zero.")] = 0.0
    clip: Annotated[float, typer.Option("--clip", help="Largest norm of a gradient.")] = 0.5
    seed: Annotated[int, typer.Option("--seed", help="Of first weights, batches, draws.")] = 42
    precision: Annotated[
        str, typer.Option("--precision", metavar="fp32|bf16", help="Of the forward.")
    ] = "fp32"
    eval_every: Annotated[
        int, typer.Option("--eval-every", help="Updates between evaluations; 0: only at the end.")
    ] = 0
    valid_batches: Annotated[
        int, typer.Option("--valid-batches", help="Held-out batches an evaluation reads.")
    ] = 8
    log_every: Annotated[int, typer.Option("--log-every", help="Updates a line of the log.")] = 10
    checkpoint_seconds: Annotated[
        float, typer.Option("--checkpoint-seconds", help="Seconds between checkpoints.")
    ] = 300.0


def train(
    train: TrainOptions,
    recipe: RecipeOptions,
    model: RecordedTargetOptions,
    output: OutputOptions,
) -> None:
    """Train a drafter on recorded artifacts.

    --out then holds a drafter that --drafter takes anywhere, with its logs. With --resume a run
    that was cut off goes on as if it had not been. Ctrl-C finishes the update
    under way and writes a checkpoint; a second one does not wait.
    """
    from varifocal.drafters._weights import Card, save_trained
    from varifocal.training.artifacts import ArtifactStore
    from varifocal.training.trainer import TrainConfig, tau_of
    from varifocal.training.trainer import train as fit

    out = Output(output)
    config = TrainConfig(**asdict(recipe))
    options = parse_options(train.drafter, pairs(train.set))
    if not 0 <= train.valid < 1:
        raise BadOption(f"valid must be a share in [0, 1), got {train.valid}")
    check_folder(train.out)
    check_no_recording(train.out)
    requests = _held_out(train)
    store = ArtifactStore.open(train.artifacts)
    make_folder(train.out)  # before the target is loaded, which takes a while
    target = _recorded(store, model, out)
    drafter = _fresh(train.drafter, target, options, config.seed)
    data, valid = store.split(train.valid)
    command = f"varifocal {shlex.join(sys.argv[1:])}"

    def export(steps: int, scores: dict[str, float]) -> None:
        card = Card(
            seed=config.seed, steps=steps, command=command, data=str(train.artifacts), scores=scores
        )
        save_trained(drafter, train.out, card=card)

    def fitted(should_stop: ShouldStop) -> "TrainResult":
        return fit(
            drafter,  # type: ignore[arg-type]  # checked in `_fresh`
            data,
            train.out,
            config,
            frozen=target.model,
            export=export,
            valid=valid,
            evaluate=(lambda made: tau_of(target, made, requests, should_stop))
            if requests
            else None,
            resume=train.resume,
            quiet=output.quiet,
            should_stop=should_stop,
        )

    with interruptible(signal.SIGINT, signal.SIGTERM, can_wait=True) as interrupt:
        try:
            with _saying_how_to_go_on(train.out, out):
                result = fitted(lambda: interrupt.is_asked)
        except Stopped:
            raise typer.Exit(interrupt.exit_code) from None
    scores = ", ".join(f"{name} {value:.3g}" for name, value in result.scores.items())
    told = f": {scores}" if scores else ""
    out.line(f"{train.drafter} after {result.steps} updates in {train.out}{told}")
    out.write({"out": str(train.out), "drafter": train.drafter, **asdict(result)})


def _recorded(store: "ArtifactStore", model: RecordedTargetOptions, out: Output) -> "HFTarget":
    """The target that the artifacts were recorded of: states of another teach nonsense."""
    origin = store.manifest.origin
    model = replace(model, target=model.target or origin.target)
    target = load_target_from(model, out, dtype=torch.float32)
    if target.fingerprint != origin.fingerprint:
        raise DrafterMismatch(
            f"the artifacts in {store.folder} were recorded of {origin.target!r} (fingerprint "
            f"{origin.fingerprint}), but the target is {target.name!r} (fingerprint "
            f"{target.fingerprint}). Train with the target that was recorded, or record this one: "
            f"`varifocal record --target {shlex.quote(target.name)} --out DIR`"
        )
    return target


@contextmanager
def _saying_how_to_go_on(folder: Path, out: Output) -> Iterator[None]:
    try:
        yield
    except (Stopped, KeyboardInterrupt, SystemExit) as end:
        how = str(end) if isinstance(end, Stopped) else "cut off"
        out.note(f"{how}; the same command with --resume goes on from the checkpoint in {folder}")
        raise


def _held_out(options: TrainOptions) -> Mapping[str, list[Request]]:
    """Requests by family."""
    if options.held_out == "none":
        return {}
    limit = options.held_out_limit
    cases = load_suite(options.held_out, limit=limit, split="valid")
    found: defaultdict[str, list[Request]] = defaultdict(list)
    for case in cases:
        found[case.family].append(case.request)
    return found


def _fresh(name: str, target: "HFTarget", options: dict[str, Any], seed: int) -> "Drafter[Any]":
    """The drafter with new weights."""
    from varifocal.training.trainer import Trainable

    cls = drafter_class(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        drafter = cls(target, cls.Config(**options))
    if not isinstance(drafter, Trainable):
        raise BadOption(f"the drafter {name} learns nothing; there is nothing to train")
    return drafter
