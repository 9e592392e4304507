"""Files that are replaced whole or not at all, and folders that one recording writes at a time."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from varifocal.errors import BadArtifact, BadOption

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two runs apart
    fcntl = None  # type: ignore[assignment]

LOCK, MANIFEST = ".lock", "manifest.json"


def check_folder(folder: Path) -> None:
    """Refuse, before anything is read or made, what is a file or lies below one."""
    for path in (folder, *folder.parents):
        if path.is_dir():
            return
        if path.exists():
            raise BadOption(
                f"{folder} cannot be written into: a folder is wanted, and {path} is a file. Name "
                "a new folder, or move the file away"
            )


def make_folder(folder: Path) -> None:
    """The folder, with those above it, if it is not there."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"the folder {folder} cannot be made ({error.strerror or error}); name one in a place "
            "that you may write to"
        ) from error


def check_no_recording(folder: Path) -> None:
    """Refuse to write a drafter among what it is trained on."""
    if (folder.resolve() / MANIFEST).exists():
        raise BadOption(
            f"{folder} holds a recording ({MANIFEST}), and a drafter wants a folder of its own; "
            "choose another one"
        )


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other recordings and trainings out of a folder; a kill lets go of it too.

    The file stays: were it deleted, a third run could lock a new one beside the second's.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context((folder / LOCK).open("a"))
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadArtifact(
                f"another record or train is writing into {folder}; wait for it or choose another "
                "folder"
            ) from None
        except OSError:  # a folder only to be read, or a network disk without locks
            pass
        yield


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that a kill or a full disk leaves the old one, or none."""
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise BadArtifact(
            f"{path} could not be written ({error.strerror or error}). Nothing half-written is "
            "kept; make room or choose another folder and run the same command again"
        ) from error
