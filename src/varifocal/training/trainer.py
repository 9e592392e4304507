"""Fit anything `Trainable` to recorded artifacts; a resumed run equals one never interrupted.

Everything random is a pure function of (seed, step): which samples a batch holds, and what the
loss draws. So a checkpoint needs weights, optimizer states and the step, and no generator's state.
"""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from varifocal.errors import BadArtifact, BadOption, VarifocalError
from varifocal.training._checkpoint import STATE, Log, load_state, save_state
from varifocal.training._evaluation import Scores, ShouldStop, Stopped, heed, mean, never, tau_of
from varifocal.training._files import check_no_recording, locked, make_folder
from varifocal.training._recipe import TrainConfig, optimizers_of
from varifocal.training.artifacts import Artifact, Subset
from varifocal.training.losses import Losses

logger = logging.getLogger(__name__)
__all__ = ["Stopped", "TrainConfig", "TrainResult", "Trainable", "tau_of", "train"]

Evaluate = Callable[[Any], Scores]  # the drafter -> numbers by name
Export = Callable[[int, Scores], None]  # write the drafter so that it can be loaded: steps, scores


@runtime_checkable
class Trainable(Protocol):
    """What the trainer knows of a drafter."""

    @property
    def name(self) -> str:
        """Its file's name."""

    @property
    def config(self) -> Any:
        """Its settings."""

    @property
    def network(self) -> nn.Module:
        """The weights to train, and no others."""

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """The loss over whole samples; `progress` goes from 0 to 1 over the run."""


@runtime_checkable
class Surveyor(Protocol):
    """A drafter that looks at the training samples before its first update."""

    def survey(self, data: Subset) -> None:
        """Choose what depends on them, or refuse them; a resumed run calls it with the same."""


