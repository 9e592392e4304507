"""From published files to a folder that `load_suite` reads: `suite.jsonl`, pictures, `source.json`.

Two passes over the records: the first finds those of the split and reads no pictures if it can, the
second reads these alone. The folder appears whole or not at all.
"""

import json
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varifocal.errors import BadArtifact, BadOption
from varifocal.evaluation.importers import find_layout
from varifocal.evaluation.importers._choice import Choice, LeftOut, choose, scan
from varifocal.evaluation.importers._collect import Collected, Progress, collect
from varifocal.evaluation.importers._files import Found, find_files
from varifocal.evaluation.importers._layout import Layout
from varifocal.evaluation.importers._pictures import digest
from varifocal.evaluation.suites import FILE

SOURCE = "source.json"
SPLITS = ("test", "train", "all")
_VERSION = 1  # of what an import makes of the same files; counts up when that changes


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A suite in its folder."""

    folder: Path
    source: dict[str, Any]  # what source.json says
    is_new: bool  # False: the same import was there already


def import_suite(
    name: str,
    source: Path,
    out: Path,
    *,
    images: Path | None = None,
    split: str = "test",
    limit: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Imported:
    """Make a suite of the files of a published set.

    `source` is one of its files or a folder with them; `images` is where its pictures lie, if not
    where the set has them. `limit` counts records a family, before their pictures are looked at.
    `out` is written whole or not at all; if it holds the same import, nothing is done.
    """
    layout = find_layout(name)
    _check_options(layout, split, limit)
    found = find_files(layout, source, split)
    if images is not None and not found.form.names_pictures:
        raise BadOption(f"{found.form.name} needs no --images: its pictures are in its files")
    asked = {
        "layout": name,
        "version": _VERSION,
        "form": found.form.name,
        "split": split,
        "limit": limit,
        "files": found.described(),
    }
    if (there := _already(out, asked)) is not None:
        return Imported(folder=out, source=there, is_new=False)
    left_out = LeftOut()
    seen, num_read = scan(name, layout, found, left_out)
    choice = choose(layout, seen, split, limit)
    if not choice.chosen:
        raise BadArtifact(f"{source} has no record of {layout.title} for --split {split}")
    with _fresh(out) as folder:
        got = collect(
            layout, found, choice, folder, images=images, left_out=left_out, progress=progress
        )
        if not got.lines:
            raise BadArtifact(
                f"none of {len(choice.chosen)} records became a request: {left_out.to_dict()}"
            )
        text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in got.lines)
        made = asked | _told(layout, found, choice, got, left_out, num_read, text)
        (folder / FILE).write_text(text, encoding="utf-8")
        (folder / SOURCE).write_text(
            json.dumps(made, ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
        )
    return Imported(folder=out, source=made, is_new=True)


def _told(
    layout: Layout,
    found: Found,
    choice: Choice,
    got: Collected,
    left_out: LeftOut,
    num_read: int,
    text: str,
) -> dict[str, Any]:
    """What source.json says beyond what was asked for."""
    return {
        "title": layout.title,
        "rule": choice.rule,
        "prompt": found.form.prompt,
        "max_new_tokens": layout.max_new_tokens,
        "records": {"read": num_read, "chosen": len(choice.chosen), "written": len(got.lines)},
        "families": dict(Counter(line["family"] for line in got.lines)),
        "left_out": left_out.to_dict(),
        "later_turns_left_out": got.num_later_turns,
        "leakage": {
            "rule": choice.leakage,
            "records_trained_on": len(choice.trained),
            "unread": got.num_unread,
            "pictures": got.num_trained_on,
            "dropped": left_out.counts.get("with a picture of the training part", 0),
        },
        "suite_sha256": digest(text.encode()),
    }


def _check_options(layout: Layout, split: str, limit: int | None) -> None:
    if split not in SPLITS:
        raise BadOption(f"--split must be one of {', '.join(SPLITS)}, got {split!r}")
    if split != "test" and layout.split == "whole":
        raise BadOption(
            f"{layout.title} is only measured on, never trained on, and whole; leave out --split"
        )
    if limit is not None and limit < 1:
        raise BadOption(f"limit must be at least 1 record a family, got {limit}")


def _already(out: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """What source.json says if `out` holds this import; anything else that is there is refused."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    try:
        made = json.loads((out / SOURCE).read_text(encoding="utf-8"))
        text = (out / FILE).read_bytes()
    except (OSError, ValueError):
        raise BadOption(f"--out {out} is there and holds no import; name another folder") from None
    if not isinstance(made, dict) or {key: made.get(key) for key in asked} != asked:
        raise BadOption(
            f"--out {out} holds another import, or one of other files; name another folder"
        )
    if made.get("suite_sha256") != digest(text):
        raise BadOption(f"--out {out} holds this import, but its {FILE} was changed; name another")
    return made


@contextmanager
def _fresh(out: Path) -> Iterator[Path]:
    """A folder beside `out` that takes its name at the end, and goes if anything fails."""
    folder = out.with_name(f".{out.name}.{secrets.token_hex(4)}")
    try:
        folder.mkdir(parents=True)
        yield folder
        if out.is_dir():
            out.rmdir()  # empty, or `_already` had refused it
        folder.rename(out)
    except OSError as error:
        raise BadArtifact(
            f"{out} could not be written ({error.strerror or error}). Nothing half-written is "
            "kept; make room or choose another folder and run the same command again"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
