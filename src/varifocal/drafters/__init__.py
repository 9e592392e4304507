"""Drafting methods: one file each, found by name; a dotted name is a module of your own."""

import os
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from varifocal.drafter import Drafter
from varifocal.errors import BadOption
from varifocal.target import Target

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


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


def load_drafter(
    name_or_path: str,
    target: Target,
    *,
    check: bool | None = None,
    family: str | None = None,
    **options: Any,
) -> Drafter[Any]:
    """A drafter by name, by dotted module, or from a folder or hub id ("owner/name").

    A folder is one that `train` wrote, or a published checkpoint in its authors' layout. Of the
    latter alone, `family` says which it is where its tensors leave that open, and `check=False`
    loads it without trying whether it guesses what the target says. See docs/published.md.
    """
    is_place = Path(name_or_path).is_dir() or HUB_ID.fullmatch(name_or_path) is not None
    if is_place:
        from varifocal.drafters._published import load_folder
        from varifocal.drafters._weights import folder_of

        return load_folder(folder_of(name_or_path), target, options, check=check, family=family)
    given = {"check": check, "family": family}
    options |= {key: value for key, value in given.items() if value is not None}
    cls = drafter_class(name_or_path)
    check_options(name_or_path, cls, options)
    drafter = cls.load(target, options)
    drafter.prepare()
    return drafter


def check_options(name: str, cls: type[Drafter[Any]], options: dict[str, Any]) -> None:
    """Refuse options that the drafter does not have, and a yes or no in a number's place."""
    known = {f.name: f.default for f in fields(cls.Config)}
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise BadOption(f"{name} has no option {', '.join(unknown)}; it has {', '.join(known)}")
    for key, value in options.items():
        default = known[key]
        is_other = isinstance(default, int | float | str) and not isinstance(default, bool)
        if isinstance(value, bool) and is_other:
            raise BadOption(
                f"{name}'s option {key} is no yes or no, got {value}; its default is {default!r}"
            )
