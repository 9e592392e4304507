"""Task formats: how a text states its answer. One file each or per family, found by name."""

import difflib
from importlib import import_module
from pkgutil import iter_modules

from varifocal.diffusion.formats._format import Ending, Format, Match, Reader, closing
from varifocal.errors import BadOption

__all__ = ["Ending", "Format", "Match", "Reader", "closing", "find", "names"]


def names() -> list[str]:
    """What `find` knows."""
    return sorted(_catalogue())


def find(format: str | Format) -> Format:
    """A format by name; one of your own is passed as it is."""
    if isinstance(format, Format):
        return format
    known = _catalogue()
    if format not in known:
        near = difflib.get_close_matches(str(format), known, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        raise BadOption(
            f"no format is called {format!r}{meant} There are {', '.join(sorted(known))}; "
            "or pass a Format of your own"
        )
    return known[format]


def _catalogue() -> dict[str, Format]:
    found: dict[str, Format] = {}
    for info in iter_modules(__path__):
        if not info.name.startswith("_"):
            module = import_module(f"{__name__}.{info.name}")
            found |= {format.name: format for format in module.FORMATS}
    return found
