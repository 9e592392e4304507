"""A JSON object."""

import json
import re
from typing import NoReturn

from varifocal.diffusion.formats._format import Ending, Format, Match
from varifocal.errors import BadOption

_PART = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[{}\[\]]', re.DOTALL)
_DEEPEST = 100  # a parser of nested brackets recurses


class JSONObject(Format):
    """The first balanced {...} that is JSON; braces within its strings do not count.

    Balanced groups that are no JSON are prose and passed over, never looked into: an object within
    a damaged one is not the answer. While a group is open it is the answer, and a broken one.
    """

    def locate(self, text: str) -> Match | None:
        """The object with sorted keys and without white space; text as it is while it is open."""
        begin = text.find("{")
        while begin >= 0:
            end = _balanced(text, begin)
            if end is None:
                return _match(text[begin:], begin, len(text), Ending.BROKEN)
            value = _canonical(text[begin:end])
            if value is not None:
                return _match(value, begin, end, Ending.CLOSED)
            begin = text.find("{", end)
        return None

    def agrees(self, value: str, reference: str) -> bool:
        """Equal once parsed: order of keys and white space aside, 1.0 and 1 alike."""
        known = _canonical(reference)
        if known is None:
            raise BadOption(f"the reference of a json answer must be JSON, got {reference!r}")
        return value == known


def _match(value: str, begin: int, end: int, ending: Ending) -> Match:
    return Match(value=value, begin=begin, answer=(begin, end), end=end, ending=ending)


def _balanced(text: str, begin: int) -> int | None:
    """Behind the bracket that closes the one at `begin`."""
    depth = 0
    for part in _PART.finditer(text, begin):
        if part[0] in "{[":
            depth += 1
        elif part[0] in "}]":
            depth -= 1
            if depth == 0:
                return part.end()
    return None


def _canonical(text: str) -> str | None:
    if _depth(text) > _DEEPEST:
        return None
    try:
        return json.dumps(
            json.loads(text, parse_constant=_refuse, parse_float=_whole),
            sort_keys=True,
            separators=(",", ":"),
        )
    except ValueError:  # JSONDecodeError and numbers of thousands of digits
        return None


def _depth(text: str) -> int:
    depth = deepest = 0
    for part in _PART.finditer(text):
        if part[0] in "{[":
            depth += 1
            deepest = max(deepest, depth)
        elif part[0] in "}]":
            depth -= 1
    return deepest


def _whole(digits: str) -> int | float:
    """A float that is a whole number is that number."""
    value = float(digits)
    return int(value) if value.is_integer() else value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


FORMATS = (JSONObject(name="json", hint="Answer with one JSON object."),)
