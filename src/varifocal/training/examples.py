"""Conversations to record: from a JSONL file, or drawn by the demo's generator."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from varifocal.demo.sample import Split
from varifocal.errors import BadImage, BadRequest, VarifocalError
from varifocal.images import load_image
from varifocal.request import Message, Part, Role

_KEYS = frozenset({"id", "family", "messages", "images", "reference"})
_LISTED = 20  # bad lines that an error shows


@dataclass(frozen=True)
class Example:
    """A conversation with its assistant turns; pictures are made when it is read."""

    id: str
    family: str
    read: Callable[[], tuple[Message, ...]]


def demo_examples(split: Split, start: int, count: int) -> list[Example]:
    """Numbers `start` to `start + count` of the demo's generator, its families in turn."""
    if count < 1 or start < 0:
        raise BadRequest(f"wanted at least one example from 0 on, got {count} from {start}")
    from varifocal.demo.world import FAMILIES

    return [_drawn(FAMILIES[n % len(FAMILIES)], n, split) for n in range(start, start + count)]


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
    """The lines of a JSONL file: `id`, `family`, `messages`, `images`, optional `reference`.

    Every line is checked before anything is returned, pictures included; all bad ones are listed.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(
            f"{path} cannot be read ({error}). It must be a JSONL file, one example a line: "
            '{"id": "1", "family": "chart", "messages": [{"role": "user", "content": [{"type": '
            '"image"}, {"type": "text", "text": "..."}]}], "images": ["1.png"], "reference": "."}. '
            "--data demo draws examples instead"
        ) from error
    examples: list[Example] = []
    problems: list[str] = []
    seen: set[str] = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = _parsed(json.loads(line), path.parent)
            if example.id in seen:
                raise BadRequest(f"the id {example.id!r} came before")
            seen.add(example.id)
            example.read()
            examples.append(example)
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


def _parsed(entry: Any, folder: Path) -> Example:
    if not isinstance(entry, dict):
        raise BadRequest(f"wanted a JSON object, got {type(entry).__name__}")
    if unknown := sorted(set(entry) - _KEYS):
        raise BadRequest(f"unknown key {unknown[0]!r}; known are {', '.join(sorted(_KEYS))}")
    for key in ("id", "family"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise BadRequest(f"{key!r} must be a text, got {entry.get(key)!r}")
    messages, images = entry.get("messages"), entry.get("images", [])
    if not isinstance(messages, list) or not messages:
        raise BadRequest("'messages' must be a list with at least one message")
    if not isinstance(images, list) or not all(isinstance(i, str) for i in images):
        raise BadRequest("'images' must be a list of paths relative to the file")
    reference = entry.get("reference")
    if reference is not None:
        if not isinstance(reference, str) or not reference:
            raise BadRequest(f"'reference' must be a text, got {reference!r}")
        messages = [*messages, {"role": "assistant", "content": reference}]
    paths = [folder / name for name in images]
    return Example(entry["id"], entry["family"], lambda: _messages(messages, paths))


def _messages(entries: Sequence[Any], paths: Sequence[Path]) -> tuple[Message, ...]:
    """Pictures are taken from the list in the order of the picture parts."""
    pictures = iter(paths)
    messages = []
    for entry in entries:
        role: Any = entry.get("role") if isinstance(entry, dict) else None
        if role not in get_args(Role):
            raise BadRequest(f"'role' must be one of {', '.join(get_args(Role))}, got {role!r}")
        content = entry.get("content")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(parts, list) or not parts:
            raise BadRequest(f"'content' must be a text or a list of parts, got {content!r}")
        messages.append(Message(role, tuple(_part(part, pictures) for part in parts)))
    if left := len(list(pictures)):
        raise BadRequest(f"{left} of {len(paths)} images have no picture part in the messages")
    _check_turns(messages)
    return tuple(messages)


def _part(part: Any, pictures: Any) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    if kind not in ("image", "image_url"):
        raise BadRequest(f"a part must be of type text, image or image_url, got {part!r}")
    path = next(pictures, None)
    if path is None:
        raise BadRequest("there are more picture parts than 'images'")
    return load_image(path)


def _check_turns(messages: Sequence[Message]) -> None:
    turns = [m.role for m in messages if m.role != "system"]
    wanted = ["user", "assistant"] * len(turns)
    if not turns or turns != wanted[: len(turns)]:
        raise BadRequest(f"user and assistant must take turns, user first, got {turns}")
    for message in messages:
        if message.role == "assistant" and not all(isinstance(p, str) for p in message.parts):
            raise BadImage("an assistant message holds a picture; only users show pictures")
