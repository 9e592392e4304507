"""Train the vision tower to name what stands in every patch, before any language model sees it."""

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from varifocal.demo.feed import Feed, drawn
from varifocal.demo.labels import (
    IGNORE,
    NUM_CHARACTERS,
    NUM_COLOURS,
    NUM_SHAPES,
    SLOTS,
    Views,
    label,
)
from varifocal.demo.model import append_line, encode_views, save_atomically, to_pixels
from varifocal.demo.optimise import Optimisers
from varifocal.demo.sample import Split
from varifocal.demo.world import draw_tower

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class TowerPlan:
    """How the tower is trained."""

    batch: int = 128  # views per step
    cpu_seconds: float = 1500.0  # budget of this process
    goal: float = 0.985  # of the characters on held-out tiles; reaching it starts the decay
    rate: float = 2e-3
    warm_up: int = 100  # steps
    hold: float = 0.7  # share of the budget before the rate falls
    base_share: float = 0.4  # pictures whose squashed whole view is trained on too
    base_weight: float = 0.1  # of its character loss: most of it cannot be read
    empty_weight: float = 0.3  # of a slot without a character, since most are
    checkpoint_seconds: float = 150.0
    seed: int = 0


class Heads(nn.Module):
    """What the patches must tell by a linear map: characters, colour, shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters = nn.Linear(width, SLOTS * NUM_CHARACTERS)
        self.colours = nn.Linear(width, NUM_COLOURS)
        self.shapes = nn.Linear(width, NUM_SHAPES)


@dataclass(frozen=True)
class Batch:
    """Labelled views; the arrays of `Views` with a row per view, and which are whole pictures."""

    views: Views
    is_base: np.ndarray  # (views,) bool


class TowerBatches:
    """Draw pictures from an index on until a batch of views is full."""

    def __init__(self, split: Split, size: int, base_share: float) -> None:
        self.split, self.size, self.base_share = split, size, base_share
        self._left: list[Batch] = []

    def __call__(self, index: int) -> tuple[Batch, int]:
        parts, count = self._left, sum(len(part.is_base) for part in self._left)
        while count < self.size:
            number, index = index, index + 1
            sample = drawn(lambda number=number: draw_tower(number, self.split))
            if sample is None:
                continue
            views = label(sample)
            # A fixed pattern instead of a draw: the same pictures give the same batches.
            start = 0 if (number * 0.618034) % 1 < self.base_share else 1
            is_base = np.arange(len(views.pixels)) == 0
            parts.append(_rows(Batch(views, is_base), slice(start, None)))
            count += len(is_base) - start
        whole = _join(parts)
        self._left = [_rows(whole, slice(self.size, None))]
        return _rows(whole, slice(self.size)), index


def _rows(batch: Batch, rows: slice) -> Batch:
    v = batch.views
    views = Views(v.pixels[rows], v.characters[rows], v.colours[rows], v.shapes[rows])
    return Batch(views, batch.is_base[rows])


def _join(parts: list[Batch]) -> Batch:
    def join(name: str) -> np.ndarray:
        return np.concatenate([getattr(part.views, name) for part in parts])

    views = Views(join("pixels"), join("characters"), join("colours"), join("shapes"))
    return Batch(views, np.concatenate([part.is_base for part in parts]))


def dense_loss(
    tower: nn.Module, heads: Heads, batch: Batch, plan: TowerPlan
) -> tuple[Tensor, dict[str, float]]:
    """Loss of the three heads on a batch of views, with the accuracies."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = encode_views(tower, to_pixels(torch.from_numpy(batch.views.pixels)))
        characters = heads.characters(features).float().unflatten(-1, (SLOTS, NUM_CHARACTERS))
        colours, shapes = heads.colours(features).float(), heads.shapes(features).float()
    wanted = torch.from_numpy(batch.views.characters).long()
    wanted_colours = torch.from_numpy(batch.views.colours).long()
    wanted_shapes = torch.from_numpy(batch.views.shapes).long()
    is_base = torch.from_numpy(batch.is_base)
    each = F.cross_entropy(
        characters.flatten(0, 2), wanted.flatten(), ignore_index=IGNORE, reduction="none"
    ).view(wanted.shape)
    weight = torch.where(wanted == 0, plan.empty_weight, 1.0) * (wanted != IGNORE)
    weight = weight * torch.where(is_base, plan.base_weight, 1.0)[:, None, None]
    loss = (each * weight).sum() / weight.sum()
    loss = loss + 0.3 * F.cross_entropy(colours.flatten(0, 1), wanted_colours.flatten())
    loss = loss + 0.3 * F.cross_entropy(shapes.flatten(0, 1), wanted_shapes.flatten())
    with torch.no_grad():
        right = characters.argmax(-1) == wanted
        filled = wanted > 0
        thing = wanted_colours > 0

        def share(hit: Tensor, where: Tensor) -> float:
            return float(hit[where].float().mean()) if where.any() else float("nan")

        figures = {
            "characters": share(right, filled & ~is_base[:, None, None]),
            "empty": share(right, (wanted == 0) & ~is_base[:, None, None]),
            "base_characters": share(right, filled & is_base[:, None, None]),
            "colours": share(colours.argmax(-1) == wanted_colours, thing),
            "shapes": share(shapes.argmax(-1) == wanted_shapes, thing),
        }
    return loss, figures


