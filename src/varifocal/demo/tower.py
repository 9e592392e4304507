"""Train the vision tower to name what stands in every patch, before any language model sees it."""

import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from varifocal.demo.feed import Feed
from varifocal.demo.journal import Every, append_line, save_atomically
from varifocal.demo.labels import (
    IGNORE,
    NUM_CHARACTERS,
    NUM_COLOURS,
    NUM_SHAPES,
    PATCHES,
    SLOTS,
    Views,
    label,
)
from varifocal.demo.model import encode_views, to_pixels
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
    thing_weight: float = 0.3  # of the losses of colour and of shape
    place_weight: float = 0.1  # of the loss of the place, which is soon learnt
    checkpoint_seconds: float = 150.0
    final_views: int = 4096  # held-out views of the last measurement
    seed: int = 0


class Heads(nn.Module):
    """What the patches must tell by a linear map: characters, colour, shape and their own place.

    Without the last, a tower forgets where a patch lies (a linear probe found 13 % of the places),
    and the language model must count image tokens to tell left from right.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.characters = nn.Linear(width, SLOTS * NUM_CHARACTERS)
        self.colours = nn.Linear(width, NUM_COLOURS)
        self.shapes = nn.Linear(width, NUM_SHAPES)
        self.places = nn.Linear(width, 2 * PATCHES)  # in a whole picture, in a tile


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
            views = label(draw_tower(number, self.split))
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
) -> tuple[Float[Tensor, ""], dict[str, float]]:
    """Loss of the three heads on a batch of views, with the accuracies."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        features = encode_views(tower, to_pixels(torch.from_numpy(batch.views.pixels)))
        characters = heads.characters(features).float().unflatten(-1, (SLOTS, NUM_CHARACTERS))
        colours, shapes = heads.colours(features).float(), heads.shapes(features).float()
        places = heads.places(features).float()
    wanted = torch.from_numpy(batch.views.characters).long()
    wanted_colours = torch.from_numpy(batch.views.colours).long()
    wanted_shapes = torch.from_numpy(batch.views.shapes).long()
    is_base = torch.from_numpy(batch.is_base)[:, None, None]
    wanted_places = torch.arange(PATCHES) + PATCHES * ~is_base[:, 0]
    each = F.cross_entropy(
        characters.flatten(0, 2), wanted.flatten(), ignore_index=IGNORE, reduction="none"
    ).view(wanted.shape)
    weight = torch.where(wanted == 0, plan.empty_weight, 1.0) * (wanted != IGNORE)
    weight = weight * torch.where(is_base, plan.base_weight, 1.0)
    loss = (each * weight).sum() / weight.sum()
    loss = loss + plan.thing_weight * (
        F.cross_entropy(colours.flatten(0, 1), wanted_colours.flatten())
        + F.cross_entropy(shapes.flatten(0, 1), wanted_shapes.flatten())
    )
    loss = loss + plan.place_weight * F.cross_entropy(places.flatten(0, 1), wanted_places.flatten())
    is_right = characters.detach().argmax(-1) == wanted
    thing = wanted_colours > 0
    return loss, {
        "characters": _share(is_right, (wanted > 0) & ~is_base),
        "empty": _share(is_right, (wanted == 0) & ~is_base),
        "base_characters": _share(is_right, (wanted > 0) & is_base),
        "colours": _share(colours.detach().argmax(-1) == wanted_colours, thing),
        "places": float((places.detach().argmax(-1) == wanted_places).float().mean()),
        "shapes": _share(shapes.detach().argmax(-1) == wanted_shapes, thing),
    }


def _share(is_right: Bool[Tensor, "*places"], where: Bool[Tensor, "*places"]) -> float:
    """Of the places `where`, how many are right; not a number if there are none."""
    return float(is_right[where].float().mean())


def tower_accuracy(
    tower: nn.Module, heads: Heads, plan: TowerPlan, num_views: int
) -> dict[str, float]:
    """The same figures on held-out pictures."""
    batch, _ = TowerBatches("valid", num_views, plan.base_share)(0)
    with torch.no_grad():
        return dense_loss(tower, heads, batch, plan)[1]


class Progress:
    """Where training stands: all that a checkpoint holds beside weights and optimisers."""

    def __init__(self, plan: TowerPlan) -> None:
        self.step, self.index, self.spent = 0, 0, 0.0
        self.decay_from = plan.hold * plan.cpu_seconds
        self.decay_seconds = (1 - plan.hold) * plan.cpu_seconds
        self.figures: dict[str, float] = {}
        self.is_done = False

    @property
    def fall(self) -> float:
        """How far the learning rate has fallen, from 0 to 1; at 1 training is over."""
        return min(1.0, max(0.0, (self.spent - self.decay_from) / self.decay_seconds))


def train_tower(tower: nn.Module, width: int, plan: TowerPlan, folder: Path) -> dict[str, float]:
    """Train in place, resuming from `folder`; returns held-out accuracies, steps and cost."""
    torch.manual_seed(plan.seed)
    heads = Heads(width)
    log, saved = folder / "tower.jsonl", folder / "tower.pt"
    trained = nn.ModuleDict({"tower": tower, "heads": heads})
    optimisers, at = Optimisers(trained, plan.rate), Progress(plan)
    if saved.exists():
        state = torch.load(saved, weights_only=False)
        trained.load_state_dict(state["model"])
        optimisers.load(state["optimisers"])
        vars(at).update(state["progress"])
        logger.info("tower.pt: resumed at step %d", at.step)
    if at.is_done:
        return at.figures
    for layer in tower_layers(tower):
        layer.compile(dynamic=False)  # one graph serves all layers: their shapes agree
    feed = Feed(TowerBatches("train", plan.batch, plan.base_share), at.index)
    save_due, begun = Every(plan.checkpoint_seconds), time.process_time() - at.spent
    tower.train()
    for batch in feed:
        optimisers.set_rate(min(1.0, (at.step + 1) / plan.warm_up) * (1 - 0.98 * at.fall))
        loss, seen = dense_loss(tower, heads, batch, plan)
        loss.backward()
        optimisers.step()
        at.step, at.index, at.spent = at.step + 1, feed.index, time.process_time() - begun
        at.is_done = at.fall == 1.0
        if at.is_done or at.step % 200 == 0:
            num_views = plan.final_views if at.is_done else 1024
            at.figures = tower_accuracy(tower, heads, plan, num_views)
            seen |= {f"valid_{name}": value for name, value in at.figures.items()}
            if at.figures["characters"] >= plan.goal and not at.fall:
                at.decay_from, at.decay_seconds = at.spent, at.decay_seconds / 2
        if at.step % 50 == 0:
            record = {"step": at.step, "spent": at.spent, "loss": float(loss.detach())}
            append_line(log, record | seen)
        if at.is_done or save_due.is_due():
            at.figures |= {"steps": at.step, "pictures": at.index, "cpu_seconds": at.spent}
            state = {"model": trained.state_dict(), "optimisers": optimisers.state()}
            save_atomically(state | {"progress": vars(at)}, saved)
        if at.is_done:
            break
    feed.close()
    append_line(log, {"plan": asdict(plan), **at.figures})
    return at.figures


def tower_layers(tower: nn.Module) -> list[nn.Module]:
    """Its transformer blocks."""
    parts: Any = getattr(tower, "vision_model", tower)
    return list(parts.encoder.layers)
