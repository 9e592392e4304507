"""Suites of requests to compare and measure on: the drawn pictures of the demo, or a JSONL file.

A line of a file holds `messages` (OpenAI's chat format with picture parts) and may hold `id`,
`family`, `images` (paths relative to the file, for picture parts without a path), `reference` and
`max_new_tokens`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varifocal.chat import LINE_KEYS, check_picture, open_picture, read_messages
from varifocal.demo.sample import Sample, Split
from varifocal.demo.world import FAMILIES, draw
from varifocal.errors import BadArtifact, BadOption, VarifocalError
from varifocal.request import Request, ask

MAX_NEW_TOKENS = 200
DEMO_LIMIT = 20  # requests a family, where the caller names no limit
_SHOWN = 20  # bad lines that are listed


@dataclass(frozen=True, kw_only=True)
class Case:
    """One request of a suite, with what is known of its answer."""

    id: str
    family: str
    request: Request
    reference: str | None = None  # the right answer
    fields: tuple[str, ...] = ()  # its parts that cannot be known without looking at the picture


def load_suite(
    name: str | Path = "demo",
    *,
    limit: int | None = None,
    families: Sequence[str] = (),
    split: Split = "test",
) -> list[Case]:
    """The cases of "demo" or of a JSONL file, family by family, at most `limit` of each.

    Without `limit` a file gives all its lines and the demo `DEMO_LIMIT` pictures a family. Every
    line of a file is checked first; BadArtifact lists the bad ones. The demo's pictures are by
    default those of its test split, on which nothing was trained or tuned.
    """
    if limit is not None and limit < 1:
        raise BadOption(f"limit must be at least 1 request a family, got {limit}")
    if name == "demo":
        return _demo_cases(DEMO_LIMIT if limit is None else limit, families, split)
    return _file_cases(Path(name), limit, families)


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


def _file_cases(path: Path, limit: int | None, families: Sequence[str]) -> list[Case]:
    lines = _lines(path)
    checked = _each(path, lines, check_picture)
    known = list(dict.fromkeys(case.family for case in checked))
    chosen = set(_chosen(families, known, str(path)))
    taken: Counter[str] = Counter()
    kept = []
    for line, case in zip(lines, checked, strict=True):
        taken[case.family] += 1
        if case.family in chosen and (limit is None or taken[case.family] <= limit):
            kept.append(line)
    # Pictures are decoded only now, and only those that are used.
    cases = _each(path, kept, open_picture)
    return sorted(cases, key=lambda case: known.index(case.family))


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise BadArtifact(
            f'there is no suite {path}; give a JSONL file, or "demo" for the drawn pictures'
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadArtifact(f"the suite {path} cannot be read: {error}") from error
    lines = [(n, line) for n, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise BadArtifact(f"the suite {path} is empty; it needs one JSON object a line")
    return lines


def _each(path: Path, lines: Sequence[tuple[int, str]], load: Callable[..., Any]) -> list[Case]:
    """A case for every line; all bad lines are named in one error."""
    cases: list[Case] = []
    bad: list[str] = []
    ids: dict[str, int] = {}
    for number, line in lines:
        try:
            case = _case(json.loads(line), number, path, load)
        except ValueError as error:  # of json
            bad.append(f"line {number}: not JSON ({error})")
        except RecursionError:
            bad.append(f"line {number}: nested too deeply")
        except VarifocalError as error:
            bad.append(f"line {number}: {error}")
        else:
            if case.id in ids:
                bad.append(f"line {number}: id {case.id!r} was used in line {ids[case.id]}")
            ids[case.id] = number
            cases.append(case)
    if bad:
        more = [f"and {len(bad) - _SHOWN} more"] if len(bad) > _SHOWN else []
        listed = "\n  ".join(bad[:_SHOWN] + more)
        raise BadArtifact(f"{len(bad)} of {len(lines)} lines of {path} are bad:\n  {listed}")
    return cases


def _case(raw: object, number: int, path: Path, load: Callable[..., Any]) -> Case:
    if not isinstance(raw, dict):
        raise BadArtifact("wanted a JSON object")
    if unknown := [key for key in raw if key not in LINE_KEYS]:
        raise BadArtifact(f"unknown field {', '.join(unknown)}; known are {', '.join(LINE_KEYS)}")
    if "messages" not in raw:
        raise BadArtifact("messages are missing")
    pictures = raw.get("images", [])
    if not isinstance(pictures, list):
        raise BadArtifact(f"images must be a list of paths, got {pictures!r:.60}")
    for key in ("id", "family", "reference"):
        if not isinstance(raw.get(key), str | None):
            raise BadArtifact(f"{key} must be text, got {raw[key]!r:.60}")
    budget = raw.get("max_new_tokens", MAX_NEW_TOKENS)
    if not isinstance(budget, int) or isinstance(budget, bool):
        raise BadArtifact(f"max_new_tokens must be a count, got {budget!r:.60}")
    name = raw.get("id") or f"line-{number}"
    messages = read_messages(raw["messages"], path.parent, pictures=pictures, load=load)
    return Case(
        id=name,
        family=raw.get("family") or "all",
        request=Request(messages=messages, max_new_tokens=budget, id=name),
        reference=raw.get("reference"),
    )
