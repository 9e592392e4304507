"""Second pass: lines and pictures of the chosen records, without those that were trained on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from varifocal.chat import check_picture
from varifocal.errors import BadArtifact, BadImage, VarifocalError
from varifocal.evaluation.importers._choice import Choice, LeftOut, Seen
from varifocal.evaluation.importers._files import Found
from varifocal.evaluation.importers._layout import Layout, Row, question_of
from varifocal.evaluation.importers._pictures import (
    Album,
    MissingPicture,
    contents,
    digest,
    finder,
)
from varifocal.evaluation.suites import read_line

Progress = Callable[[int, int], None]  # records done, of how many
_SHOWN = 20  # missing pictures that an error lists


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What becomes the suite."""

    lines: list[dict[str, Any]]  # in the order of the choice
    num_later_turns: int  # turns of conversations that are not asked
    num_trained_on: int  # different pictures of the training part
    num_unread: int  # records of the training part whose pictures cannot be read


@dataclass(kw_only=True)
class _Pass:
    """What the pass has met so far."""

    lines: dict[int, dict[str, Any]] = field(default_factory=dict)  # by the record's index
    shown: dict[int, set[str]] = field(default_factory=dict)  # digests of its pictures
    later_turns: dict[int, int] = field(default_factory=dict)
    trained_on: set[str] = field(default_factory=set)  # digests
    missing: list[str] = field(default_factory=list)
    num_unread: int = 0


def collect(
    layout: Layout,
    found: Found,
    choice: Choice,
    folder: Path,
    *,
    images: Path | None,
    left_out: LeftOut,
    progress: Progress,
) -> Collected:
    """Read the chosen records and write their pictures below `folder`.

    Raises BadArtifact if a picture that a chosen record names is missing: that is an incomplete
    copy of the set, where a damaged picture is one of the set itself.
    """
    chosen = {one.index: one for one in choice.chosen}
    trained = {one.index for one in choice.trained}
    met, album = _Pass(), Album(folder)
    done, total = 0, len(chosen) + len(trained)
    for index, (path, _, row) in enumerate(found.rows(with_pictures=True)):
        if index not in chosen and index not in trained:
            continue
        find = finder(path.parent, images, partial(_placed, layout, row))
        name = chosen[index].id if index in chosen else f"record {index + 1}"
        pictures = contents(row[found.form.picture], found.form.holding, find, name)
        if index in trained:
            _note(met, pictures)
        else:
            _add(met, layout, found, chosen[index], row, pictures, album, left_out)
        done += 1
        progress(done, total)
    if met.missing:
        raise BadArtifact(_incomplete(met.missing, images))
    _drop_leaks(met, chosen, left_out)
    lines = [met.lines[one.index] for one in choice.chosen if one.index in met.lines]
    album.prune({picture for line in lines for picture in line["images"]})
    return Collected(
        lines=lines,
        num_later_turns=sum(n for index, n in met.later_turns.items() if index in met.lines),
        num_trained_on=len(met.trained_on),
        num_unread=met.num_unread,
    )


def _placed(layout: Layout, row: Row, name: str) -> str:
    return layout.place(name, row)


def _note(met: _Pass, pictures: Iterator[bytes]) -> None:
    """Remember the pictures of a record to train on."""
    try:
        met.trained_on.update(digest(data) for data in pictures)
    except BadImage:  # this record cannot be trained on either
        met.num_unread += 1


def _add(
    met: _Pass,
    layout: Layout,
    found: Found,
    one: Seen,
    row: Row,
    pictures: Iterator[bytes],
    album: Album,
    left_out: LeftOut,
) -> None:
    """Make a line of a record, or say why it is none."""
    question = question_of(row, found.form, layout)
    if not question.text:
        left_out.add("without a question", one.id)
        return
    try:
        files = list(pictures)
        kept = [album.add(data, one.id) for data in files]
        line = {
            "id": one.id,
            "family": one.family,
            "messages": [{"role": "user", "content": question.text}],
            "images": kept,
            "reference": question.reference,
            "max_new_tokens": layout.max_new_tokens,
        }
        read_line(line, album.base, load=check_picture)  # what cannot be read is not written
    except MissingPicture as error:
        met.missing.append(str(error))
    except BadImage as error:
        left_out.add("with a picture that cannot be used", str(error))
    except VarifocalError as error:
        left_out.add("no request", f"{one.id}: {error}")
    else:
        met.lines[one.index] = line
        met.shown[one.index] = {digest(data) for data in files}
        met.later_turns[one.index] = question.num_later_turns


def _drop_leaks(met: _Pass, chosen: dict[int, Seen], left_out: LeftOut) -> None:
    for index in sorted(met.lines):
        if met.shown[index] & met.trained_on:
            left_out.add("with a picture of the training part", chosen[index].id)
            del met.lines[index]


def _incomplete(missing: list[str], images: Path | None) -> str:
    more = [f"and {len(missing) - _SHOWN} more"] if len(missing) > _SHOWN else []
    listed = "\n  ".join(missing[:_SHOWN] + more)
    way_out = "check --images" if images else "name the folder of the pictures with --images"
    return f"{len(missing)} records name pictures that are not there; {way_out}:\n  {listed}"
