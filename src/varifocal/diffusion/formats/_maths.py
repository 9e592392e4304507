r"""Short answers in LaTeX, made comparable: the conventions that scorers of MATH agree on.

Units, dollars, percent and degree signs, spacing and \left, \right go; fractions and roots get
their braces; "x = 5" is 5; text is taken out of \text.
"""

import re
from fractions import Fraction

from varifocal.diffusion.formats._numbers import is_number, plain

# A number longer than this is compared by its digits.
_LONGEST = 60

_STEPS = [
    (re.compile(pattern), new)
    for pattern, new in [
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\(?:left|right|displaystyle|quad|qquad)(?![a-zA-Z])", ""),
        (r"\\[!,;: ]|~", ""),
        (r"\^\s*(?:\\circ|\{\s*\\circ\s*\})", ""),
        (r"\\?[$%]", ""),
        (r"(?<=[0-9])\{,\}(?=[0-9])", ","),
        # What follows an amount is its unit.
        (r"(?<=\S)\s*\\(?:text|mbox|mathrm|textrm)\s*\{[^{}]*\}(?:\^\{?[23]\}?)?\s*$", ""),
        (r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf)\s*\{([^{}]*)\}", r"\1"),
        (r"\s+", ""),
        (r"\.$", ""),
        (r"^[a-zA-Z]{1,2}=(?=[^=]+$)", ""),
        (r"\\sqrt([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"\\frac([0-9a-zA-Z])([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        (r"\\frac([0-9a-zA-Z])\{", r"\\frac{\1}{"),
        (r"\\frac(\{[^{}]*\})([0-9a-zA-Z])", r"\\frac\1{\2}"),
        (r"^(-?)([0-9]+)/(-?[0-9]+)$", r"\1\\frac{\2}{\3}"),
    ]
]
_RATIO = re.compile(r"(-?)\\frac\{(-?[0-9]+)\}\{(-?[0-9]+)\}")


def normalise(latex: str) -> str:
    """The spelling that all answers meaning the same by these conventions share."""
    for pattern, new in _STEPS:
        latex = pattern.sub(new, latex)
    return plain(latex)


def same_maths(one: str, other: str) -> bool:
    """The same when normalised, or numbers and fractions that are equal up to 1e-5."""
    one, other = normalise(one), normalise(other)
    if one == other:
        return True
    left, right = _value(one), _value(other)
    return left is not None and right is not None and abs(left - right) <= Fraction(1, 100_000)


def _value(text: str) -> Fraction | None:
    if len(text) > _LONGEST:
        return None
    if is_number(text):
        return Fraction(text)
    ratio = _RATIO.fullmatch(text)
    if ratio is None or int(ratio[3]) == 0:
        return None
    value = Fraction(int(ratio[2]), int(ratio[3]))
    return -value if ratio[1] else value
