"""A short answer that fills the first line."""

import re

from varifocal.diffusion.formats._format import Format, Match, closing
from varifocal.diffusion.formats._numbers import is_number, plain, same

_LINE = re.compile(
    r"\s*+(?:(?i:(?:the\s)?(?:final\s)?answer)(?:\s++is\b\s*+:?+|\s*+:)\s*+)?+(?P<line>[^\n]+)"
)
_AROUND = " \t\r\f\v.,;:!?\"'`*“”’"


class ShortSpan(Format):
    """The first line that is not blank, behind "Answer:" or "The answer is" if it begins so."""

    def locate(self, text: str) -> Match | None:
        """The line in lower case, single-spaced, without punctuation around it."""
        found = _LINE.match(text)
        if found is None:
            return None
        begin = found.start("line")
        line = found["line"].rstrip()
        value = _plain(line)
        if not value:
            return None
        end, ending = closing(text, found.end())
        return Match(
            value=value, begin=0, answer=(begin, begin + len(line)), end=end, ending=ending
        )

    def agrees(self, value: str, reference: str) -> bool:
        """The same words, or numbers equal up to 1e-5."""
        return same(value, _plain(reference))


def _plain(line: str) -> str:
    words = " ".join(line.casefold().split())
    number = plain(words.rstrip(_AROUND))  # the point of ".5" is no punctuation
    if is_number(number):
        return number
    return plain(words.strip(_AROUND)) or words  # punctuation may be all of the answer


FORMATS = (ShortSpan(name="short_span", hint="Answer in a few words, on one line."),)
