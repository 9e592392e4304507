"""A learned drafter in a few lines, and artifacts without a target."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from varifocal.drafter import Drafter
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target
from varifocal.training.artifacts import (
    Artifact,
    ArtifactStore,
    Manifest,
    Origin,
    write_shard,
)
from varifocal.training.losses import Losses, hidden_loss, weighted_mean
from varifocal.tree import DraftTree
from varifocal.verify import Verification

D = 8


@dataclass(frozen=True)
class Weights:
    """Settings inside settings."""

    hidden: float = 1.0


class LinearDrafter(Drafter[None]):
    """Predicts the next state with one linear layer and noise; drafts nothing."""

    name: ClassVar[str] = "linear"
    pictures: ClassVar[str] = "sees none"

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        ARCHITECTURE: ClassVar[frozenset[str]] = frozenset({"width", "sizes"})
        width: int = D
        sizes: tuple[int, ...] = (1, 2)
        objective: Weights = field(default_factory=Weights)

    def __init__(self, target: Target, config: Config) -> None:
        super().__init__(target, config)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.network = nn.Sequential(
                nn.Linear(config.width, config.width), nn.Linear(config.width, config.width)
            )

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        states = torch.cat([a.final[:-1] for a in batch])
        wanted = torch.cat([a.final[1:] for a in batch])
        mask = torch.cat([a.supervised[1:] for a in batch])
        noisy = states + 0.1 * torch.randn(states.shape) * (1 - progress)
        total = weighted_mean(hidden_loss(self.network(noisy), wanted), mask)
        return Losses(total, {"hidden": total})

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> None:
        """Nothing."""

    def propose(self, state: None, root: int, budget: Budget) -> DraftTree:
        return DraftTree.chain([root])

    def observe(self, state: None, verdict: Verification, seen: Forward) -> None:
        """Nothing."""


def made_up(number: int, *, length: int = 0, supervised: bool = True) -> Artifact:
    """An artifact of random states."""
    rng = torch.Generator().manual_seed(number)
    length = length or 6 + number % 5
    answer = torch.zeros(length, dtype=torch.bool)
    answer[3:] = supervised
    return Artifact(
        id=f"s{number}",
        family=("a", "b")[number % 2],
        tokens=torch.randint(5, 50, (length,), generator=rng),
        image_of=torch.tensor([-1, 0] + [-1] * (length - 2)),
        supervised=answer,
        final=torch.randn(length, D, generator=rng).half().float(),
        visual=torch.randn(1, D, generator=rng).half().float(),
        mid=torch.randn(length, D, generator=rng).half().float()
        * (torch.arange(length) >= 2)[:, None],
    )


def made_up_store(folder: Path, samples: list[Artifact], per_shard: int = 5) -> ArtifactStore:
    """A folder of them."""
    folder.mkdir()
    origin: Any = Origin(
        target="fake",
        fingerprint="f",
        vocab_size=50,
        hidden_size=D,
        layers=(1,),
        answers="target",
        max_new_tokens=8,
        dtype="float16",
    )
    shards = tuple(
        write_shard(folder, f"shard-{k}.safetensors", samples[k : k + per_shard], "float16")
        for k in range(0, len(samples), per_shard)
    )
    Manifest(origin=origin, shards=shards).write(folder)
    return ArtifactStore.open(folder)
