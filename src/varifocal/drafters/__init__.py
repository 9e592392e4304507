"""Drafting methods: one file each, found by name; a dotted name is a module of your own."""

import os
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from varifocal.drafter import Drafter
from varifocal.errors import BadOption
from varifocal.target import Target


def drafter_names() -> list[str]:
    """The files of this folder."""
    return [info.name for info in iter_modules(__path__) if not info.name.startswith("_")]


def drafter_class(name: str) -> type[Drafter[Any]]:
    """The one Drafter defined in drafters/<name>.py, or in a dotted module."""
    if os.sep in name or name.startswith((".", "~")):
        raise BadOption(f"there is no drafter folder {name}; `varifocal train` writes one")
    if "." not in name and name not in drafter_names():
        raise BadOption(f"no drafter is called {name!r}; there are {', '.join(drafter_names())}")
    try:
        module = import_module(name if "." in name else f"{__name__}.{name}")
    except ModuleNotFoundError as error:
        raise BadOption(f"the drafter module {name!r} cannot be imported ({error})") from error
    classes = [c for c in vars(module).values() if isinstance(c, type) and issubclass(c, Drafter)]
    own = [c for c in classes if c.__module__ == module.__name__]
    if len(own) != 1:
        raise BadOption(f"{module.__name__} must define exactly one Drafter, found {own}")
    return own[0]


def load_drafter(name_or_path: str, target: Target, **options: Any) -> Drafter[Any]:
    """A drafter by name, by dotted module, or from a folder that `train` wrote."""
    if Path(name_or_path).is_dir():
        from varifocal.drafters._weights import load_trained

        drafter = load_trained(Path(name_or_path), target, options)
    else:
        cls = drafter_class(name_or_path)
        check_options(name_or_path, cls, options)
        drafter = cls.load(target, options)
    drafter.prepare()
    return drafter


def check_options(name: str, cls: type[Drafter[Any]], options: dict[str, Any]) -> None:
    """Refuse options that the drafter does not have, by name."""
    known = [f.name for f in fields(cls.Config)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise BadOption(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
