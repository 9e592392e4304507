"""What a table of word pieces would guess: the baseline that shows how much of tau is template.

An n-gram table with back-off and no network drafts a chain of `DEPTH` tokens. Its tau is counted
offline along texts that are there already, by the same rules: rounds start where the last one
ended, and what lies behind the end of the text does not count.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from varifocal.demo.world import FAMILIES, draw
from varifocal.evaluation.suites import Case
from varifocal.targets._hf import HFTarget

ORDER = 5  # tokens of an n-gram, the guessed one included
DEPTH = 6
DEMO_PICTURES = 500  # training pictures of each family
_START = -1  # stands before an answer


class NgramTable:
    """Counts of what follows up to `order` - 1 tokens; the longest known context decides."""

    def __init__(self, order: int = ORDER) -> None:
        self._order = order
        self._counts: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def add(self, tokens: Sequence[int], times: int = 1) -> None:
        """Count an answer; `times=-1` takes it out again."""
        padded = [_START] * (self._order - 1) + list(tokens)
        for end in range(self._order - 1, len(padded)):
            for size in range(self._order):
                self._counts[tuple(padded[end - size : end])][padded[end]] += times

    def guess(self, answer: Sequence[int]) -> int | None:
        """The likeliest next token; of equals the smallest."""
        padded = [_START] * (self._order - 1) + list(answer[-self._order :])
        for size in range(self._order - 1, -1, -1):
            seen = self._counts.get(tuple(padded[len(padded) - size :]))
            best = max(seen.items(), key=lambda pair: (pair[1], -pair[0])) if seen else (0, 0)
            if best[1] > 0:
                return best[0]
        return None

    def chain(self, answer: Sequence[int], depth: int) -> list[int]:
        """The next tokens, one after another."""
        made: list[int] = []
        for _ in range(depth):
            token = self.guess([*answer[-self._order :], *made])
            if token is None:
                break
            made.append(token)
        return made


@dataclass(frozen=True)
class Walk:
    """Drafted rounds along given texts."""

    tokens: int  # after the first one
    rounds: int

    @property
    def tau(self) -> float:
        """Tokens per round; 1.0 where there was no round."""
        return self.tokens / self.rounds if self.rounds else 1.0

    def __add__(self, other: "Walk") -> "Walk":
        return Walk(self.tokens + other.tokens, self.rounds + other.rounds)


def walk(table: NgramTable, answer: Sequence[int], depth: int = DEPTH) -> Walk:
    """Draft along one greedy text."""
    position = rounds = 0  # of the root
    while position < len(answer) - 1:
        following = answer[position + 1 :]
        guessed = table.chain(answer[: position + 1], depth)
        hits = 0
        while hits < min(len(guessed), len(following)) and guessed[hits] == following[hits]:
            hits += 1
        position += min(hits + 1, len(following))
        rounds += 1
    return Walk(max(len(answer) - 1, 0), rounds)


def ngram_walks(
    target: HFTarget,
    cases: Sequence[Case],
    answers: Sequence[Sequence[int]],
    training: Iterable[str] = (),
) -> list[Walk]:
    """The table's rounds along each case's own plain answer.

    The table learns the `training` texts; without any, each case's table learns what the suite
    says to the other cases (references, or plain answers where there is none).
    """
    end = sorted(target.eos_ids)[:1]
    table = NgramTable()

    def read(text: str) -> list[int]:
        return [*target.tokenizer(text, add_special_tokens=False)["input_ids"], *end]

    texts = list(training)
    for text in texts:
        table.add(read(text))
    if texts:
        return [walk(table, answer) for answer in answers]
    known = [
        list(answer) if case.reference is None else read(case.reference)
        for case, answer in zip(cases, answers, strict=True)
    ]
    for tokens in known:
        table.add(tokens)
    walks = []
    for tokens, answer in zip(known, answers, strict=True):
        table.add(tokens, times=-1)
        walks.append(walk(table, answer))
        table.add(tokens)
    return walks


@cache
def demo_answers(pictures: int = DEMO_PICTURES) -> tuple[str, ...]:
    """All answers about the first training pictures of each family of the demo."""
    samples = [draw(family, index, "train") for family in FAMILIES for index in range(pictures)]
    return tuple(turn.answer for sample in samples for turn in sample.turns)
