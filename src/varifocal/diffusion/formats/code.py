"""A Python program: a fenced block, or the definitions that a text begins a line with."""

import ast
import re
import warnings
from dataclasses import dataclass

from varifocal.diffusion.formats._format import Ending, Format, Match, closing
from varifocal.diffusion.formats._sandbox import passes

_FENCE = re.compile(r"^[ \t]*```[ \t]*(?P<language>[^`\s]*)[ \t]*\r?\n", re.MULTILINE)
_UNFENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_LANGUAGES = ("", "python", "python3", "py")
_OPENER = re.compile(
    r"^(?:def |async def |class |@\w|import [\w., ]+$|from [\w.]+ import )", re.MULTILINE
)
# Blank and indented lines, further definitions, comments, constants, and brackets that close.
_CONTINUES = re.compile(
    r"\s|$|def |async def |class |@|import |from |#|[)\]}]|[A-Za-z_]\w*[ \t]*=[^=]"
)
# How a line may begin that does go on: "de" may become "def", and "x =" a constant.
_MAY_CONTINUE = re.compile(r"@?\w*+[ \t]*+(?:def|de|d|=)?[ \t]*+")
_LONGEST = 30_000  # characters
_DEEPEST = 100  # CPython reads 200 brackets within each other


@dataclass(frozen=True, kw_only=True)
class Code(Format):
    """The first fenced block of Python, else from the first definition to the end of such lines.

    Closed by the closing fence, a top-level line of another kind or the stop token, and only if it
    parses. What it does is tried by the scorer alone, in a process of its own.
    """

    seconds: float = 5.0  # that the tests of an answer may take
    memory_bytes: int = 1 << 29  # of address space, where the system limits it

    def locate(self, text: str) -> Match | None:
        """The source without blank lines around it."""
        at = 0
        while fence := _FENCE.search(text, at):
            closer = _UNFENCE.search(text, fence.end())
            stop, end = closer.span() if closer else (len(text), len(text))
            if fence["language"].lower() in _LANGUAGES:
                ending = Ending.CLOSED if closer else Ending.OPEN
                return _match(text, fence.start(), (fence.end(), stop), end, ending)
            at = end
        opener = _OPENER.search(text)
        if opener is None:
            return None
        stop, end, ending = _extent(text, opener.start())
        return _match(text, opener.start(), (opener.start(), stop), end, ending)

    def is_sound(self, value: str) -> bool:
        """Whether it parses; not one of over 30,000 characters or 100 nested brackets."""
        if len(value) > _LONGEST or _depth(value) > _DEEPEST:
            return False
        try:
            with warnings.catch_warnings():  # of escapes such as "\d", which are no concern here
                warnings.simplefilter("ignore")
                return bool(ast.parse(value).body)
        except (SyntaxError, ValueError, OverflowError, RecursionError, MemoryError):
            return False

    def agrees(self, value: str, reference: str) -> bool:
        """Whether the reference, a program of assertions, runs to its end behind the answer."""
        return passes(value, reference, seconds=self.seconds, memory_bytes=self.memory_bytes)


def _extent(text: str, begin: int) -> tuple[int, int, Ending]:
    """Where the definitions stop, where the closer ends, and how."""
    at = begin
    while at < len(text):
        line_end = text.find("\n", at)
        if not _CONTINUES.match(text, at):
            undecided = _MAY_CONTINUE.match(text, at)
            assert undecided is not None  # it may match nothing
            return at, *closing(text, undecided.end())
        if line_end < 0:
            break
        at = line_end + 1
    return len(text), len(text), Ending.OPEN


def _match(text: str, begin: int, inner: tuple[int, int], end: int, ending: Ending) -> Match | None:
    source = text[slice(*inner)]
    value = source.rstrip()
    if not value:
        return None
    blank = len(value) - len(value.lstrip("\n"))
    return Match(
        value=value[blank:],
        begin=begin,
        answer=(inner[0] + blank, inner[0] + len(value)),
        end=end,
        ending=ending,
    )


def _depth(source: str) -> int:
    depth = deepest = 0
    for character in re.findall(r"[()\[\]{}]", source):
        depth += 1 if character in "([{" else -1
        deepest = max(deepest, depth)
    return deepest


FORMATS = (Code(name="code", hint="Answer with Python code in a ```python block."),)
