r"""An arithmetic expression in a box that makes a target of given numbers: Countdown, 24."""

import re
from fractions import Fraction

from varifocal.diffusion.formats._arithmetic import evaluate, spelled
from varifocal.diffusion.formats._boxes import last_box
from varifocal.diffusion.formats._format import Ending, Format, Match
from varifocal.errors import BadOption

_REFERENCE = re.compile(r"\s*(-?[0-9]{1,12})\s*:((?:\s*[0-9]{1,12}\b)+)\s*")


class Expression(Format):
    """The content of the last box; what stands behind an equals sign in it does not count."""

    def locate(self, text: str) -> Match | None:
        """The expression as `_arithmetic` spells it, whether it can be evaluated or not."""
        box = last_box(text)
        if box is None or box.ending is Ending.BROKEN:
            return None
        value = spelled(text[slice(*box.content)])
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
