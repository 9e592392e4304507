"""Which of the user's files hold a set, in which form, and which published split each is of."""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varifocal.errors import BadArtifact, BadOption
from varifocal.evaluation.importers._layout import Form, Layout, Row
from varifocal.evaluation.importers._rows import columns_of, read_rows

_PARTS = re.compile(r"(?<![a-z])(train|testmini|test|validation|val|dev)(?![a-z])")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The files of a set, all of one form, in the order of their paths."""

    form: Form
    paths: tuple[Path, ...]
    parts: tuple[str, ...]  # of each: the split that its name tells, or ""

    def rows(self, *, with_pictures: bool) -> Iterator[tuple[Path, str, Row]]:
        """Every record, with its file and the split that this belongs to."""
        fields = set(self.form.fields)
        if not with_pictures:
            fields.discard(self.form.picture)
        for path, part in zip(self.paths, self.parts, strict=True):
            for row in read_rows(path, self.form, fields):
                yield path, part, row

    def described(self) -> list[dict[str, Any]]:
        """Name, size and SHA-256 of every file."""
        return [
            {"name": path.name, "bytes": path.stat().st_size, "sha256": _sha256(path)}
            for path in self.paths
        ]


def find_files(layout: Layout, source: Path, split: str) -> Found:
    """The files of a set at a path or below a folder. Raises BadOption or BadArtifact."""
    if source.is_dir():
        return _below(layout, source, split)
    if not source.is_file():
        raise BadOption(f"there is no file or folder {source}; --from wants {expected(layout)}")
    found = _matching(layout, [f for f in layout.forms if f.suffix == source.suffix], source)
    part = part_of(Path(source.name))
    if layout.split == "official" and split != "all" and part and part not in layout.parts[split]:
        raise BadOption(
            f"{source.name} is of the split {part!r}, but --split is {split}; give that one's file"
        )
    return Found(form=found, paths=(source,), parts=(part or _said(layout, split),))


def _below(layout: Layout, source: Path, split: str) -> Found:
    groups: dict[str, list[Path]] = {}
    for form in layout.forms:
        for pattern in form.files:
            groups.setdefault(form.suffix, []).extend(p for p in source.glob(pattern))
    for suffix, group in groups.items():
        every = sorted({path for path in group if path.is_file()}, key=lambda p: p.as_posix())
        parts = {path: part_of(path.relative_to(source)) for path in every}
        paths = _of_split(layout, every, parts, split)
        if not paths:
            continue
        forms = [form for form in layout.forms if form.suffix == suffix]
        form = _matching(layout, forms, paths[0])
        for path in paths[1:]:
            _matching(layout, [form], path)
        if form.is_single and len(paths) > 1:
            names = ", ".join(path.name for path in paths)
            raise BadOption(
                f"{source} holds {len(paths)} files of {layout.title} that repeat one another "
                f"({names}); name one of them"
            )
        told = tuple(parts[path] or _said(layout, split) for path in paths)
        return Found(form=form, paths=tuple(paths), parts=told)
    others = {part_of(p.relative_to(source)) for group in groups.values() for p in group} - {""}
    if others:
        raise BadArtifact(
            f"{source} holds files of {layout.title}, but only of {', '.join(sorted(others))}; "
            f"--split {split} wants {' or '.join(layout.parts[split])}"
        )
    raise BadArtifact(f"{source} holds no file of {layout.title}; wanted {expected(layout)}")


def _of_split(
    layout: Layout, paths: Sequence[Path], parts: dict[Path, str], split: str
) -> list[Path]:
    """Those that the split is made of; of a set with its own parts also those to train on."""
    if layout.split == "drawn" or split == "all" or not any(parts[path] for path in paths):
        return list(paths)
    wanted = layout.parts[split] + (layout.parts["train"] if layout.split == "official" else ())
    chosen = [path for path in paths if parts[path] in wanted]
    return chosen if any(parts[path] in layout.parts[split] for path in chosen) else []


def _said(layout: Layout, split: str) -> str:
    """The split of a file whose name tells none: that of which it was given."""
    return split if layout.split == "official" and split != "all" else ""


def part_of(path: Path) -> str:
    """The published split that the name of a file, or of a folder above it, tells; or ""."""
    for name in (path.name, *reversed(path.parts[:-1])):
        if found := _PARTS.search(name.lower()):
            return found[1]
    return ""


def expected(layout: Layout) -> str:
    """What --from may name."""
    return "; or ".join(f"{' and '.join(form.file_names)} ({form.name})" for form in layout.forms)


def _matching(layout: Layout, forms: Sequence[Form], path: Path) -> Form:
    """The form whose fields a file has."""
    if not forms:
        raise BadOption(
            f"{path.name} is no file of {layout.title}; --from wants {expected(layout)}"
        )
    columns = columns_of(path, forms[0])
    for form in forms:
        if not set(form.required) - set(columns):
            return form
    wanted = "; or ".join(f"{', '.join(form.required)} ({form.name})" for form in forms)
    came = ", ".join(columns) or "no records"
    raise BadArtifact(
        f"{path} is no file of {layout.title}: wanted the fields {wanted}; got {came}"
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
