"""Numbers as texts write them: signs, dollars, thousands, and points that end a sentence."""

import re
from decimal import Context, Decimal

TOLERANCE = Decimal("1e-5")

# Digits with points and commas among them, never at the end: there they end a sentence.
RUN = r"[-+−]?(?:\\?\$)?[-+−]?\.?[0-9](?:[0-9.,]*[0-9])?"
_WRITTEN = re.compile(r"[-+−]?(?:\\?\$)?[-+−]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]*)(?:\.[0-9]*)?")
_NUMBER = re.compile(r"([-+]?)(?=\.?[0-9])([0-9]*)\.?([0-9]*)")


def canonical(run: str) -> str:
    """One spelling per number: "$1,234.50" is "1234.5", "-0" is "0".

    What is no number, such as "3.14.15", stays as it is but for dollars and commas.
    """
    bare = re.sub(r"[\\$,\s]", "", run).replace("−", "-").rstrip(".")
    match = _NUMBER.fullmatch(bare)
    if match is None:
        return bare
    whole, part = match[2].lstrip("0") or "0", match[3].rstrip("0")
    number = f"{whole}.{part}" if part else whole
    return f"-{number}" if match[1] == "-" and number != "0" else number


def is_number(text: str) -> bool:
    """Whether a text is a number and nothing else, in a spelling that `canonical` returns."""
    return _NUMBER.fullmatch(text) is not None


def plain(text: str) -> str:
    """A number in its canonical spelling; any other text, a list such as "1,2" too, as it is."""
    number = canonical(text) if _WRITTEN.fullmatch(text) else ""
    return number if is_number(number) else text


def same(one: str, other: str) -> bool:
    """The same text, or numbers equal up to 1e-5, computed exactly however long they are."""
    if one == other or not (is_number(one) and is_number(other)):
        return one == other
    context = Context(prec=len(one) + len(other) + 1)
    return abs(context.subtract(Decimal(one), Decimal(other))) <= TOLERANCE
