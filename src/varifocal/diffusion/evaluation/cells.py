"""Finished pieces of a benchmark by what they depend on: what was interrupted goes on.

A piece is a file of its own, which appears whole or not at all. Commands that share a folder share
its pieces: a long benchmark may be run in parts, and the last command puts them together.
"""

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from varifocal.errors import BadArtifact, BadOption
from varifocal.training.artifacts import write_atomically

VERSION = 1  # of what pieces hold
Facts = dict[str, Any]


class Cells:
    """Pieces in a folder; without one, in memory."""

    def __init__(self, folder: Path | None = None, *, is_fresh: bool = False) -> None:
        self.folder = folder
        self._known: dict[str, Any] = {}
        self.num_found = 0  # pieces that were there already
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadOption(
                f"what is measured is kept in {folder}, which cannot be a folder "
                f"({error.strerror or error}); choose another place"
            ) from error
        if is_fresh:
            self.forget()
            folder.mkdir(exist_ok=True)

    def find(self, key: Facts) -> Any:
        """What was kept for exactly this, or None."""
        name = self._name(key)
        if name not in self._known and self.folder is not None:
            path = self.folder / name
            if path.exists():
                self._known[name] = self._read(path, key)
                self.num_found += 1
        return self._known.get(name)

    def keep(self, key: Facts, content: Any) -> None:
        """On the disk when this returns."""
        name = self._name(key)
        self._known[name] = json.loads(json.dumps(content))  # as it comes back from a file
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)  # another run may have cleared it away
            stored = {"version": VERSION, "key": key, "content": content}
            write_atomically(self.folder / name, json.dumps(stored, allow_nan=False).encode())

    def forget(self) -> None:
        """Delete the pieces, and the folder if nothing else is in it."""
        self._known.clear()
        if self.folder is None or not self.folder.is_dir():
            return
        for path in self.folder.glob("*.cell.json"):
            path.unlink(missing_ok=True)  # two runs may share the folder
        with suppress(OSError):  # something else is in it
            self.folder.rmdir()

    @staticmethod
    def _name(key: Facts) -> str:
        """Readable, and another one for any other key."""
        text = json.dumps([VERSION, key], sort_keys=True, allow_nan=False)
        shown = "-".join(str(key[name]) for name in ("what", "model", "task") if name in key)
        digest = hashlib.sha256(text.encode()).hexdigest()[:20]
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '_', shown)[-80:]}-{digest}.cell.json"

    @staticmethod
    def _read(path: Path, key: Facts) -> Any:
        try:
            stored = json.loads(path.read_bytes())
            is_same = stored["key"] == json.loads(json.dumps(key))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadArtifact(
                f"{path} is damaged ({error}); delete it to measure it anew"
            ) from error
        if not is_same:
            raise BadArtifact(f"{path} holds something else than its name says; delete it")
        return stored["content"]
