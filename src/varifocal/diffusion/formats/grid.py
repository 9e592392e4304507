"""A solved 4x4 sudoku: sixteen digits."""

import re
from dataclasses import dataclass

from varifocal.diffusion.formats._format import Format, Match, closing
from varifocal.errors import BadOption

_RUN = re.compile(r"[0-9](?:\s*+[0-9])*+")
_SPACE = re.compile(r"\s*")
_REFERENCE = re.compile(r"(?P<puzzle>[0-4]{16})?(?P<solution>[1-4]{16})")


@dataclass(frozen=True, kw_only=True)
class Grid(Format):
    """The first run of exactly 16 digits from 1 to 4; white space among them is ignored.

    The characters around it are part of the span: they are no digits, which makes it the grid.
    """

    def locate(self, text: str) -> Match | None:
        """The sixteen digits, row by row."""
        for run in _RUN.finditer(text):
            digits = "".join(run[0].split())
            if len(digits) == 16 and set(digits) <= set("1234"):
                space = _SPACE.match(text, run.end())
                assert space is not None  # it may match nothing
                end, ending = closing(text, space.end())
                return Match(
                    value=digits,
                    begin=max(len(text[: run.start()].rstrip()) - 1, 0),
                    answer=run.span(),
                    end=end,
                    ending=ending,
                )
        return None

    def agrees(self, value: str, reference: str) -> bool:
        """All cells are right, or those that are 0 in the puzzle, where the reference has one.

        A reference is the solution, or puzzle and solution one behind the other.
        """
        known = _REFERENCE.fullmatch("".join(reference.split()))
        if known is None:
            raise BadOption(
                "the reference of a grid16 answer is 16 digits from 1 to 4, or 16 of the puzzle "
                f"(0 for empty cells) and then the solution's; got {reference!r}"
            )
        puzzle = known["puzzle"] or "0" * 16
        cells = zip(puzzle, known["solution"], value, strict=True)
        return all(given != "0" or wanted == cell for given, wanted, cell in cells)


FORMATS = (Grid(name="grid16", hint="Answer with the 16 digits of the solved grid, row by row."),)
