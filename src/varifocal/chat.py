"""Conversations in OpenAI's chat format, as files hold them: every field is read or refused."""

import base64
import binascii
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from PIL import Image

from varifocal.errors import BadImage, BadRequest
from varifocal.images import load_image
from varifocal.request import Message, Part, Role

# What a line of a JSONL file may hold, for suites and for recording alike.
LINE_KEYS = ("id", "family", "messages", "images", "reference", "max_new_tokens")
LoadPicture = Callable[[Path | bytes, str], Image.Image]  # a file or its bytes; its name in errors


def open_picture(source: Path | bytes, name: str) -> Image.Image:
    """The picture, decoded."""
    return load_image(source, name=name)


def check_picture(source: Path | bytes, name: str) -> Image.Image:
    """A stand-in for a picture that seems to be there: quick, for checking long files."""
    if isinstance(source, Path) and not source.is_file():
        raise BadImage(f"{name}: wanted a picture, but there is no such file. Check the path.")
    return Image.new("RGB", (1, 1))


def read_messages(
    raw: object,
    folder: Path,
    *,
    where: str = "messages",
    pictures: Sequence[object] = (),
    load: LoadPicture = open_picture,
) -> tuple[Message, ...]:
    """The messages that parsed JSON holds; raises BadRequest or BadImage naming the field.

    Picture parts hold a path relative to `folder`, or a `data:` address. Those that hold neither
    stand for the next of `pictures`; where no message has a picture part, all of `pictures` are
    put before the first user's text.
    """
    if not isinstance(raw, list) or not raw:
        raise BadRequest(f"{where} must be a list with at least one message, got {_show(raw)}")
    reader = _Reader(folder, pictures, load)
    messages = [reader.message(item, f"{where}[{n}]") for n, item in enumerate(raw)]
    if not reader.num_parts and pictures:
        messages = _with_pictures(messages, reader.all_pictures(), where)
    elif reader.num_taken != len(pictures):
        raise BadRequest(
            f"{where} has {reader.num_taken} picture parts without a path for {len(pictures)} "
            "pictures; they must be as many"
        )
    return tuple(messages)


def _with_pictures(
    messages: list[Message], pictures: tuple[Image.Image, ...], where: str
) -> list[Message]:
    for n, message in enumerate(messages):
        if message.role == "user":
            messages[n] = Message("user", (*pictures, *message.parts))
            return messages
    raise BadRequest(f"{where} has no user message that could show the pictures")


class _Reader:
    """Reads messages one after the other and counts the pictures that they take."""

    def __init__(self, folder: Path, pictures: Sequence[object], load: LoadPicture) -> None:
        self._folder, self._pictures, self._load = folder, pictures, load
        self.num_parts = 0  # picture parts
        self.num_taken = 0  # of `pictures`

    def message(self, raw: object, where: str) -> Message:
        fields = _fields(raw, where, required=("role", "content"))
        role = fields["role"]
        if role not in get_args(Role):
            raise BadRequest(
                f"{where}.role must be one of {', '.join(get_args(Role))}, got {_show(role)}"
            )
        content = fields["content"]
        if isinstance(content, str):
            return Message(role, (_text(content, f"{where}.content"),))
        if not isinstance(content, list) or not content:
            raise BadRequest(
                f"{where}.content must be text or a list of parts, got {_show(content)}"
            )
        parts = tuple(self._part(p, f"{where}.content[{n}]") for n, p in enumerate(content))
        return Message(role, parts)

    def _part(self, raw: object, where: str) -> Part:
        kind = raw.get("type") if isinstance(raw, dict) else None
        if kind == "text":
            return _text(_fields(raw, where, ("type", "text"))["text"], f"{where}.text")
        if kind == "image_url":
            self.num_parts += 1
            return self._addressed(_fields(raw, where, ("type", "image_url"))["image_url"], where)
        if kind == "image":
            self.num_parts += 1
            fields = _fields(raw, where, ("type",), optional=("image", "path", "url"))
            sources = [key for key in ("image", "path", "url") if key in fields]
            if len(sources) > 1:
                raise BadRequest(f"{where} names its picture twice: {' and '.join(sources)}")
            if sources:
                return self._picture(fields[sources[0]], f"{where}.{sources[0]}")
            return self._next(where)
        given = _show(kind) if isinstance(raw, dict) else _show(raw)
        raise BadRequest(f'{where}.type must be "text", "image_url" or "image", got {given}')

    def _addressed(self, raw: object, where: str) -> Image.Image:
        """OpenAI's `image_url`: an object with `url`, or the address itself."""
        if isinstance(raw, str):
            return self._picture(raw, f"{where}.image_url")
        fields = _fields(raw, f"{where}.image_url", ("url",), optional=("detail",))
        if fields.get("detail", "auto") != "auto":
            raise BadRequest(
                f'{where}.image_url.detail can only be "auto", got {_show(fields["detail"])}: the '
                "target's own processor decides how finely a picture is read"
            )
        return self._picture(fields["url"], f"{where}.image_url.url")

    def _next(self, where: str) -> Image.Image:
        if self.num_taken == len(self._pictures):
            raise BadRequest(
                f'{where} is a picture part without a path; add "image_url" or list more pictures'
            )
        self.num_taken += 1
        return self._listed(self.num_taken - 1)

    def _listed(self, number: int) -> Image.Image:
        return self._picture(self._pictures[number], f"images[{number}]")

    def all_pictures(self) -> tuple[Image.Image, ...]:
        """Every one of `pictures`, in order."""
        return tuple(self._listed(n) for n in range(len(self._pictures)))

    def _picture(self, source: object, where: str) -> Image.Image:
        if not isinstance(source, str) or not source:
            raise BadRequest(f"{where} must be a path or a data: address, got {_show(source)}")
        if source.startswith("data:"):
            return self._load(_data(source, where), where)
        scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", source)
        if scheme and scheme[1].lower() == "file":
            source = unquote(urlsplit(source).path)
        elif scheme and "://" in source:
            raise BadImage(
                f"{where}: wanted a file, got the address {source[:80]}. Nothing is "
                "fetched; save the picture and give its path."
            )
        path = self._folder / source
        return self._load(path, f"{where} ({path})")


def _data(address: str, where: str) -> bytes:
    """The bytes in a `data:` address."""
    head, comma, body = address.partition(",")
    if not comma:
        raise BadImage(f'{where}: a data: address needs a comma before its data, got "{head[:60]}"')
    if not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(unquote(body), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage(f"{where}: the data: address is not valid base64 ({error})") from error


def _fields(
    raw: object, where: str, required: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, Any]:
    """The fields of an object; missing and unknown ones are refused by name."""
    if not isinstance(raw, dict):
        raise BadRequest(f"{where} must be an object, got {_show(raw)}")
    known = (*required, *optional)
    if missing := [key for key in required if key not in raw]:
        raise BadRequest(f"{where} lacks {', '.join(missing)}")
    if unknown := [str(key) for key in raw if key not in known]:
        raise BadRequest(
            f"{where} has the unknown field {', '.join(unknown)}; known are {', '.join(known)}"
        )
    return raw


def _text(raw: object, where: str) -> str:
    if not isinstance(raw, str):
        raise BadRequest(f"{where} must be text, got {_show(raw)}")
    return check_text(raw, where)


def check_text(text: str, where: str) -> str:
    """The text, unless it holds halves of characters, which no tokenizer takes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"{where} is not valid UTF-8 text (character {error.start + 1} is half a character)"
        ) from error
    return text


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
