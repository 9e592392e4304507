"""Records out of published files: JSON, JSON lines, TSV and parquet; no network."""

import csv
import json
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from varifocal.errors import BadArtifact, BadOption
from varifocal.evaluation.importers._layout import Form, Row

_POINTER = b"version https://git-lfs"
_MOST_CELL = 2**31 - 1  # characters; a picture in base64 may take many


def read_rows(path: Path, form: Form, fields: Collection[str]) -> Iterator[Row]:
    """The records of a file, with these fields at least. Raises BadArtifact."""
    _check_pointer(path)
    if form.read is not None:
        yield from _guarded(path, form.read(path))
        return
    readers: dict[str, Callable[[Path, Form, Collection[str]], Iterator[Row]]] = {
        ".json": _json,
        ".jsonl": _json_lines,
        ".tsv": _tsv,
        ".parquet": _parquet,
    }
    yield from _guarded(path, readers[path.suffix](path, form, fields))


def columns_of(path: Path, form: Form) -> list[str]:
    """The fields of a file, of its first record where each has its own; none if it is empty."""
    _check_pointer(path)
    if path.suffix == ".parquet":
        (names,) = _guarded(path, iter([_open_parquet(path).schema_arrow.names]))
        return list(names)
    return list(next(iter(islice(read_rows(path, form, form.fields), 1)), {}))


def _guarded(path: Path, rows: Iterable[Any]) -> Iterator[Any]:
    """The same rows; what is wrong with the file is said with its name."""
    try:
        yield from rows
    except RecursionError:
        raise BadArtifact(f"{path} is nested too deeply") from None
    except (OSError, ValueError, csv.Error) as error:  # pyarrow's errors are ValueErrors
        raise BadArtifact(f"{path} cannot be read: {error}") from error


def _check_pointer(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(_POINTER))
    except OSError as error:
        raise BadArtifact(f"{path} cannot be read: {error}") from error
    if start == _POINTER:
        raise BadArtifact(f"{path} is a Git LFS pointer, not the file; run `git lfs pull`")


def _json(path: Path, form: Form, fields: Collection[str]) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as file:
        content = json.load(file)
    if form.records == "*" and isinstance(content, dict):
        content = [
            {form.id: key, **record} if isinstance(record, dict) else record
            for key, record in content.items()
        ]
    elif form.records and isinstance(content, dict):
        content = content.get(form.records)
    elif isinstance(content, dict):  # as some copies are kept
        content = content.get("data")
    if not isinstance(content, list):
        wanted = {"": "a list of records", "*": "an object of records"}.get(
            form.records, f"records under {form.records!r}"
        )
        raise BadArtifact(f"{path} holds no records of {form.name}: wanted {wanted}")
    for number, record in enumerate(content, 1):
        yield _object(record, path, f"record {number}", form)


def _json_lines(path: Path, form: Form, fields: Collection[str]) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise BadArtifact(f"{path}: line {number} is not JSON ({error})") from error
                yield _object(record, path, f"line {number}", form)


def _object(record: object, path: Path, where: str, form: Form) -> Row:
    if not isinstance(record, dict):
        raise BadArtifact(f"{path}: {where} is no object, got {record!r:.60}")
    if missing := [name for name in form.required if name not in record]:
        raise BadArtifact(
            f"{path}: {where} lacks {', '.join(missing)}; it has {', '.join(map(str, record))}"
        )
    return record


def _tsv(path: Path, form: Form, fields: Collection[str]) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t")
        while (row := _next(rows)) is not None:
            if None in row or None in row.values():
                raise BadArtifact(
                    f"{path}: line {rows.line_num} has more or fewer cells than line 1"
                )
            yield row


def _next(rows: "csv.DictReader[str]") -> dict[str, Any] | None:
    """The next row; Python's limit of a cell holds for the whole process, so it is put back."""
    before = csv.field_size_limit(_MOST_CELL)
    try:
        return next(rows, None)
    finally:
        csv.field_size_limit(before)


def _parquet(path: Path, form: Form, fields: Collection[str]) -> Iterator[Row]:
    file = _open_parquet(path)
    there = [name for name in file.schema_arrow.names if name in fields]
    for batch in file.iter_batches(batch_size=16, columns=there):  # pictures are large
        yield from batch.to_pylist()


def _open_parquet(path: Path) -> Any:
    try:
        import pyarrow.parquet
    except ImportError:
        raise BadOption(
            f"{path} is a parquet file, which pyarrow reads: pip install 'varifocal[suites]', or "
            "pip install pyarrow"
        ) from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, ValueError) as error:
        raise BadArtifact(f"{path} cannot be read: {error}") from error
