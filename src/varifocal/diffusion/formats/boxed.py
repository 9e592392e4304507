r"""The content of the last \boxed{...}: the convention of MATH."""

from varifocal.diffusion.formats._boxes import InLastBox
from varifocal.diffusion.formats._maths import normalise, same_maths


class Boxed(InLastBox):
    """Mathematics in the last box."""

    def spelled(self, content: str) -> str:
        """As in `_maths`."""
        return normalise(content)

    def agrees(self, value: str, reference: str) -> bool:
        """The same mathematics by `_maths`."""
        return same_maths(value, reference)


FORMATS = (Boxed(name="boxed", hint=r"Put the final answer in \boxed{}."),)
