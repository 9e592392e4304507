"""Arithmetic over + - * / and brackets, evaluated exactly and without recursion."""

import re
from collections.abc import Callable
from fractions import Fraction
from operator import add, mul, sub, truediv

# What a puzzle needs, with room; beyond that an expression is not evaluated.
_MOST_TOKENS = 256
_TOKEN = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?|[-+*/()]")
_FRACTION = re.compile(r"\\[dtc]?frac\{([^{}]*)\}\{([^{}]*)\}")
_SPELLINGS = [
    (re.compile(pattern), new)
    for pattern, new in [
        (r"\\(?:left|right)(?![a-zA-Z])|\\[!,;: ]|[$\s]", ""),
        (r"\\(?:times|cdot)(?![a-zA-Z])|[×·]", "*"),
        (r"\\div(?![a-zA-Z])|÷", "/"),
        (r"−|–", "-"),
        (r"[\[{]", "("),
        (r"[\]}]", ")"),
        (r"=.*", ""),
    ]
]
_APPLY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": add,
    "-": sub,
    "*": mul,
    "/": truediv,
}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2, "negative": 3}


def spelled(text: str) -> str:
    r"""One spelling per expression: LaTeX's signs as + - * /, \frac as brackets, no "= 24"."""
    for _ in range(8):  # fractions within fractions
        text, count = _FRACTION.subn(r"((\1)/(\2))", text)
        if not count:
            break
    for pattern, new in _SPELLINGS:
        text = pattern.sub(new, text)
    return text


def evaluate(expression: str) -> tuple[Fraction, list[Fraction]] | None:
    """The value and the numbers used, in order; None if it is no expression or divides by zero."""
    tokens = _TOKEN.findall(expression)
    if sum(map(len, tokens)) != len(expression) or len(tokens) > _MOST_TOKENS:
        return None
    try:
        value = _value(tokens)
    except ZeroDivisionError:
        return None
    numbers = [Fraction(token) for token in tokens if token[0].isdigit()]
    return None if value is None else (value, numbers)


def _value(tokens: list[str]) -> Fraction | None:
    """Operator precedence with two stacks [Dijkstra's shunting yard]."""
    values: list[Fraction] = []
    waiting: list[str] = []  # operators and opening brackets
    wants_operand = True
    for token in tokens:
        if wants_operand and token in ("(", "-"):
            waiting.append("negative" if token == "-" else token)
        elif wants_operand != token[0].isdigit() or token == "(":
            return None
        elif wants_operand:
            values.append(Fraction(token))
            wants_operand = False
        elif token == ")":
            _reduce(waiting, values, 1)
            if not waiting:
                return None
            waiting.pop()
        else:
            _reduce(waiting, values, _BINDS[token])
            waiting.append(token)
            wants_operand = True
    if wants_operand:
        return None
    _reduce(waiting, values, 1)
    return None if waiting else values[0]


def _reduce(waiting: list[str], values: list[Fraction], binding: int) -> None:
    """Apply what binds at least as tightly, back to the last opening bracket."""
    while waiting and _BINDS.get(waiting[-1], 0) >= binding:
        operator, right = waiting.pop(), values.pop()
        values.append(-right if operator == "negative" else _APPLY[operator](values.pop(), right))
