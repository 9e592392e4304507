"""Options that were typed: text becomes the value that a setting's type wants."""

import json
from typing import Any, get_args

from pydantic import TypeAdapter, ValidationError

from varifocal.errors import BadOption


def typed_value(owner: str, key: str, text: str, hint: Any) -> Any:
    """The setting `key` of `owner` as `hint` wants it; raises BadOption for a text that is none."""
    adapter: TypeAdapter[Any] = TypeAdapter(hint)
    for candidate in (text, literal(text)):  # pydantic reads numbers and yes/no from text
        if isinstance(candidate, bool) and bool not in (hint, *get_args(hint)):
            continue  # or pydantic would take it for 1 or 0
        try:
            return adapter.validate_python(candidate)
        except ValidationError:
            continue
    wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    raise BadOption(f"{owner}'s option {key} wants {wanted}, got {text!r}")


def literal(text: str) -> Any:
    """Numbers, true, false, null and lists as in JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
