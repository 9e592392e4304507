"""Benchmarks by name: what is measured where an option is left out. A paper's tables are a file."""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from varifocal.errors import BadOption
from varifocal.evaluation.experiment import Experiment


@dataclass(frozen=True, kw_only=True)
class Preset:
    """Values of options of `bench`; "" and 0 leave an option as it is."""

    title: str
    limit: int  # requests a family
    repeats: int
    drafters: str = ""  # entries as on the command line; {model} is the draft model
    suite: str = ""
    families: tuple[str, ...] = ()  # (): all
    max_new_tokens: int = 0
    experiment: Experiment | None = None  # the table of a paper that it measures again


GENERAL = {
    "quick": Preset(title="a first look", limit=3, repeats=1),
    "full": Preset(title="figures to quote", limit=20, repeats=3),
}


@cache
def presets() -> dict[str, Preset]:
    """All of them: the general ones, then those of each file of this folder."""
    found = dict(GENERAL)
    for info in iter_modules(__path__):
        found |= import_module(f"{__name__}.{info.name}").PRESETS
    return found


def find_preset(name: str) -> Preset:
    """Raises BadOption with the names that there are."""
    known = presets()
    if name not in known:
        raise BadOption(
            f"there is no preset {name!r}; there are {', '.join(known)}, and `varifocal bench "
            "--preset list` says what they measure"
        )
    return known[name]
