"""Which tokens a drafter brings: by kind of word, by origin of the word, by stage of the answer.

Every token after the prefill's was either drafted and accepted or is the target's own. Here it gets
a label of each division; `DEFINITIONS` says what the labels mean, in the words of the report.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import pairwise
from typing import Final

from varifocal.commit import Commit
from varifocal.evaluation.suites import Case
from varifocal.request import Request
from varifocal.result import GenerationResult

Counts = dict[str, dict[str, int]]  # label: {"tokens", "drafted"}, stages "rounds" as well
Decode = Callable[[Sequence[int]], str]

FUNCTION_WORDS: Final = tuple(
    """a about above across after against all along also although am among an and another any are
    around as at be because been before behind being below beneath beside between both but by can
    cannot could did do does doing done down during each either every for from had has have having
    he her hers him his how i if in inside into is it its itself just may me might mine must my near
    neither no nor not of off on onto or other our ours out outside over shall she should since so
    some such than that the their theirs them then there these they this those though through to
    together too toward towards under until up upon us very was we were what when where whether
    which while who whom whose why will with within without would yes yet you your yours""".split()
)
_FUNCTION: Final = frozenset(FUNCTION_WORDS)
_PIECE: Final = re.compile(r"\w+(?:[.,:/'’-]\w+)*|[^\w\s]")
STAGES: Final = ("2-8", "9-32", "33-128", "129+")
_STAGE_ENDS: Final = (8, 32, 128)
KINDS: Final = ("copied", "number", "other", "function", "punctuation", "space", "end")
SOURCES: Final = ("picture", "template")

DEFINITIONS: Final[dict[str, str]] = {
    "word": "A run of letters, digits and underscores, with single . , : / ' - inside it; case "
    "does not matter. A token belongs to the word or mark in which its first character that is no "
    "space lies, so all tokens of a long word are of one kind: the first that fits.",
    "end": "The token that ends the answer, and any other without text.",
    "space": "A token of spaces or line breaks alone.",
    "punctuation": "A character that is no letter, digit or space, outside of words.",
    "function": f"One of {len(FUNCTION_WORDS)} English function words: "
    f"{', '.join(FUNCTION_WORDS)}.",
    "copied": "Any other word that stands in the request's text or earlier in the answer.",
    "number": "Any other word with a digit in it.",
    "other": "Any other word: neither said before nor a number.",
    "picture": "A word that needs the picture. The answer's words are aligned with those of the "
    "suite's right answer, whose parts that need the picture are marked. A word that the right "
    "answer does not have needs the picture, unless the right answers about the family's other "
    "pictures have it outside of such parts.",
    "template": "Any other word or mark, spaces and the end.",
    "stage": "Tokens are counted from 1, the prefill's. A round belongs to the stage in which its "
    "first token lies, with all its tokens.",
}


@dataclass(frozen=True)
class Labels:
    """What each token of an answer is."""

    kinds: tuple[str, ...]
    sources: tuple[str, ...]  # empty where the suite does not say what needs the picture


@dataclass(frozen=True, kw_only=True)
class Breakdown:
    """Tokens after the prefill, and how many of them were drafted, in three divisions.

    The labels of a division add up to all tokens; `sources` may be empty.
    """

    kinds: Counts = field(default_factory=dict)
    sources: Counts = field(default_factory=dict)
    stages: Counts = field(default_factory=dict)


def labels_of(
    request: Request,
    tokens: Sequence[int],
    decode: Decode,
    eos_ids: frozenset[int],
    source: "Source | None" = None,
) -> Labels:
    """The labels of an answer, for any tokenizer that `decode` belongs to."""
    text, places = _places(tokens, decode, eos_ids)
    pieces = list(_PIECE.finditer(text))
    kinds = _kinds(pieces, _said(request))
    sources = source.of(pieces) if source else []
    token_kinds, token_sources = [], []
    for start, end in places:
        number = _piece_at(pieces, text, start, end)
        if number is None:
            token_kinds.append("space" if text[start:end] else "end")
            token_sources.append("template")
        else:
            token_kinds.append(kinds[number])
            token_sources.append(sources[number] if sources else "")
    return Labels(tuple(token_kinds), tuple(token_sources) if source else ())


def break_down(result: GenerationResult, labels: Labels) -> Breakdown:
    """Count one run; `labels` are those of its token ids."""
    has_sources = bool(labels.sources)
    made = Breakdown(
        kinds={kind: {"tokens": 0, "drafted": 0} for kind in KINDS},
        sources={s: {"tokens": 0, "drafted": 0} for s in SOURCES if has_sources},
        stages={stage: {"rounds": 0, "tokens": 0, "drafted": 0} for stage in STAGES},
    )
    place = len(result.prefill.tokens)
    for decided in result.rounds:
        stage = made.stages[stage_of(place + 1)]
        stage["rounds"] += 1
        for number in range(len(decided.tokens)):
            of = [stage, made.kinds[labels.kinds[place]]]
            of += [made.sources[labels.sources[place]]] if has_sources else []
            for counts in of:
                counts["tokens"] += 1
                counts["drafted"] += number < decided.num_accepted
            place += 1
    return made


def pooled(parts: Iterable[Breakdown]) -> Breakdown:
    """The counts of all of them together."""
    whole = Breakdown()
    for part in parts:
        for own, more in (
            (whole.kinds, part.kinds),
            (whole.sources, part.sources),
            (whole.stages, part.stages),
        ):
            for label, counts in more.items():
                sums = own.setdefault(label, {})
                for name, count in counts.items():
                    sums[name] = sums.get(name, 0) + count
    return whole


def stage_of(position: int) -> str:
    """The stage of a token, counted from 1."""
    return STAGES[sum(position > end for end in _STAGE_ENDS)]


class Source:
    """Where the words of answers to one case come from: the picture, or a template."""

    def __init__(self, case: Case, family: Sequence[Case]) -> None:
        """`family`: all cases of its family, itself among them. The case has marked parts."""
        reference = case.reference or ""
        self._words = [_folded(piece) for piece in _PIECE.finditer(reference)]
        self._needs = needs_picture(reference, case.fields)
        self._template = frozenset(
            word for other in family if other is not case for word in _template(other)
        )

    @classmethod
    def known(cls, case: Case, family: Sequence[Case]) -> "Source | None":
        """None where the suite does not mark what needs the picture."""
        return cls(case, family) if case.fields and case.reference else None

    def of(self, pieces: Sequence[re.Match[str]]) -> list[str]:
        """Of each word and mark of an answer."""
        words = [_folded(piece) for piece in pieces]
        needs = [word not in self._template for word in words]
        matcher = SequenceMatcher(None, self._words, words, autojunk=False)
        for start, at, length in matcher.get_matching_blocks():
            needs[at : at + length] = self._needs[start : start + length]
        return ["picture" if need else "template" for need in needs]


def needs_picture(reference: str, fields: Sequence[str]) -> list[bool]:
    """Of each word and mark of a right answer, whether it lies in one of its marked parts.

    Raises ValueError where the parts are not in it, in this order.
    """
    pieces = list(_PIECE.finditer(reference))
    starts, ends = {p.start() for p in pieces}, {p.end() for p in pieces}
    needs, position = [False] * len(pieces), 0
    for part in fields:
        start = reference.find(part, position)
        while start >= 0 and not (start in starts and start + len(part) in ends):
            start = reference.find(part, start + 1)
        if start < 0:
            raise ValueError(f"the part {part!r} is not in {reference!r} after {position}")
        position = start + len(part)
        for number, piece in enumerate(pieces):
            needs[number] |= start <= piece.start() < position
    return needs


def _template(case: Case) -> list[str]:
    reference = case.reference or ""
    pieces = _PIECE.finditer(reference)
    needs = needs_picture(reference, case.fields)
    return [_folded(piece) for piece, need in zip(pieces, needs, strict=True) if not need]


def _places(
    tokens: Sequence[int], decode: Decode, eos_ids: frozenset[int]
) -> tuple[str, list[tuple[int, int]]]:
    """The whole text, stop texts included, and the part of it that each token brought.

    A token that brings the first bytes of a character only has an empty part before it.
    """
    commit = Commit(decode, eos_ids, max(len(tokens), 1))
    ends = [0]
    for token in tokens:
        commit.push([token])
        ends.append(len(commit.text))
    return commit.text, list(pairwise(ends))


def _piece_at(pieces: Sequence[re.Match[str]], text: str, start: int, end: int) -> int | None:
    """The number of the piece in which a token begins; None for spaces and what is no text."""
    spaces = len(text[start:end]) - len(text[start:end].lstrip())
    first = start + spaces
    if first >= len(text) or (first == end > start):
        return None
    number = bisect_right(pieces, first, key=re.Match.start) - 1
    return number if number >= 0 and first < pieces[number].end() else None


def _kinds(pieces: Sequence[re.Match[str]], said: frozenset[str]) -> list[str]:
    known, kinds = set(said), []
    for piece in pieces:
        word = _folded(piece)
        kinds.append(_kind(word, known))
        known.add(word)
    return kinds


def _kind(word: str, known: set[str]) -> str:
    if not re.match(r"\w", word):
        return "punctuation"
    if word in _FUNCTION:
        return "function"
    if word in known:
        return "copied"
    return "number" if any(letter.isdigit() for letter in word) else "other"


def _said(request: Request) -> frozenset[str]:
    """The words of the request's own text, without the chat template."""
    texts = (part for message in request.messages for part in message.parts)
    words = (_PIECE.finditer(part) for part in texts if isinstance(part, str))
    return frozenset(_folded(piece) for found in words for piece in found)


def _folded(piece: re.Match[str]) -> str:
    return piece[0].casefold()
