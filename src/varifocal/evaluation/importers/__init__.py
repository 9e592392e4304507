"""Published sets of questions about pictures, read as suites: one file a layout, found by name."""

from importlib import import_module
from pkgutil import iter_modules

from varifocal.errors import BadOption
from varifocal.evaluation.importers._layout import Layout


def layout_names() -> list[str]:
    """The files of this folder."""
    return [info.name for info in iter_modules(__path__) if not info.name.startswith("_")]


def find_layout(name: str) -> Layout:
    """The LAYOUT that importers/<name>.py defines."""
    if name not in layout_names():
        raise BadOption(f"there is no layout {name!r}; there are {', '.join(layout_names())}")
    layout = import_module(f"{__name__}.{name}").LAYOUT
    assert isinstance(layout, Layout), name
    return layout
