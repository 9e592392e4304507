"""Pictures with fewer visual tokens: every 2x2 patches averaged before the projector. [TABED]"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from varifocal.target import Prompt
from varifocal.targets._hf import Seen

_POOL = 2  # patches along a side of what becomes one


@dataclass(frozen=True)
class Pooled:
    """All pictures of a prompt as they are, and pooled: the tower has run once for both."""

    full: Seen
    pooled: Seen
    counts: list[int]  # pooled visual tokens of each picture


@runtime_checkable
class Pools(Protocol):
    """A family whose visual tokens are a grid of patches when they enter the projector."""

    def see_pooled(self, prompt: Prompt) -> Pooled:
        """As `see`, and the same pooled."""


def pooled_side(side: int) -> int:
    """Patches along a side that are left of so many."""
    return -(-side // _POOL)


def pool(patches: Float[Tensor, "n P D"], side: int) -> Float[Tensor, "n Q D"]:
    """Averages over squares of a grid of `side` x `side` patches, cut off at its edges.

    Entries before those of the grid (P > side * side), a tower's own, stay as they are.
    """
    own = patches.shape[1] - side * side
    grid = patches[:, own:].transpose(1, 2).unflatten(2, (side, side))
    few = nn.functional.avg_pool2d(grid, _POOL, ceil_mode=True, count_include_pad=False)
    return torch.cat([patches[:, :own], few.flatten(2).transpose(1, 2)], 1)


def without_slots(prompt: Prompt, counts: list[int]) -> Prompt:
    """The prompt with only the first so many slots of each picture."""
    keep = ~prompt.is_image
    for image, count in enumerate(counts):
        slots = (prompt.image_of == image).nonzero()[:count, 0]
        keep[slots] = True
    return Prompt(prompt.tokens[keep], prompt.image_of[keep], prompt.pixels, prompt.request)


@contextmanager
def entering(projector: nn.Module) -> Iterator[list[Tensor]]:
    """Collect what enters it in this thread; others may use the same model at the same time."""
    taken: list[Tensor] = []
    own = threading.get_ident()

    def note(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if threading.get_ident() == own:
            taken.append(args[0])

    handle = projector.register_forward_pre_hook(note)
    try:
        yield taken
    finally:
        handle.remove()