def tower_accuracy(
    tower: nn.Module, heads: Heads, plan: TowerPlan, *, views: int = 1024
) -> dict[str, float]:
    """The same figures on held-out pictures."""
    batches = TowerBatches("valid", views, plan.base_share)
    batch, _ = batches(0)
    with torch.no_grad():
        return dense_loss(tower, heads, batch, plan)[1]


def train_tower(tower: nn.Module, width: int, plan: TowerPlan, folder: Path) -> dict[str, float]:
    """Train in place, resuming from `folder`; returns held-out accuracies, steps and cost."""
    torch.manual_seed(plan.seed)
    heads = Heads(width)
    log, saved = folder / "tower.jsonl", folder / "tower.pt"
    trained = nn.ModuleDict({"tower": tower, "heads": heads})
    optimisers = Optimisers(trained, plan.rate)
    step, index, spent, decay_from = 0, 0, 0.0, plan.hold * plan.cpu_seconds
    if saved.exists():
        state = torch.load(saved, weights_only=False)
        trained.load_state_dict(state["model"])
        if state["done"]:
            return dict(state["figures"])
        optimisers.load(state["optimisers"])
        step, index, spent = state["step"], state["index"], state["spent"]
        decay_from = state["decay_from"]
        logger.info("tower resumed at step %d", step)
    for layer in _layers(tower):
        layer.compile(dynamic=False)  # one graph serves all layers: their shapes agree
    feed = Feed(TowerBatches("train", plan.batch, plan.base_share), index)
    figures: dict[str, float] = {}

    def save(done: bool) -> None:
        state = {"model": trained.state_dict(), "optimisers": optimisers.state(), "done": done}
        state |= {"step": step, "index": feed.index, "spent": spent, "decay_from": decay_from}
        save_atomically(state | {"figures": figures}, saved)

    begun, last_save = time.process_time() - spent, time.monotonic()
    length = (1 - plan.hold) * plan.cpu_seconds  # of the decay
    tower.train()
    batches: Iterator[Batch] = iter(feed)
    while spent < decay_from + length:
        falling = min(1.0, max(0.0, (spent - decay_from) / length))
        optimisers.set_rate(min(1.0, (step + 1) / plan.warm_up) * (1 - 0.98 * falling))
        loss, seen = dense_loss(tower, heads, next(batches), plan)
        loss.backward()  # type: ignore[no-untyped-call]
        optimisers.step()
        step, spent = step + 1, time.process_time() - begun
        if step % 50 == 0:
            record = {"step": step, "spent": spent, "loss": float(loss.detach()), **seen}
            if step % 200 == 0:
                figures = tower_accuracy(tower, heads, plan)
                record |= {f"valid_{name}": value for name, value in figures.items()}
                if figures["characters"] >= plan.goal and spent < decay_from:
                    decay_from, length = spent, length / 2
            append_line(log, record)
        if time.monotonic() - last_save > plan.checkpoint_seconds:
            save(done=False)
            last_save = time.monotonic()
    figures = tower_accuracy(tower, heads, plan, views=4096)
    figures |= {"steps": step, "pictures": feed.index, "cpu_seconds": spent}
    save(done=True)
    feed.close()
    append_line(log, {"done": True, "plan": asdict(plan), **figures})
    return figures


def _layers(tower: nn.Module) -> list[nn.Module]:
    parts = getattr(tower, "vision_model", tower)
    return list(parts.encoder.layers)
