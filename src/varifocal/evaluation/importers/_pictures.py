"""Pictures out of records, kept under names made of their content, so that each is kept once."""

import ast
import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from varifocal.errors import BadImage
from varifocal.evaluation.importers._layout import Holding, listed
from varifocal.images import load_image

FOLDER = "images"  # beside the suite's file
_NAMES = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"RIFF": ".webp",
          b"BM": ".bmp", b"II*\x00": ".tif", b"MM\x00*": ".tif"}  # fmt: skip


class MissingPicture(BadImage):
    """A picture that a record names and that lies in none of the places looked in."""


def digest(data: bytes) -> str:
    """What tells pictures apart: two files that differ in a byte are two pictures."""
    return hashlib.sha256(data).hexdigest()


def contents(
    value: object, holding: Holding, find: Callable[[str], Path], name: str
) -> Iterator[bytes]:
    """The files of the pictures that a record holds, in order. Raises BadImage.

    `find` gives the path of a picture that is named; `name` is what errors call the record.
    """
    if holding == "base64" and isinstance(value, str) and value.startswith("["):
        value = _parsed_list(value, name)
    pictures = listed(value)
    if not pictures:
        raise BadImage(f"{name} has no picture")
    for picture in pictures:
        yield _content(picture, holding, find, name)


def _parsed_list(text: str, name: str) -> Any:
    """A list as Python writes it, which is how tables hold one."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        raise BadImage(f"{name}: the list of pictures cannot be read ({text[:40]!r}...)") from None


def _content(value: object, holding: Holding, find: Callable[[str], Path], name: str) -> bytes:
    if isinstance(value, dict):  # as the hub's files hold a picture
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return value
    if isinstance(value, Path):
        return _file(value, name)
    if not isinstance(value, str) or not value:
        raise BadImage(f"{name}: wanted a picture, got {value!r:.60}")
    if holding == "base64":
        return _decoded(value, name)
    return _file(find(value), name)


def _decoded(text: str, name: str) -> bytes:
    bare = "".join(text.split())
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadImage(f"{name}: not base64 ({error}): {text[:40]!r}") from error


def _file(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingPicture(f"{name}: {path} ({(error.strerror or str(error)).lower()})") from None


def finder(base: Path, images: Path | None, place: Callable[[str], str]) -> Callable[[str], Path]:
    """Where named pictures lie: below `base`, or in `images`.

    `images` may be the folder of the pictures or the one that it lies in.
    """

    def find(name: str) -> Path:
        placed = PurePosixPath(place(name.replace("\\", "/")))
        if placed.is_absolute() or ".." in placed.parts:
            raise BadImage(f"a picture is named {name!r}, which leads out of its folder")
        if images is None:
            return base / placed
        bare = PurePosixPath(*placed.parts[1:]) if len(placed.parts) > 1 else placed
        inside = images / placed
        return inside if inside.is_file() else images / bare

    return find


class Album:
    """The pictures of a suite that is being written."""

    def __init__(self, folder: Path) -> None:
        self.base = folder  # from which a line's paths start
        self._folder = folder / FOLDER
        self._folder.mkdir()

    def add(self, data: bytes, name: str) -> str:
        """Keep a picture; its path from the suite's folder. Raises BadImage if it is none."""
        suffix = next((s for start, s in _NAMES.items() if data.startswith(start)), ".img")
        path = self._folder / f"{digest(data)[:32]}{suffix}"
        if not path.exists():
            load_image(data, name=name)  # decoded once, so that nothing unreadable is kept
            path.write_bytes(data)
        return f"{FOLDER}/{path.name}"

    def prune(self, used: set[str]) -> None:
        """Remove what no line uses."""
        for path in list(self._folder.iterdir()):
            if f"{FOLDER}/{path.name}" not in used:
                path.unlink()
