"""A number behind a marker: "#### 42" and "The answer is 42."."""

import re
from dataclasses import dataclass, field

from varifocal.diffusion.formats._format import Format, Match, closing
from varifocal.diffusion.formats._numbers import RUN, canonical, same
from varifocal.errors import BadOption


@dataclass(frozen=True, kw_only=True)
class NumberAfter(Format):
    """The number behind the first (or last) marker that a number follows.

    A point or comma behind the number closes it only once a token behind says that no digit
    follows: "3." may become "3.14".
    """

    marker: str  # a regular expression
    takes_last: bool = False
    _pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        try:
            pattern = re.compile(rf"(?:{self.marker})(?P<number>{RUN})[.,]*")
        except re.error as error:
            raise BadOption(
                "the marker of a number must be a regular expression, got "
                f"{self.marker!r} ({error})"
            ) from error
        object.__setattr__(self, "_pattern", pattern)

    def locate(self, text: str) -> Match | None:
        """The number, its thousands and dollars put aside."""
        all_found = list(self._pattern.finditer(text))
        if not all_found:
            return None
        found = all_found[-1 if self.takes_last else 0]
        end, ending = closing(text, found.end())
        return Match(
            value=canonical(found["number"]),
            begin=found.start(),
            answer=found.span("number"),
            end=end,
            ending=ending,
            is_last=self.takes_last,
        )

    def agrees(self, value: str, reference: str) -> bool:
        """Equal up to 1e-5."""
        return same(value, canonical(reference))


FORMATS = (
    # lm-evaluation-harness, gsm8k, strict: the first match.
    NumberAfter(name="number_hash", hint='End with "#### " and the number.', marker=r"####[ \t]*"),
    # lm-evaluation-harness, gsm8k with reasoning, strict: the first match.
    NumberAfter(
        name="number_phrase",
        hint='End with "The answer is " and the number.',
        marker=r"[Tt]he (?:final )?answer is:?[ \t]*",
    ),
)