# Settings that may differ between an interruption and the resume.
_FREE = frozenset({"log_every", "checkpoint_seconds", "eval_every", "valid_batches", "max_bad"})


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended."""

    steps: int
    num_skipped: int  # updates left out because loss or gradient was not finite
    loss: float  # mean over the last logged updates
    scores: Scores  # the final evaluation


def train(
    drafter: Trainable,
    data: Subset,
    out: Path,
    config: TrainConfig,
    *,
    frozen: nn.Module,
    export: Export,
    valid: Subset | None = None,
    evaluate: Evaluate | None = None,
    resume: bool = False,
    quiet: bool = False,
    should_stop: ShouldStop = never,
) -> TrainResult:
    """Train until the configured end and leave a loadable drafter behind (`export`).

    `frozen` is the target's model: its parameters get no gradient and must not be the drafter's.
    With `resume` the run in `out` goes on, whatever ended it; without one it starts.
    `should_stop` is asked between updates and between held-out batches: once it says yes, a
    checkpoint is written and `Stopped` is raised. `evaluate` may raise it to the same end.
    """
    num_steps = _check(drafter, data, config, frozen)
    if isinstance(drafter, Surveyor):
        drafter.survey(data)
    run = _Run(drafter, data, out, config, num_steps)
    run.begin(resume)
    log = Log(out, run.step)
    try:
        with locked(out), _frozen(frozen), _bar(num_steps, run.step, quiet) as advance:
            _loop(run, log, advance, valid, evaluate, export, should_stop)
    except Stopped:
        run.save()
        raise Stopped(f"stopped after update {run.step} of {num_steps}") from None
    finally:
        log.close()
    return TrainResult(
        steps=run.step, num_skipped=run.num_skipped, loss=run.recent_loss, scores=run.scores
    )


def _loop(
    run: "_Run",
    log: Log,
    advance: Callable[[float], None],
    valid: Subset | None,
    evaluate: Evaluate | None,
    export: Export,
    should_stop: ShouldStop,
) -> None:
    config = run.config
    saved_at = time.monotonic()
    batches = run.data.batches(config.batch, config.seed, start=run.step)
    while True:
        if run.is_due:
            scores = _evaluated(run, valid, evaluate, should_stop)
            log.write(run.step, "eval", scores)
            export(run.step, scores)
            run.save(scores)
            saved_at = time.monotonic()
        elif run.step and time.monotonic() - saved_at >= config.checkpoint_seconds:
            run.save()
            saved_at = time.monotonic()
        if run.step == run.num_steps:
            return
        heed(should_stop)
        run.update(next(batches))
        advance(run.losses[-1] if run.losses else math.nan)
        if run.step % config.log_every == 0 or run.step == run.num_steps:
            log.write(run.step, "train", run.report())


class _Run:
    """A run under way: the step and all that changes with it."""

    def __init__(
        self, drafter: Trainable, data: Subset, out: Path, config: TrainConfig, num_steps: int
    ) -> None:
        self.drafter, self.data, self.out, self.config = drafter, data, out, config
        self.num_steps, self.step = num_steps, 0
        self.evaluated = 0  # the step of the last evaluation
        self.num_skipped = self.num_bad = 0
        self.recent_loss = math.nan
        self.losses: list[float] = []  # since the last report
        self.parts: dict[str, list[float]] = {}
        self.norm = math.nan
        self.scores: Scores = {}
        self.weights = [w for w in drafter.network.parameters() if w.requires_grad]
        self.optimizers = optimizers_of(drafter.network, config)
        self.device = self.weights[0].device

    @property
    def is_due(self) -> bool:
        """Whether this step ends with an evaluation that was not made yet."""
        every = self.config.eval_every
        is_wanted = self.step == self.num_steps or bool(every and self.step % every == 0)
        return is_wanted and self.step > self.evaluated

    @property
    def _identity(self) -> dict[str, Any]:
        """What must not change between an interruption and the resume."""
        kept = {k: v for k, v in asdict(self.config).items() if k not in _FREE}
        return {**kept, "drafter": self.drafter.name, "data": self.data.digest}

    def begin(self, resume: bool) -> None:
        """Start, or take up the checkpoint in the folder."""
        check_no_recording(self.out)
        path = self.out / STATE
        if not resume:
            if path.exists():
                raise BadOption(
                    f"{self.out} holds a training run; continue it with --resume or choose a new "
                    "folder"
                )
            make_folder(self.out)
            self.save()
        elif not path.exists():
            make_folder(self.out)
            logger.warning("%s holds no checkpoint; training starts from the beginning", self.out)
        else:
            self._restore(path, load_state(path))

    def _restore(self, path: Path, state: dict[str, Any]) -> None:
        if state.get("identity") != self._identity:
            old, new = state.get("identity") or {}, self._identity
            key = next((k for k in new if old.get(k) != new[k]), "identity")
            raise BadOption(
                f"{path} was made with {key}={old.get(key)!r}, this run has {new.get(key)!r}; "
                "resume with the same settings and data, or choose a new folder"
            )
        try:
            self.drafter.network.load_state_dict(state["network"])
            for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(saved)
        except (KeyError, RuntimeError, ValueError) as error:
            raise BadArtifact(
                f"{path} does not fit this drafter ({str(error).splitlines()[0]}); resume with the "
                "same settings, or choose a new folder"
            ) from error
        self.step, self.num_skipped = state["step"], state["num_skipped"]
        self.num_bad, self.recent_loss = state["num_bad"], state["recent_loss"]
        self.losses, self.parts = state["losses"], state["parts"]
        self.scores = state["scores"]
        self.evaluated = state.get("evaluated", self.step)  # once no step was saved before its own

    def save(self, scores: Scores | None = None) -> None:
        """Write the checkpoint; `scores` are those of an evaluation at this step."""
        if scores is not None:
            self.scores, self.evaluated = scores, self.step
        state = {
            "identity": self._identity,
            "network": self.drafter.network.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "num_skipped": self.num_skipped,
            "num_bad": self.num_bad,
            "recent_loss": self.recent_loss,
            "losses": self.losses,
            "parts": self.parts,
            "scores": self.scores,
            "evaluated": self.evaluated,
        }
        save_state(self.out / STATE, state)

    def update(self, batch: list[Artifact]) -> None:
        """One step of the optimizer, left out if the loss or the gradient is not finite."""
        config = self.config
        rate = config.rate_at(self.step, self.num_steps)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.zero_grad(set_to_none=True)
        self.drafter.network.train()
        with _drawing(config.seed, self.step, self.device), _precision(config, self.device):
            losses = self.drafter.loss(batch, self.step / self.num_steps)
        self.step += 1
        if not losses.total.requires_grad:
            raise BadArtifact(
                f"the loss of {self.drafter.name} does not depend on its weights: nothing in the "
                f"batch ({', '.join(a.id for a in batch[:4])}, ...) gives a signal"
            )
        if self._take(losses):
            self.num_bad = 0
            self.losses.append(float(losses.total.detach()))
            for name, value in losses.parts.items():
                self.parts.setdefault(name, []).append(float(value.detach()))
        else:
            self.num_skipped += 1
            self.num_bad += 1
            logger.warning("step %d: loss or gradient is not finite; left out", self.step)
        if self.num_bad >= config.max_bad:
            raise VarifocalError(
                f"{self.num_bad} updates in a row had a loss or gradient that is not finite (step "
                f"{self.step}); lower the learning rate ({config.rate}) or check the recording. "
                f"The last checkpoint in {self.out} is whole"
            )

    def _take(self, losses: Losses) -> bool:
        if not bool(losses.total.isfinite()):
            return False
        losses.total.backward()
        norm = nn.utils.clip_grad_norm_(self.weights, self.config.clip)
        if not bool(norm.isfinite()):
            return False
        self.norm = float(norm)
        for optimizer in self.optimizers:
            optimizer.step()
        return True

    def report(self) -> Scores:
        """Means since the last report; a loss of NaN says that no update was taken."""
        means = {name: mean(values) for name, values in self.parts.items()}
        self.recent_loss = mean(self.losses)
        self.losses, self.parts = [], {}
        rate = self.config.rate_at(self.step - 1, self.num_steps)
        return {
            "loss": self.recent_loss,
            **means,
            "rate": rate,
            "gradient_norm": self.norm,
            "num_skipped": float(self.num_skipped),
        }


def _check(drafter: Trainable, data: Subset, config: TrainConfig, frozen: nn.Module) -> int:
    """Refuse what cannot work before anything is read; returns the number of updates."""
    if not isinstance(drafter, Trainable):
        raise BadOption(f"{drafter!r} has nothing to train")
    if not len(data):
        raise BadArtifact(f"there are no samples to train on in {data.store.folder}")
    if config.batch > len(data):
        raise BadOption(f"batch is {config.batch}, but there are only {len(data)} samples")
    if not data.num_supervised:
        raise BadArtifact(
            f"no sample in {data.store.folder} has supervised tokens, so there is nothing to "
            "learn; record conversations with answers"
        )
    own = {id(w) for w in drafter.network.parameters() if w.requires_grad}
    if not own:
        raise BadOption(f"the network of {drafter.name} has no weights to train")
    if own & {id(w) for w in frozen.parameters()}:
        raise BadOption(f"the network of {drafter.name} holds weights of the frozen target")
    return config.steps or config.epochs * data.num_batches(config.batch)


def _evaluated(
    run: _Run, valid: Subset | None, evaluate: Evaluate | None, should_stop: ShouldStop
) -> Scores:
    """Held-out loss and whatever the caller measures."""
    scores: Scores = {}
    run.drafter.network.eval()
    if valid is not None and len(valid):
        values = []
        some = islice(_in_order(valid, run.config.batch), run.config.valid_batches)
        for k, batch in enumerate(some):
            heed(should_stop)
            with torch.no_grad(), _drawing(run.config.seed, k, run.device):
                values.append(float(run.drafter.loss(batch, 1.0).total))
        scores["valid_loss"] = mean(values)
    if evaluate is not None:
        scores |= evaluate(run.drafter)
    return scores


def _in_order(data: Subset, size: int) -> Iterator[list[Artifact]]:
    for start in range(0, len(data), size):
        yield [data[k] for k in range(start, min(start + size, len(data)))]


@contextmanager
def _frozen(module: nn.Module) -> Iterator[None]:
    """No gradient reaches the module inside the block."""
    before = [(w, w.requires_grad) for w in module.parameters()]
    module.requires_grad_(False)
    try:
        yield
        assert all(w.grad is None for w, _ in before), "the frozen target was given gradients"
    finally:
        for weight, flag in before:
            weight.requires_grad_(flag)


@contextmanager
def _drawing(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Draws inside depend on seed and step alone, and leave those outside as they were."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed((seed * 1_000_003 + step) % 2**63)
        yield


def _precision(config: TrainConfig, device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


@contextmanager
def _bar(total: int, done: int, quiet: bool) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr; nothing where nobody watches."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("training", total=total, completed=done)
        yield lambda loss: bar.update(task, advance=1, description=f"loss {loss:.3f}")
