"""Suites of requests to compare and measure on: the demo's drawn pictures, or a JSONL file.

A line of a file holds `messages` (OpenAI's chat format with picture parts) and may hold `later`
(what the user says after the answer), `id`, `family`, `images` (paths relative to the file, for
picture parts without a path), `reference` and `max_new_tokens`. A folder stands for the
`suite.jsonl` in it.
"""

import codecs
import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path
from typing import Any

from varifocal.chat import (
    LINE_KEYS,
    LoadPicture,
    check_picture,
    check_text,
    open_picture,
    read_messages,
)
from varifocal.demo.sample import Sample, Split
from varifocal.demo.world import FAMILIES, draw
from varifocal.errors import BadArtifact, BadOption, VarifocalError
from varifocal.images import MAX_BYTES
from varifocal.request import Message, Request, ask

MAX_NEW_TOKENS = 200
DEMO_LIMIT = 20  # requests a family, where the caller names no limit
FILE = "suite.jsonl"  # what a folder holds
SCENARIOS = "scenarios"  # the suite of `evaluation.scenarios`
LATER = "later"  # the field of a line with the user's next turns
_SHOWN = 20  # bad lines that an error lists
_MAX_LINE = 2 * MAX_BYTES  # a picture in base64 takes a third more than its file


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request of a suite, with what is known of its answer.

    With `later` it is the last turn of a conversation that begins with `request`: what the target
    answers before it is not known until it is asked (`turns.answered`).
    """

    id: str
    family: str
    request: Request
    later: tuple[Message, ...] = ()  # the user's turns after the request's
    reference: str | None = None  # the right answer, to the last turn
    fields: tuple[str, ...] = ()  # its parts that cannot be known without looking at the picture


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a file holds, and which of its lines are bad."""

    path: Path
    num_lines: int  # empty ones left out
    families: dict[str, int]  # good lines of each, in the order in which they come
    bad: tuple[tuple[int, str], ...]  # line number and reason
    cases: tuple[Case, ...] = ()  # those that were wanted, in the order of the file


def load_suite(
    name: str | Path = "demo",
    *,
    limit: int | None = None,
    families: Sequence[str] = (),
    split: Split = "test",
    with_later: bool = False,
) -> list[Case]:
    """The cases of "demo", "scenarios", a JSONL file or a folder, by family, `limit` of each.

    Without `limit` a file gives all its lines and the drawn suites a fixed number a family. Every
    line of a file is checked, and the pictures of those that are used are decoded, before
    anything is returned; BadArtifact lists all bad lines at once. The demo's pictures are by
    default those of its test split, on which nothing was trained or tuned.

    `with_later` gives turns that follow on an answer as well, as cases with `later`: those of a
    file as families of their own, such as "chat/2".
    """
    if limit is not None and limit < 1:
        raise BadOption(f"limit must be at least 1 request a family, got {limit}")
    if name == "demo":
        return _demo_cases(DEMO_LIMIT if limit is None else limit, families, split)
    if name == SCENARIOS:
        # Imported here: it builds on `Case`.
        from varifocal.evaluation import scenarios

        chosen = _chosen(families, scenarios.names(with_later=with_later), SCENARIOS)
        return scenarios.cases(chosen, limit)
    return _file_cases(suite_file(name), limit, families, with_later)


def examine(name: str | Path) -> Reading:
    """Look at every line of a file and decode every picture in it; nothing of them is kept."""
    return _read(suite_file(name), lambda family, number: True, keep=False)


def suite_file(name: str | Path) -> Path:
    """The JSONL file that a name stands for: itself, or the one in a folder."""
    path = Path(name)
    if not path.is_dir():
        return path
    if not (path / FILE).is_file():
        raise BadArtifact(
            f"the folder {path} holds no {FILE}; name a JSONL file, or a folder that `varifocal "
            "suite import` wrote"
        )
    return path / FILE


def demo_samples(
    family: str, limit: int, start: int = 0, split: Split = "test"
) -> Iterator[Sample]:
    """The first pictures of a family."""
    for index in range(start, start + limit):
        yield draw(family, index, split)


