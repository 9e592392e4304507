r"""An arithmetic expression in a box that makes a target of given numbers: Countdown, 24."""

import re
from fractions import Fraction

from varifocal.diffusion.formats._arithmetic import evaluate, spelled
from varifocal.diffusion.formats._boxes import InLastBox
from varifocal.errors import BadOption

_REFERENCE = re.compile(r"\s*(-?[0-9]{1,12})\s*:((?:\s*[0-9]{1,12}\b)+)\s*")


class Expression(InLastBox):
    """The content of the last box; what stands behind an equals sign in it does not count."""

    def spelled(self, content: str) -> str:
        """As `_arithmetic` spells it, whether it can be evaluated or not."""
        return spelled(content)

    def agrees(self, value: str, reference: str) -> bool:
        """It makes the target and uses each number once: reference "24: 4 6 8 8"."""
        known = _REFERENCE.fullmatch(reference)
        if known is None:
            raise BadOption(
                'the reference of an expr answer is the target and the numbers, "24: 4 6 8 8"; '
                f"got {reference!r}"
            )
        result = evaluate(value)
        if result is None:
            return False
        made, used = result
        is_target = abs(made - int(known[1])) <= Fraction(1, 100_000)
        return is_target and sorted(used) == sorted(map(Fraction, known[2].split()))


FORMATS = (
    Expression(
        name="expr",
        hint=r"Put the expression in \boxed{}; use each number once, with + - * / and brackets.",
    ),
)
