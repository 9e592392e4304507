"""States as a drafter would see them if something between it and the target were wired wrongly."""

from dataclasses import replace

import torch
from torch import Tensor

from varifocal.evaluation._lessons import Lesson, States
from varifocal.target import Want
from varifocal.targets._hf import HFTarget


def changed_states(
    target: HFTarget, want: Want, lesson: Lesson, other: Lesson | None
) -> dict[str, States]:
    """What the drafter would read if something were wired wrongly, by what is wrong.

    Only what it wants to see is changed; `other` is a lesson with another picture.
    """
    true = lesson.states
    made: dict[str, States] = {}
    if want.final or want.layers:
        made["features one position back"] = _shifted(true, 1)
        made["features one position ahead"] = _shifted(true, -1)
        made["features in random order"] = _shuffled(true)
    if want.final:
        last = target.num_layers
        made["features before the last norm"] = replace(true, final=true.layers[last])
        if last > 1:
            made["features of the layer before the last"] = replace(
                true, final=true.layers[last - 1]
            )
    for step, name in ((-1, "the layer below"), (1, "the layer above")):
        moved = {n: true.layers.get(n + step) for n in want.layers}
        known = {n: layer for n, layer in moved.items() if layer is not None}
        if known:
            made[f"features of {name}"] = replace(true, layers=true.layers | known)
    if want.embeddings and other is not None and bool(lesson.prompt.is_image.any()):
        made["picture of another request"] = _with_picture(true, lesson, other)
    return made


def _shifted(states: States, by: int) -> States:
    """Every position gets the features of the one `by` places before it."""
    rows = torch.arange(len(states.final), device=states.final.device)
    return _reordered(states, (rows - by).clamp(0, len(rows) - 1))


def _shuffled(states: States) -> States:
    dice = torch.Generator().manual_seed(0)
    order = torch.randperm(len(states.final), generator=dice)
    return _reordered(states, order.to(states.final.device))


def _reordered(states: States, order: Tensor) -> States:
    layers = {n: layer[order] for n, layer in states.layers.items()}
    return replace(states, final=states.final[order], layers=layers)


def _with_picture(states: States, lesson: Lesson, other: Lesson) -> States:
    slots = lesson.prompt.is_image.nonzero()[:, 0]
    foreign = other.states.embeddings[other.prompt.is_image.nonzero()[:, 0]]
    index = torch.arange(len(slots), device=slots.device) % len(foreign)
    embeddings = states.embeddings.clone()
    embeddings[slots] = foreign[index]
    return replace(states, embeddings=embeddings)