def demo_case(sample: Sample) -> Case:
    """The first question about a drawn picture."""
    turn = sample.turns[0]
    request = ask(turn.question, [sample.image], max_new_tokens=MAX_NEW_TOKENS, id=sample.id)
    return Case(
        id=sample.id,
        family=sample.family,
        request=request,
        reference=turn.answer,
        fields=turn.fields,
    )


def _demo_cases(limit: int, families: Sequence[str], split: Split) -> list[Case]:
    return [
        demo_case(sample)
        for family in _chosen(families, FAMILIES, "demo")
        for sample in demo_samples(family, limit, split=split)
    ]


def _chosen(wanted: Sequence[str], known: Sequence[str], suite: str) -> Sequence[str]:
    """The wanted families, or all; unknown ones are refused by name."""
    if unknown := [family for family in wanted if family not in known]:
        raise BadOption(
            f"the suite {suite} has no family {', '.join(unknown)}; it has {', '.join(known)}"
        )
    return list(dict.fromkeys(wanted)) or known


def _file_cases(
    path: Path, limit: int | None, families: Sequence[str], with_later: bool
) -> list[Case]:
    def is_wanted(family: str, number: int) -> bool:
        return (not families or family in families) and (limit is None or number <= limit)

    reading = _read(path, is_wanted)
    if reading.bad:
        listed = [f"line {number}: {reason}" for number, reason in reading.bad[:_SHOWN]]
        if len(reading.bad) > _SHOWN:
            more = len(reading.bad) - _SHOWN
            listed.append(f"and {more} more; `varifocal suite check {path}` lists them all")
        raise BadArtifact(
            f"{len(reading.bad)} of {reading.num_lines} lines of {path} are bad:\n  "
            + "\n  ".join(listed)
        )
    known = list(reading.families)
    _chosen(families, known, str(path))
    ordered = sorted(reading.cases, key=lambda case: known.index(case.family))
    by_family = (list(own) for _, own in groupby(ordered, key=lambda case: case.family))
    return [turn for own in by_family for turn in _turns(own, with_later)]


def _turns(cases: Sequence[Case], with_later: bool) -> list[Case]:
    """Conversations turn by turn: all first turns, then all second ones, and so on."""
    made = [replace(case, later=()) for case in cases]
    longest = max(len(case.later) for case in cases) if with_later else 0
    for number in range(1, longest + 1):
        made += [
            replace(
                case,
                id=f"{case.id}/{number + 1}",
                family=f"{case.family}/{number + 1}",
                later=case.later[:number],
                reference=None,
            )
            for case in cases
            if len(case.later) >= number
        ]
    return made


def _read(path: Path, is_wanted: Callable[[str, int], bool], *, keep: bool = True) -> Reading:
    """Check every line, and decode the pictures of those that are wanted.

    `is_wanted` gets a family and the how-manyth of its good lines this is, from 1.
    """
    families: Counter[str] = Counter()
    ids: dict[str, int] = {}
    bad: list[tuple[int, str]] = []
    cases: list[Case] = []
    num_lines = 0
    for number, line in _lines(path):
        num_lines += 1
        try:
            raw = _parsed(line)
            case = read_line(raw, path.parent, number=number, load=check_picture)
            if ids.setdefault(case.id, number) != number:
                raise BadArtifact(f"id {case.id!r} was used in line {ids[case.id]}")
            if is_wanted(case.family, families[case.family] + 1):
                case = read_line(raw, path.parent, number=number)
                if keep and not bad:
                    cases.append(case)
            families[case.family] += 1
        except (VarifocalError, OSError) as error:  # OSError: a path that no file can have
            bad.append((number, str(error)))
        except RecursionError:
            bad.append((number, "nested too deeply"))
    if not num_lines:
        raise BadArtifact(f"the suite {path} is empty; it needs one JSON object a line")
    return Reading(
        path=path,
        num_lines=num_lines,
        families=dict(families),
        bad=tuple(bad),
        cases=() if bad else tuple(cases),
    )


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not empty, with their numbers; one at a time, whatever the file's size."""
    try:
        with path.open("rb") as file:
            for number in count(1):
                line = file.readline(_MAX_LINE)
                if not line:
                    return
                if len(line) == _MAX_LINE:
                    raise BadArtifact(
                        f"line {number} of {path} is longer than {_MAX_LINE >> 20} MiB; a suite "
                        "has one request a line. Is it a JSONL file?"
                    )
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if line.strip():
                    yield number, line
    except FileNotFoundError:
        raise BadArtifact(
            f"there is no suite {path}; give a JSONL file, a folder with a {FILE}, or "
            '"demo" for the drawn pictures'
        ) from None
    except OSError as error:
        raise BadArtifact(f"the suite {path} cannot be read: {error}") from error


