"""Synthetic tasks for masked diffusion models: one file each, found by name."""

from importlib import import_module
from pkgutil import iter_modules

from varifocal.diffusion.tasks._task import Item, Split, Task
from varifocal.errors import BadOption

__all__ = ["Item", "Split", "Task", "find", "names"]


def names() -> list[str]:
    """The files of this folder."""
    return [info.name for info in iter_modules(__path__) if not info.name.startswith("_")]


def find(name: str) -> Task:
    """The task of tasks/<name>.py."""
    if name not in names():
        raise BadOption(f"no task is called {name!r}; there are {', '.join(names())}")
    task: Task = import_module(f"{__name__}.{name}").TASK
    return task
