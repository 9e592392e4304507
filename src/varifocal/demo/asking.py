"""Build turns: pick a phrasing, mark what only the picture tells, join lists of words."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from varifocal.demo.canvas import Canvas
from varifocal.demo.sample import Turn

NUMBERS: Final = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten",
    "eleven", "twelve",
)  # fmt: skip
ORDINALS: Final = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth",
    "eleventh", "twelfth",
)  # fmt: skip
_FIELD: Final = re.compile(r"<([^<>]+)>")


def turn(rng: Random, questions: Sequence[str], marked: str) -> Turn:
    """One of the phrasings, with an answer in which <...> encloses the fields."""
    fields = tuple(_FIELD.findall(marked))
    assert fields, marked
    answer = _FIELD.sub(r"\1", marked)
    return Turn(_with_article(rng.choice(questions)), _with_article(answer), fields)


def _with_article(text: str) -> str:
    """Orange is the only colour or shape before which `a` becomes `an`."""
    return text.replace(" a orange", " an orange")


def listed(parts: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def counted(number: int, noun: str) -> str:
    """`<one> star`, `<two> stars`, with the number as a field."""
    return f"<{NUMBERS[number]}> {noun}{'' if number == 1 else 's'}"


def plural(number: int, noun: str) -> str:
    return noun if number == 1 else f"{noun}s"


@dataclass(frozen=True)
class Coloured:
    """A shape in a picture, as questions and answers call it."""

    colour: str
    shape: str

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    @property
    def marked(self) -> str:
        return f"<{self.colour}> <{self.shape}>"


@dataclass(frozen=True)
class Draft:
    """A finished drawing with all that may be asked about it.

    `main` are the questions its family is known for, `more` the others, `long` asks for a full
    description.
    """

    canvas: Canvas
    main: tuple[Turn, ...]
    more: tuple[Turn, ...]
    long: Turn

    def pick(self, rng: Random, num_turns: int) -> tuple[Turn, ...]:
        """A main question first, then others; no question twice."""
        first = rng.choice(self.main)
        others = [t for t in (*self.main, *self.more, self.long) if t is not first]
        return distinct((first, *rng.sample(others, len(others))), num_turns)


def distinct(turns: Sequence[Turn], limit: int) -> tuple[Turn, ...]:
    """The first `limit` turns whose questions differ."""
    by_question: dict[str, Turn] = {}
    for candidate in turns:
        by_question.setdefault(candidate.question, candidate)
    return tuple(by_question.values())[:limit]
