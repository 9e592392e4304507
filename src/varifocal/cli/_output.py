"""Where a command's words go: answers to standard output, notes to standard error, JSON apart."""

import codecs
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from varifocal.cli._options import OutputOptions
from varifocal.errors import BadOption


class Output:
    """The streams of one command."""

    def __init__(self, options: OutputOptions) -> None:
        self._json, self._is_quiet = options.json, options.quiet
        self._notes = Console(stderr=True, soft_wrap=True, highlight=False)
        self._has_stdout = options.json != "-"
        if options.json not in (None, "-"):
            check_writable(Path(str(options.json)), "--json")

    @property
    def is_live(self) -> bool:
        """Whether something may move on the standard output."""
        return self._has_stdout and not self._is_quiet and sys.stdout.isatty()

    def piece(self, text: str) -> None:
        """A piece of the answer, at once."""
        if self._has_stdout and text:
            sys.stdout.write(text)
            sys.stdout.flush()

    def line(self, text: str = "", style: str = "") -> None:
        """A line of the answer; the style shows on a terminal only."""
        if style and self.is_live:
            Console(highlight=False, soft_wrap=True).print(text, style=style, markup=False)
        else:
            self.piece(f"{text}\n")

    def table(self, table: RenderableType) -> None:
        """A table on standard output, as wide as it needs to be where there is no terminal."""
        if self._has_stdout:
            width = None if sys.stdout.isatty() else 200
            Console(width=width, highlight=False, soft_wrap=width is not None).print(table)

    def note(self, text: str) -> None:
        """A word about the run on standard error."""
        if not self._is_quiet:
            self._notes.print(text, style="dim", markup=False)

    @contextmanager
    def busy(self, label: str) -> Iterator[None]:
        """Something is being waited for."""
        if self._is_quiet or not self._notes.is_terminal:
            yield
            return
        with self._notes.status(label):
            yield

    @contextmanager
    def progress(self, label: str, total: int | None) -> Iterator["Bar"]:
        """A bar while a known number of things is done."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        silent = self._is_quiet or not self._notes.is_terminal
        with Progress(
            *columns, TimeRemainingColumn(), console=self._notes, transient=True, disable=silent
        ) as progress:
            yield Bar(progress, label, total)

    def write(self, result: dict[str, Any]) -> None:
        """The machine-readable result, if it was asked for."""
        if self._json is None:
            return
        if self._json == "-":
            sys.stdout.write(_pretty(result, escaped=not _is_utf8(sys.stdout.encoding)))
            sys.stdout.flush()
        else:
            write_whole(Path(self._json), _pretty(result))


class Bar:
    """One progress bar."""

    def __init__(self, progress: Progress, label: str, total: int | None) -> None:
        self._progress, self._task = progress, progress.add_task(label, total=total)

    def step(self, label: str | None = None) -> None:
        """One more is done."""
        self._progress.update(self._task, advance=1, description=label)

    def at(self, done: int, total: int, label: str | None = None) -> None:
        """So many are done."""
        self._progress.update(self._task, completed=done, total=total, description=label)


def _is_utf8(encoding: str | None) -> bool:
    try:
        return codecs.lookup(encoding or "").name == "utf-8"
    except LookupError:
        return False


def _pretty(result: dict[str, Any], *, escaped: bool = False) -> str:
    """Indented, but lists of numbers on one line. Strings hold no raw line breaks in JSON.

    `escaped` is for a stream that knows few letters and would put ? for the others.
    """
    text = json.dumps(result, ensure_ascii=escaped, allow_nan=False, indent=1)
    rows = re.sub(r"\[\n\s+([^\[\]{}\"]*?)\n\s*\]", lambda m: f"[{' '.join(m[1].split())}]", text)
    return f"{rows}\n"


def write_whole(path: Path, text: str) -> None:
    """The file is replaced at one stroke, so that no reader and no second run meets a half."""
    if path.exists() and not path.is_file():  # a pipe or a device
        try:
            path.write_text(text, encoding="utf-8")
        except BrokenPipeError:
            raise
        except OSError as error:  # which does not name the file when writing fails
            raise OSError(error.errno, error.strerror, str(path)) from error
        return
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_writable(path: Path, option: str) -> None:
    """Refuse where the file of an option cannot be written: before the work, not after it."""
    if path.is_dir():
        raise BadOption(f"{option} wants a file, but {path} is a folder")
    if not path.parent.is_dir():
        raise BadOption(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise BadOption(f"{option} {path}: it cannot be written there")
