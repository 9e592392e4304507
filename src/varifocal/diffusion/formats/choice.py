r"""One of few words: a letter, or yes and no.

Three ways to say it, in this order: the last box, the last "answer is X" or "Answer: X", and the
text that begins with it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from varifocal.diffusion.formats._boxes import last_box
from varifocal.diffusion.formats._format import Ending, Format, Match, closing

_STATED = r"(?i:answer)(?:\s++is\s*+:?+|\s*+:)[\s(\[*\"'`]*+"
_WRAPPED = re.compile(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}")
_BLANKS = re.compile(r"[ \t]*")


@dataclass(frozen=True, kw_only=True)
class Choice(Format):
    """One of the words that `pattern` matches, and no longer word that begins with it."""

    pattern: str
    fold: Callable[[str], str] = str.lower  # makes spellings of one word equal
    # Letters that are words of the language too, "A" and "I": before a lower-case word they are no
    # choice, so that blanks behind them close nothing yet.
    articles: str = ""
    _stated: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _leading: re.Pattern[str] = field(init=False, repr=False, compare=False)
    _alone: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        word = rf"(?P<word>{self.pattern})(?![\w'’])"
        if self.articles:
            word += rf"(?!(?<=[{self.articles}])[ \t]+[a-z])"
        object.__setattr__(self, "_stated", re.compile(_STATED + word))
        object.__setattr__(self, "_leading", re.compile(r"\W*+" + word))
        object.__setattr__(self, "_alone", re.compile(rf"[\s(\[]*({self.pattern})[\s)\].]*"))

    def locate(self, text: str) -> Match | None:
        """The choice; none while a box is open, which says more than the rest."""
        box = last_box(text)
        if box is not None:
            if box.ending is Ending.BROKEN:
                return None
            content = _WRAPPED.sub(r"\1", text[slice(*box.content)])
            alone = self._alone.fullmatch(content)
            if alone is not None:
                return Match(
                    value=self.fold(alone[1]),
                    begin=box.begin,
                    answer=box.content,
                    end=box.end,
                    ending=box.ending,
                    is_last=True,
                )
        stated = list(self._stated.finditer(text))
        found = stated[-1] if stated else self._leading.match(text)
        return None if found is None else self._match(text, found, is_last=bool(stated))

    def _match(self, text: str, found: re.Match[str], *, is_last: bool) -> Match:
        at = found.end()
        if self.articles and found["word"] in self.articles:
            blanks = _BLANKS.match(text, at)
            assert blanks is not None  # it may match nothing
            at = blanks.end()
        end, ending = closing(text, at)
        return Match(
            value=self.fold(found["word"]),
            begin=found.start(),
            answer=found.span("word"),
            end=end,
            ending=ending,
            # A letter that comes first is taken for the answer, though a statement may follow.
            is_last=is_last,
        )

    def agrees(self, value: str, reference: str) -> bool:
        """The same word; the reference may stand in brackets."""
        return value == self.fold(reference.strip(" ().\n"))


FORMATS = (
    Choice(
        name="mc_letter",
        hint="Answer with the letter only.",
        pattern="[A-J]",
        fold=str.upper,
        articles="AI",
    ),
    Choice(name="yes_no", hint="Answer yes or no.", pattern="(?i:yes|no)"),
)
