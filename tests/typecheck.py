"""What the import hook of conftest.py checks every annotated function of varifocal with."""

from typing import Any, Self

from beartype import BeartypeConf, FrozenDict, beartype

# The hook decorates functions, not classes, and beartype cannot tell there what `Self` is.
checked = beartype(conf=BeartypeConf(hint_overrides=FrozenDict({Self: Any})))
