"""Prompt lookup: when the last n tokens occurred before, draft what followed. [Saxena23]"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from varifocal.drafter import Drafter
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt
from varifocal.tree import DraftTree
from varifocal.verify import Verification

_GAP = -1  # stands for picture slots and special tokens: nothing matches across it


@dataclass
class _Text:
    """The text read so far, and where each n-gram in it ended last."""

    longest: int
    tokens: list[int] = field(default_factory=list)
    ends: dict[tuple[int, ...], int] = field(default_factory=dict)

    def append(self, token: int) -> None:
        """Index the tails that `token` follows, then add it. What a gap follows stays as it was."""
        for n in range(1, self.longest + 1):
            tail = self.tail(n)
            if not tail or token == _GAP:
                break
            self.ends[tail] = len(self.tokens)
        self.tokens.append(token)

    def tail(self, n: int) -> tuple[int, ...]:
        """The last n tokens; empty if there are fewer or a gap is among them."""
        tail = tuple(self.tokens[-n:])
        return () if len(tail) < n or _GAP in tail else tail

    def continuation(self, width: int) -> list[int]:
        """What followed the newest earlier occurrence of the longest matching tail."""
        for n in range(self.longest, 0, -1):
            end = self.ends.get(self.tail(n))
            if end is not None:
                return self._copy(end, width)
        return []

    def _copy(self, start: int, width: int) -> list[int]:
        """Tokens from `start` up to a gap; past the end it goes on with what it copied itself."""
        guess: list[int] = []
        for place in range(start, start + width):
            behind = place - len(self.tokens)
            token = self.tokens[place] if behind < 0 else guess[behind]
            if token == _GAP:
                break
            guess.append(token)
        return guess


class LookupDrafter(Drafter[_Text]):
    """Needs no weights and no features; never proposes picture slots or special tokens."""

    name: ClassVar[str] = "lookup"
    pictures: ClassVar[str] = "skips them: copies from text only"
    is_free: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        """The n-gram and how much to copy."""

        ngram: int = 3  # longest tail to look for
        depth: int = 10  # tokens to copy after it

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.ngram < 1:
                raise BadOption(f"ngram must be at least 1, got {self.ngram}")

    config: Config

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> _Text:
        """The prompt's text and the first token."""
        text = _Text(self.config.ngram)
        self._read(text, [*prompt.tokens.masked_fill(prompt.is_image, _GAP).tolist(), root])
        return text

    def propose(self, state: _Text, root: int, budget: Budget) -> DraftTree:
        """A chain, as long as the running acceptance makes it worth its cost."""
        guess = state.continuation(min(budget.depth, budget.nodes))
        if guess and budget.cost:
            scores = budget.confidence ** np.arange(1.0, len(guess) + 1)
            guess = guess[: budget.cost.best_size(scores, spent=0.0)]
        return DraftTree.chain([root, *guess], self.target.device)

    def observe(self, state: _Text, verdict: Verification, seen: Forward) -> None:
        """All decided tokens."""
        self._read(state, verdict.tokens)

    def _read(self, text: _Text, tokens: list[int]) -> None:
        special = self.target.banned_ids | self.target.eos_ids
        for token in tokens:
            text.append(_GAP if token in special else token)
