r"""The last box of a text: \boxed{...}, also \fbox{...} and the bare "\boxed 5$"."""

import re
from abc import abstractmethod
from dataclasses import dataclass

from varifocal.diffusion.formats._format import Ending, Format, Match

_OPENING = re.compile(r"\\(?:boxed|fbox)(\s*\{)?")
_BARE = re.compile(r"[ \t]*([^$\n]*)")
_BRACE = re.compile(r"[{}]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Offsets of a box, and what ends it; broken while braces are open."""

    begin: int
    content: tuple[int, int]
    end: int
    ending: Ending


class InLastBox(Format):
    """An answer in the last box. None while its braces are open, and none in an empty one."""

    @abstractmethod
    def spelled(self, content: str) -> str:
        """The content of a box, normalised; empty if it says nothing."""

    def locate(self, text: str) -> Match | None:
        """What is in the box, and the box's offsets."""
        box = last_box(text)
        if box is None or box.ending is Ending.BROKEN:
            return None
        value = self.spelled(text[slice(*box.content)])
        if not value:
            return None
        return Match(
            value=value,
            begin=box.begin,
            answer=box.content,
            end=box.end,
            ending=box.ending,
            is_last=True,
        )


def last_box(text: str) -> Box | None:
    r"""The box that the scorers of MATH take: the last \boxed, or the last \fbox if there is none.

    Braces are counted as they do, escaped ones too.
    """
    begin = text.rfind(r"\boxed")
    if begin < 0:
        begin = text.rfind(r"\fbox")
    opening = _OPENING.match(text, begin) if begin >= 0 else None
    if opening is None:
        return None
    if opening[1] is None:
        return _bare(text, opening)
    depth = 1
    for brace in _BRACE.finditer(text, opening.end()):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            content = opening.end(), brace.start()
            return Box(begin=begin, content=content, end=brace.end(), ending=Ending.CLOSED)
    content = opening.end(), len(text)
    return Box(begin=begin, content=content, end=len(text), ending=Ending.BROKEN)


def _bare(text: str, opening: re.Match[str]) -> Box:
    """Up to a dollar or the end of the line; a marker with nothing behind it yet is broken."""
    content = _BARE.match(text, opening.end())
    assert content is not None  # it may match nothing
    is_closed = content.end() < len(text)
    ending = Ending.CLOSED if is_closed else Ending.OPEN if content[1] else Ending.BROKEN
    return Box(
        begin=opening.start(),
        content=content.span(1),
        end=content.end() + is_closed,
        ending=ending,
    )
