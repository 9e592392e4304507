"""Long texts that need far-away words for many steps: what the tiny long-context model is taught.

A text is records and links, then questions about them. Four kinds, by where the answer has to look:
`copy` walks through one long record, `record` jumps to a short one and stays, `chain` jumps with
every second word, `mix` takes turns between two records.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Final, Literal

Split = Literal["train", "valid", "test"]

_ONSETS: Final = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w", "z", "h")
SYLLABLES: Final = tuple(onset + vowel for onset in _ONSETS for vowel in "ao")
WORDS: Final = tuple(first + second for first in SYLLABLES for second in SYLLABLES)
KINDS: Final = ("copy", "record", "chain", "mix")
TURN: Final = 4  # words of one record before `mix` goes over to the other
END: Final = ";"
MARKS: Final = (END, ":", ">", *KINDS)

_LENGTHS: Final = {"copy": (64, 160), "record": (12, 40), "mix": (12, 32)}
_LINKS: Final = (4, 10)  # of a chain


@dataclass(frozen=True)
class Question:
    """Words that ask, and those of the answer, `END` included."""

    kind: str
    asked: tuple[str, ...]
    answer: tuple[str, ...]


_Fresh = Iterator[str]
_Drawn = tuple[list[tuple[str, ...]], list[Question]]


@dataclass(frozen=True)
class LongText:
    """Words to be read, then questions with their answers."""

    words: tuple[str, ...]
    questions: tuple[Question, ...]

    def written(self) -> tuple[list[str], list[bool]]:
        """All of its words, and which of them are of answers."""
        words, is_said = [*self.words], [False] * len(self.words)
        for question in self.questions:
            words += [*question.asked, *question.answer]
            is_said += [False] * len(question.asked) + [True] * len(question.answer)
        return words, is_said


def draw_long(kinds: tuple[str, ...], length: int, index: int, split: Split = "train") -> LongText:
    """Text number `index` of about `length` words: six tenths to read, the rest questions."""
    rng = Random(f"long/{'-'.join(kinds)}/{length}/{split}/{index}")
    fresh = iter(rng.sample(WORDS, len(WORDS)))  # tags and links occur once
    parts: list[tuple[str, ...]] = []
    pool: list[Question] = []
    size, readable = 0, 0.6 * length
    while size < readable:
        try:
            added, asked = _DRAW[kinds[len(pool) % len(kinds)]](rng, fresh, readable - size)
        except StopIteration:  # no word is left for another tag
            break
        parts += added
        pool += asked
        size += sum(map(len, added))
    rng.shuffle(parts)
    questions = _asked(rng, pool, length - size)
    return LongText(tuple(word for part in parts for word in part), questions)


def _asked(rng: Random, pool: list[Question], room: int | float) -> tuple[Question, ...]:
    """Questions of the pool, in another order every time around, until the room is used."""
    chosen: list[Question] = []
    while True:
        for question in rng.sample(pool, len(pool)):
            size = len(question.asked) + len(question.answer)
            if chosen and size > room:
                return tuple(chosen)
            room -= size
            chosen.append(question)


def _passage(rng: Random, fresh: _Fresh, kind: str, room: float) -> tuple[str, tuple[str, ...]]:
    low, high = _LENGTHS[kind]
    high = max(min(high, int(room)), min(low, 16))
    return next(fresh), tuple(rng.choices(WORDS, k=rng.randint(min(low, high), high)))


def _record(rng: Random, fresh: _Fresh, room: float, kind: str = "record") -> _Drawn:
    tag, words = _passage(rng, fresh, kind, room)
    question = Question(kind, (kind, tag, ":"), (*words, END))
    return [(tag, ":", *words, END)], [question]


def _copy(rng: Random, fresh: _Fresh, room: float) -> _Drawn:
    return _record(rng, fresh, room, "copy")


def _chain(rng: Random, fresh: _Fresh, room: float) -> _Drawn:
    names = [next(fresh) for _ in range(rng.randint(*_LINKS) + 1)]
    links: list[tuple[str, ...]] = [(a, ">", b, END) for a, b in pairwise(names)]
    said = [word for name in names[1:] for word in (name, ">")]
    return links, [Question("chain", ("chain", names[0], ">"), (*said[:-1], END))]


def _mix(rng: Random, fresh: _Fresh, room: float) -> _Drawn:
    (one, first), (other, second) = (_passage(rng, fresh, "mix", room / 2) for _ in range(2))
    turns = range(0, max(len(first), len(second)), TURN)
    said = [w for at in turns for words in (first, second) for w in words[at : at + TURN]]
    parts = [(one, ":", *first, END), (other, ":", *second, END)]
    return parts, [Question("mix", ("mix", one, other, ":"), (*said, END))]


_DRAW: Final[dict[str, Callable[[Random, _Fresh, float], _Drawn]]] = {
    "copy": _copy,
    "record": _record,
    "chain": _chain,
    "mix": _mix,
}
