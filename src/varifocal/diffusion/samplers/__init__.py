"""Samplers: one file each, found by name; a dotted name is a module of your own."""

from typing import Any

from varifocal.diffusion.entries import entry_names, find_entry
from varifocal.diffusion.sampler import Sampler


def names() -> list[str]:
    """The files of this folder."""
    return entry_names(__path__)


def find(sampler: str | Sampler[Any]) -> Sampler[Any]:
    """A sampler by "name:key=value"; one of your own is passed as it is."""
    if isinstance(sampler, Sampler):
        return sampler
    kind: type[Sampler[Any]] = Sampler  # type: ignore[type-abstract]  # entries are concrete
    return find_entry(sampler, __name__, __path__, kind, "sampler")
