"""Conversations to record: from a JSONL file, or drawn by the demo's generator."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varifocal.chat import LINE_KEYS, read_messages
from varifocal.demo.sample import Split
from varifocal.errors import BadImage, BadOption, BadRequest, VarifocalError
from varifocal.request import Message, Request

_LISTED = 20  # bad lines that an error shows


@dataclass(frozen=True)
class Example:
    """A conversation with its assistant turns; pictures are made when it is read."""

    id: str
    family: str
    read: Callable[[], tuple[Message, ...]]


def demo_examples(
    split: Split, start: int, count: int, families: Sequence[str] = ()
) -> list[Example]:
    """Numbers `start` to `start + count` of the demo's generator, its families in turn.

    `families` leaves only these.
    """
    if count < 1 or start < 0:
        raise BadRequest(f"wanted at least one example from 0 on, got {count} from {start}")
    from varifocal.demo.world import FAMILIES

    if unknown := [family for family in families if family not in FAMILIES]:
        raise BadOption(
            f"the demo has no family {', '.join(unknown)}; it has {', '.join(FAMILIES)}"
        )
    turn = tuple(families) or FAMILIES
    return [_drawn(turn[n % len(turn)], n, split) for n in range(start, start + count)]


def _drawn(family: str, number: int, split: Split) -> Example:
    def read() -> tuple[Message, ...]:
        from varifocal.demo.world import draw

        try:
            sample = draw(family, number, split)
        except (AssertionError, ValueError) as error:  # what did not fit on the picture
            raise BadRequest(f"this picture did not work out: {error}") from error
        messages: list[Message] = []
        for k, turn in enumerate(sample.turns):
            parts = (turn.question,) if k else (sample.image, turn.question)
            messages += [Message("user", parts), Message("assistant", (turn.answer,))]
        return tuple(messages)

    return Example(f"{family}-{split}-{number}", family, read)


def read_examples(path: Path) -> list[Example]:
    """The lines of a JSONL file in the form of a suite (see `evaluation.suites`).

    Here a conversation may also end with the assistant. One that ends with the user gets the
    `reference` as its answer; `max_new_tokens` is for suites and changes nothing. Every line is
    checked before anything is returned, pictures included; all bad ones are listed.
    """
    examples: list[Example] = []
    problems: list[str] = []
    seen: dict[str, int] = {}
    for number, line in _lines(path):
        try:
            example = _parsed(json.loads(line), number, path.parent)
            if example.id in seen:
                raise BadRequest(f"the id {example.id!r} was used in line {seen[example.id]}")
            seen[example.id] = number
            example.read()
            examples.append(example)
        except RecursionError:
            problems.append(f"  line {number}: nested too deeply")
        except (VarifocalError, ValueError) as error:
            problems.append(f"  line {number}: {error}")
    if problems:
        more = [f"  and {len(problems) - _LISTED} more"] if len(problems) > _LISTED else []
        raise BadRequest(
            f"{path}: {len(problems)} of {len(problems) + len(examples)} lines cannot be used. "
            "Correct or remove them:\n" + "\n".join(problems[:_LISTED] + more)
        )
    if not examples:
        raise BadRequest(f"{path} holds no examples; it must have one JSON object a line")
    return examples


def _lines(path: Path) -> list[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"{path} cannot be read ({error}). It must be a JSONL file, one example a line: "
            '{"id": "1", "family": "chart", "messages": [{"role": "user", "content": [{"type": '
            '"image"}, {"type": "text", "text": "..."}]}], "images": ["1.png"], "reference": "."}. '
            "--data demo draws examples instead"
        ) from error
    # Not splitlines: JSON texts may hold other characters that it takes for ends of lines.
    return [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]


def _parsed(entry: Any, number: int, folder: Path) -> Example:
    if not isinstance(entry, dict):
        raise BadRequest(f"wanted a JSON object, got {type(entry).__name__}")
    if unknown := [key for key in entry if key not in LINE_KEYS]:
        raise BadRequest(f"unknown field {', '.join(unknown)}; known are {', '.join(LINE_KEYS)}")
    if "messages" not in entry:
        raise BadRequest("'messages' are missing")
    for key in ("id", "family", "reference"):
        if not isinstance(entry.get(key), str | None):
            raise BadRequest(f"{key!r} must be a text, got {entry[key]!r:.60}")
    budget = entry.get("max_new_tokens", 1)
    if not isinstance(budget, int) or isinstance(budget, bool) or budget < 1:
        raise BadRequest(f"'max_new_tokens' must be a count from 1, got {budget!r:.60}")
    images = entry.get("images", [])
    if not isinstance(images, list):
        raise BadRequest(f"'images' must be a list of paths, got {images!r:.60}")
    messages, reference = entry["messages"], entry.get("reference")

    def read() -> tuple[Message, ...]:
        return _answered(read_messages(messages, folder, pictures=images), reference)

    return Example(entry.get("id") or f"line-{number}", entry.get("family") or "all", read)


def _answered(talk: tuple[Message, ...], reference: str | None) -> tuple[Message, ...]:
    """The conversation with the reference as its last answer; every question is checked."""
    roles = [message.role for message in talk]
    if roles[-1] == "system":
        raise BadRequest(f"'messages' must end with a user or an assistant message, got {roles}")
    if reference and roles[-1] == "assistant":
        raise BadRequest(
            "'messages' end with an answer and there is a 'reference' too; leave one of them out"
        )
    for n, message in enumerate(talk):
        if message.role == "assistant" and (n == 0 or roles[n - 1] != "user"):
            raise BadRequest(f"an assistant message must follow a user message, got {roles}")
        if message.role == "assistant" and not all(isinstance(p, str) for p in message.parts):
            raise BadImage("an assistant message holds a picture; only users show pictures")
    ends = [n for n, role in enumerate(roles) if role == "assistant"]
    if roles[-1] == "user":
        ends.append(len(talk))
    for end in ends:
        Request(messages=talk[:end])  # refuses what a target cannot be asked
    return (*talk, Message("assistant", (reference,))) if reference else talk
