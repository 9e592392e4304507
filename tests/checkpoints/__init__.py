"""Tiny random checkpoints of every family, in the layout in which the families are published.

Each module here exports `FAMILIES`, a dict from a name to a `Family`. A builder writes a folder as
one finds it on the hub: `config.json` with the published keys, tensors under the published names,
tokenizer, processor, chat template, `generation_config.json`. `_parts` has what builders share.

`families()` finds all of them; `built(name)` builds one once a process and gives its folder.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any


def _own_processor(folder: Path) -> Any:
    from checkpoints._parts import own_processor

    return own_processor(folder)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One layout of checkpoint, and what the tests may ask of it."""

    build: Callable[[Path], None]  # fills an empty folder; less than two seconds
    target: str  # the file in varifocal/targets that loads it
    max_pictures: int = 3  # a request may have; 0: the model reads text only
    # transformers' own processor of such a folder, which gives the true tokens and pixels:
    reference: Callable[[Path], Any] = _own_processor
    # Text that names special tokens of the family, which a user may type:
    typed: str = "<image>"
    # Sizes (width, height) of pictures that the tests use: unlike each other, few tokens.
    sizes: tuple[tuple[int, int], ...] = ((60, 40), (30, 90), (80, 80))
    # One of many variants of a family: the short run of the tests leaves the longer checks out.
    is_variant: bool = False


@cache
def families() -> dict[str, Family]:
    """All families by name, variants included."""
    found: dict[str, Family] = {}
    for info in iter_modules(__path__):
        if not info.name.startswith("_"):
            found |= import_module(f"{__name__}.{info.name}").FAMILIES
    return found


_FOLDERS = tempfile.TemporaryDirectory(prefix="varifocal-checkpoints-", ignore_cleanup_errors=True)


@cache
def built(name: str) -> Path:
    """The folder of this checkpoint, built at the first call; not to be written to."""
    folder = Path(_FOLDERS.name) / name
    folder.mkdir()
    families()[name].build(folder)
    return folder
