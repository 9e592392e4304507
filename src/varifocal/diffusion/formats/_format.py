"""What a task format is: one parser that both the gates and the scorer read answers with."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase

from varifocal.diffusion.candidate import Candidate
from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.formats._text import detokenizer


class Ending(Enum):
    """What ends an answer."""

    CLOSED = "closed"  # a closer that stands in the text
    OPEN = "open"  # nothing yet: the text ends first. A stop token there closes the answer
    BROKEN = "broken"  # nothing, and a stop token would not mend that


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """An answer in a text, by offsets of characters (each pair exclusive of its end)."""

    value: str  # normalised
    begin: int  # of the marker: 0 where standing first is what makes it the answer
    answer: tuple[int, int]  # never empty
    end: int  # behind the closer, or behind the answer
    ending: Ending
    # Whether a later one would take its place: then it is closed by the end of the text alone, and
    # all up to there is part of what makes it the answer.
    is_last: bool = False


def closing(text: str, at: int) -> tuple[int, Ending]:
    """The end and the ending of an answer that whatever stands at `at` closes."""
    return (at + 1, Ending.CLOSED) if at < len(text) else (at, Ending.OPEN)


@dataclass(frozen=True, kw_only=True)
class Format(ABC):
    """A way to state an answer. One of your own has `locate` and `agrees`, and is passed as it is.

    What a value is must not depend on what made the text end: only whether it is closed does.
    """

    name: str
    hint: str  # how a prompt may ask for it

    @abstractmethod
    def locate(self, text: str) -> Match | None:
        """The answer in a text that ended before any stop token, as a scorer would pick it.

        Any string will do: raises nothing, takes time linear in the text.
        """

    @abstractmethod
    def agrees(self, value: str, reference: str) -> bool:
        """Whether a value answers as the reference does. A malformed reference is a `BadOption`."""

    def is_sound(self, value: str) -> bool:
        """Whether a value is whole by rules of its own (a program's syntax); may take a while."""
        return True

    def extract(self, text: str) -> Match | None:
        """`locate`, and an unsound value as a broken one."""
        match = self.locate(text)
        if match is None or match.ending is Ending.BROKEN or self.is_sound(match.value):
            return match
        return replace(match, ending=Ending.BROKEN)

    def score(self, text: str, reference: str | Sequence[str]) -> bool:
        """Whether the answer in a text (cut at its stop token) is right.

        Of several references any will do. What `extract` calls broken is wrong.
        """
        references = [reference] if isinstance(reference, str) else list(reference)
        match = self.extract(text)
        if match is None or match.ending is Ending.BROKEN:
            return False
        return any(self.agrees(match.value, wanted) for wanted in references)

    def reader(self, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary) -> "Reader":
        """What extracts the answer of one row of one request, step after step."""
        return Reader(self, tokenizer, vocabulary)


class Reader:
    """Extracts the answer of one row from its provisional tokens; remembers the last step's."""

    def __init__(
        self, format: Format, tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
    ) -> None:
        self._format = format
        self._stops = vocabulary.stops
        self._detokenizer = detokenizer(tokenizer, vocabulary)
        self._ids: list[int] | None = None  # up to the first stop token, which is included
        self._candidate: Candidate | None = None
        self._judged: tuple[str, bool] | None = None  # the last value and whether it was sound

    def extract(self, ids: Sequence[int] | NDArray[np.integer]) -> Candidate | None:
        """The answer in the tokens of a canvas; tokens behind the first stop do not count.

        Free of cost while nothing before that stop has changed since the last call.
        """
        told: list[int] = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
        length = min((told.index(stop) for stop in self._stops if stop in told), default=len(told))
        has_stop = length < len(told)
        del told[length + has_stop :]
        if told != self._ids:
            self._ids = told
            self._candidate = self._read(told[:length], told)
        return self._candidate

    def _read(self, ids: list[int], with_stop: list[int]) -> Candidate | None:
        text = self._detokenizer.read(ids)
        match = self._format.locate(text.string)
        if match is None:
            return None
        # By the stop token, which then belongs to the answer with all that is before it.
        by_stop = len(with_stop) > len(ids) and (match.is_last or match.ending is Ending.OPEN)
        by_closer = match.ending is Ending.CLOSED and not match.is_last
        closed = (by_stop or by_closer) and match.ending is not Ending.BROKEN
        closed = closed and self._is_sound(match.value)
        place = text.tokens(match.begin, match.end)
        # What stands first does so because of all that is before it, silent tokens included.
        first = place.start if match.begin else 0
        last = len(with_stop) if by_stop and closed else place.stop
        return Candidate(
            value=match.value,
            span=tuple(range(first, last)),
            closed=closed,
            marker=first,
            ids=tuple(with_stop[first:last]),
            answer=tuple(text.tokens(*match.answer)),
        )

    def _is_sound(self, value: str) -> bool:
        if self._judged is None or self._judged[0] != value:
            self._judged = value, self._format.is_sound(value)
        return self._judged[1]
