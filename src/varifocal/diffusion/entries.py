"""Gates and samplers by name: `name:key=value:...`, each the one entry of a file."""

import json
import re
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from varifocal.errors import BadOption
from varifocal.options import typed_value

_OPTION = r"[A-Za-z_]\w*="


class Entry(ABC):
    """Something of a catalogue: its settings live here, what concerns one row in a state."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Settings, each with a default. None, unless the entry adds some."""

    name: ClassVar[str]  # the file's name
    config: Any

    def __init__(self, config: Any = None) -> None:
        self.config = self.Config() if config is None else config

    @property
    def text(self) -> str:
        """As it is typed: the name, and the settings that are not the default ones."""
        default = self.Config()
        given = [
            f"{f.name}={_written(value)}"
            for f in fields(self.Config)
            if (value := getattr(self.config, f.name)) != getattr(default, f.name)
        ]
        return ":".join([self.name, *given])

    @classmethod
    def parsed(cls, pairs: Sequence[tuple[str, str]]) -> Self:
        """The entry with settings that were typed."""
        hints = get_type_hints(cls.Config)
        options: dict[str, Any] = {}
        for key, text in pairs:
            if key not in hints:
                has = f"it has {', '.join(hints)}" if hints else "it has none"
                raise BadOption(f"{cls.name} has no option {key}; {has}")
            if key in options:
                raise BadOption(f"{cls.name}: {key} is given twice")
            options[key] = typed_value(cls.name, key, text, hints[key])
        return cls(cls.Config(**options))


E = TypeVar("E", bound=Entry)


def entry_names(package: Sequence[str]) -> list[str]:
    """The files of a catalogue, given its `__path__`."""
    return [info.name for info in iter_modules(package) if not info.name.startswith("_")]


def find_entry(text: str, catalogue: str, path: Sequence[str], kind: type[E], noun: str) -> E:
    """The entry that "name:key=value" means; a dotted name is a module of the caller's own."""
    name, *options = re.split(rf":(?={_OPTION})", text.strip())
    pairs = [(key, value) for key, _, value in (option.partition("=") for option in options)]
    if "." not in name and name not in entry_names(path):
        listed = ", ".join(entry_names(path))
        raise BadOption(f"no {noun} is called {name!r}; there are {listed}, each name:option=value")
    try:
        module = import_module(name if "." in name else f"{catalogue}.{name}")
    except ModuleNotFoundError as error:
        raise BadOption(f"the {noun} module {name!r} cannot be imported ({error})") from error
    own = [
        thing
        for thing in vars(module).values()
        if isinstance(thing, type)
        and issubclass(thing, kind)
        and thing.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise BadOption(f"{module.__name__} must define exactly one {kind.__name__}, found {own}")
    return own[0].parsed(pairs)


def check(is_fine: bool, wanted: str, got: object) -> None:
    """Refuse a setting."""
    if not is_fine:
        raise BadOption(f"{wanted}, got {got!r}")


def check_share(name: str, value: float) -> None:
    """A number from 0 to 1."""
    check(0 <= value <= 1, f"{name} must be from 0 to 1", value)


def check_count(name: str, value: int, least: int = 1) -> None:
    """A whole number."""
    check(value >= least, f"{name} must be a count from {least}", value)


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