def _parsed(line: bytes) -> object:
    """The JSON of a line; what Python's reader lets pass silently is refused too."""
    try:
        return json.loads(line.decode("utf-8"), object_pairs_hook=_once)
    except UnicodeDecodeError as error:
        raise BadArtifact(f"not UTF-8 text (byte {error.start + 1}); save it as UTF-8") from error
    except ValueError as error:
        raise BadArtifact(f"not JSON ({error})") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
        raise BadArtifact(f"the field {', '.join(twice)} is given twice")
    return fields


def read_line(
    raw: object, folder: Path, *, number: int = 1, load: LoadPicture = open_picture
) -> Case:
    """The case in a parsed line; paths start from `folder`. Raises BadArtifact and its like.

    Its reference is the answer to `messages`, also where there is a `later`.
    """
    if not isinstance(raw, dict):
        raise BadArtifact("wanted a JSON object")
    known = (*LINE_KEYS, LATER)
    if unknown := [key for key in raw if key not in known]:
        raise BadArtifact(f"unknown field {', '.join(unknown)}; known are {', '.join(known)}")
    if "messages" not in raw:
        raise BadArtifact("messages are missing")
    pictures = raw.get("images", [])
    if not isinstance(pictures, list):
        raise BadArtifact(f"images must be a list of paths, got {pictures!r:.60}")
    for key in ("id", "family", "reference"):
        if not isinstance(raw.get(key), str | None):
            raise BadArtifact(f"{key} must be text, got {raw[key]!r:.60}")
        check_text(raw.get(key) or "", key)
    reference = raw.get("reference")
    if reference is not None and not reference.strip():
        raise BadArtifact("reference is empty; write the answer, or null where none is known")
    budget = raw.get("max_new_tokens", MAX_NEW_TOKENS)
    if not isinstance(budget, int) or isinstance(budget, bool):
        raise BadArtifact(f"max_new_tokens must be a count, got {budget!r:.60}")
    name = raw.get("id") or f"line-{number}"
    asked, later = raw["messages"], raw.get(LATER, [])
    if not isinstance(later, list) or any(
        not isinstance(turn, dict) or turn.get("role") != "user" for turn in later
    ):
        raise BadArtifact(
            f"{LATER} must be a list of messages of the user; the target gives the answers between"
        )
    whole = [*asked, *later] if isinstance(asked, list) else asked
    messages = read_messages(whole, folder, pictures=pictures, load=load)
    _check_answers(messages)
    first = len(messages) - len(later)
    request = Request(messages=messages[:first], max_new_tokens=budget, id=name)
    for turn in messages[first:]:
        replace(request, messages=(turn,))  # a turn without text is refused here
    return Case(
        id=name,
        family=raw.get("family") or "all",
        request=request,
        later=messages[first:],
        reference=reference,
    )


def _check_answers(messages: Sequence[Message]) -> None:
    for n, message in enumerate(messages):
        texts = [part for part in message.parts if isinstance(part, str)]
        if message.role == "assistant" and not "".join(texts).strip():
            raise BadArtifact(f"messages[{n}] is an empty answer; write it out or leave it away")
