r"""The content of the last \boxed{...}: the convention of MATH."""

from varifocal.diffusion.formats._boxes import last_box
from varifocal.diffusion.formats._format import Ending, Format, Match
from varifocal.diffusion.formats._maths import normalise, same_maths


class Boxed(Format):
    """The last box. None while its braces are open, and none in an empty one."""

    def locate(self, text: str) -> Match | None:
        """The content, normalised as in `_maths`."""
        box = last_box(text)
        if box is None or box.ending is Ending.BROKEN:
            return None
        value = normalise(text[slice(*box.content)])
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

    def agrees(self, value: str, reference: str) -> bool:
        """The same mathematics by `_maths`."""
        return same_maths(value, reference)


FORMATS = (Boxed(name="boxed", hint=r"Put the final answer in \boxed{}."),)
