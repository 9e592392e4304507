"""Gates: when decoding may stop. One file each, found by name; a dotted name is your own module."""

from typing import Any

from varifocal.diffusion.entries import entry_names, find_entry
from varifocal.diffusion.gate import Gate


def names() -> list[str]:
    """The files of this folder."""
    return entry_names(__path__)


def find(gate: str | Gate[Any]) -> Gate[Any]:
    """A gate by "name:key=value"; one of your own is passed as it is."""
    if isinstance(gate, Gate):
        return gate
    return find_entry(gate, __name__, __path__, Gate, "gate")
