"""How a drafter is trained: settings, learning rate and optimizers."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from varifocal.errors import BadOption

_OUTER = ("embed", "lm_head", "head.")  # matrices that are no maps inside a block


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Settings of a run; the defaults follow [FOVEA, Draft Model Training]."""

    epochs: int = 12  # passes over the samples
    steps: int = 0  # updates; 0 means as many as the epochs make
    batch: int = 16  # samples an update
    rate: float = 5e-5  # peak learning rate
    warmup: float = 0.1  # share of the updates over which the rate rises linearly
    schedule: Literal["linear", "cosine", "constant"] = "linear"  # what follows the warm-up
    optimizer: Literal["adamw", "muon"] = "adamw"
    weight_decay: float = 0.0
    clip: float = 0.5  # largest norm of the gradient
    seed: int = 42
    precision: Literal["fp32", "bf16"] = "fp32"  # of the forward; weights stay as they are
    eval_every: int = 0  # updates between evaluations; 0 evaluates at the end only
    valid_batches: int = 8  # held-out batches an evaluation reads at most
    log_every: int = 10  # updates between lines of the log
    checkpoint_seconds: float = 300.0  # between checkpoints
    max_bad: int = 10  # updates in a row without a finite loss and gradient before it gives up

    def __post_init__(self) -> None:
        for name in ("epochs", "steps", "batch", "eval_every", "valid_batches", "log_every"):
            low = 0 if name in ("steps", "eval_every", "valid_batches") else 1
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < low:
                raise BadOption(f"{name} must be a whole number of at least {low}, got {value!r}")
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise BadOption(f"rate must be a positive number, got {self.rate!r}")
        if not 0 <= self.warmup < 1:
            raise BadOption(f"warmup must be a share in [0, 1), got {self.warmup!r}")
        if not self.clip > 0 or self.weight_decay < 0 or self.max_bad < 1:
            raise BadOption(
                "clip must be positive, weight_decay at least 0 and max_bad at least 1, got "
                f"{self.clip!r}, {self.weight_decay!r} and {self.max_bad!r}"
            )
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise BadOption(
                    f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}"
                )

    def rate_at(self, step: int, num_steps: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        warm = round(self.warmup * num_steps)
        if step < warm:
            return self.rate * (step + 1) / warm
        left = 1 - (step - warm) / max(1, num_steps - warm)
        if self.schedule == "constant":
            return self.rate
        return self.rate * (
            left if self.schedule == "linear" else 0.5 - 0.5 * math.cos(math.pi * left)
        )


_CHOICES = {
    "schedule": ("linear", "cosine", "constant"),
    "optimizer": ("adamw", "muon"),
    "precision": ("fp32", "bf16"),
}


def optimizers_of(network: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the matrices of blocks and AdamW for the rest."""
    named = [(n, w) for n, w in network.named_parameters() if w.requires_grad]
    matrices: list[nn.Parameter] = []
    if config.optimizer == "muon":
        matrices = [w for n, w in named if w.ndim == 2 and not any(o in n for o in _OUTER)]
    chosen = {id(w) for w in matrices}
    others = [w for _, w in named if id(w) not in chosen]
    made: list[torch.optim.Optimizer] = []
    if others:
        made.append(
            torch.optim.AdamW(
                others, lr=config.rate, betas=(0.9, 0.95), weight_decay=config.weight_decay
            )
        )
    if matrices:
        made.append(
            torch.optim.Muon(
                matrices,
                lr=config.rate,
                weight_decay=config.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
        )
    return made
