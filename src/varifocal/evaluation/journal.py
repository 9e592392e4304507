"""The runs of a benchmark on disk: what was interrupted goes on, and nothing is ever mixed.

One JSON line holds all runs of one request, of every entry and repeat, made in one sitting: speeds
are only compared within it. A line comes whole or, if the program or the disk ended in its middle,
does not count; each carries a checksum. The first line says what the runs depend on, and a command
that differs in any of it is refused.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from varifocal.errors import BadArtifact, BadOption
from varifocal.evaluation.figures import VERDICTS, Timed, Verdict
from varifocal.evaluation.identity import Facts, differences
from varifocal.result import GenerationResult, Round

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two runs apart
    fcntl = None  # type: ignore[assignment]

FORMAT, VERSION = "varifocal-bench", 1
_LINE = re.compile(rb'\{"sha256": "([0-9a-f]{16})", "is": (.*)\}', re.DOTALL)
_PASSING = ("load",)  # facts of a machine that change from minute to minute


@dataclass(frozen=True, kw_only=True)
class Record:
    """All runs of one request, in the order in which they were made."""

    number: int  # of the request in the suite
    sitting: int  # counted from 0
    runs: tuple[tuple[str, int, Timed], ...]  # entry, repeat, run
    verdicts: Mapping[str, Verdict | None]  # by entry, the worst of its repeats

    def of(self, entry: str) -> list[Timed]:
        """An entry's runs by repeat."""
        own = [(repeat, run) for name, repeat, run in self.runs if name == entry]
        return [run for _, run in sorted(own, key=lambda pair: pair[0])]


@dataclass(frozen=True)
class Sitting:
    """One go at the work."""

    machine: Facts
    costs: dict[str, Facts | None]  # the cost model that each entry planned with


@dataclass
class Journal:
    """The records of one benchmark; without a file they are kept in memory alone."""

    bench: Facts  # what its runs depend on
    path: Path | None = None
    sittings: list[Sitting] = field(default_factory=list)
    records: dict[int, Record] = field(default_factory=dict)  # by number of the request
    _file: BinaryIO | None = None
    _end: int = 0  # of the last whole line
    _is_begun: bool = False

    def begin(self, sitting: Sitting) -> None:
        """A sitting begins; raises BadOption if it is on another machine than the ones before."""
        for before in self.sittings[:1]:
            if changed := differences(_lasting(before.machine), _lasting(sitting.machine)):
                raise BadOption(
                    f"{self.path} was begun on another machine or with other settings of it: "
                    f"{'; '.join(changed)}. Go on there, measure in another place, or measure all "
                    "anew with --fresh"
                )
        if self._file is not None:
            self._file.truncate(self._end)  # what a kill cut short
            self._file.seek(self._end)
        if self._end == 0:
            self._append("bench", {"format": FORMAT, "version": VERSION, "bench": self.bench})
        self._append("sitting", {"machine": sitting.machine, "costs": sitting.costs})
        self.sittings.append(sitting)
        self._is_begun = True

    def add(self, record: Record) -> None:
        """Keep a request's runs; they are on the disk when this returns."""
        assert self._is_begun and record.number not in self.records
        content = {
            "number": record.number,
            "case": self.bench["cases"][record.number],
            "sitting": record.sitting,
            "verdicts": dict(record.verdicts),
            "runs": [[entry, repeat, packed(run)] for entry, repeat, run in record.runs],
        }
        self._append("request", content)
        self.records[record.number] = record

    def _append(self, kind: str, content: Facts) -> None:
        if self._file is None:
            return
        line = _line({"kind": kind} | content)
        try:
            rest = memoryview(line)
            while rest:  # a full disk may take a part
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            raise BadArtifact(
                f"{self.path} cannot be written ({error.strerror or error}). What it holds is "
                "whole up to here: make room and run the same command again, it goes on"
            ) from error
        self._end += len(line)

    def _read(self, data: bytes) -> None:
        """Take in what is there; raises BadOption for another benchmark, BadArtifact if damaged."""
        lines = data.split(b"\n")
        lines.pop()  # empty, or cut short
        for number, raw in enumerate(lines, start=1):
            content = self._checked(raw, number)
            kind = content.get("kind")
            if number == 1:
                self._compare(content)
            elif kind == "sitting":
                self.sittings.append(Sitting(content["machine"], content["costs"]))
            elif kind == "request":
                self._take(content, number)
            else:
                raise self._damaged(number, f"it is a line of the kind {kind!r}")
            self._end += len(raw) + 1

    def _checked(self, raw: bytes, number: int) -> Facts:
        match = _LINE.fullmatch(raw)
        if match is None or _digest(match[2]) != match[1].decode():
            raise self._damaged(number, "its checksum is wrong")
        content: Facts = json.loads(match[2])
        return content

    def _compare(self, first: Facts) -> None:
        if first.get("format") != FORMAT or first.get("version") != VERSION:
            raise BadOption(
                f"{self.path} was written by another version of varifocal; measure in another "
                "place, or measure all anew with --fresh"
            )
        if changed := differences(first["bench"], self.bench):
            raise BadOption(
                f"{self.path} holds the runs of another benchmark: {'; '.join(changed)}. Give the "
                "command that began it to go on, choose another place, or measure all anew with "
                "--fresh"
            )

    def _take(self, content: Facts, line: int) -> None:
        """Only under its own number, with its own content, and complete."""
        number, cases = content["number"], self.bench["cases"]
        runs = tuple((entry, repeat, unpacked(run)) for entry, repeat, run in content["runs"])
        wanted = {
            (entry["entry"], repeat)
            for entry in self.bench["entries"]
            for repeat in range(self.bench["repeats"])
        }
        given = [(entry, repeat) for entry, repeat, _ in runs]
        is_whole = len(given) == len(wanted) and set(given) == wanted
        is_known = 0 <= number < len(cases) and content["case"] == cases[number]
        if not is_whole or not is_known or content["sitting"] >= len(self.sittings):
            raise self._damaged(line, "its runs are not those of a request of this benchmark")
        if number in self.records:
            raise self._damaged(line, f"the request {cases[number]['id']} stands there twice")
        verdicts = {entry: verdict for entry, verdict in content["verdicts"].items()}
        if not {v for v in verdicts.values() if v is not None} <= set(VERDICTS):
            raise self._damaged(line, "its verdicts are unknown")
        self.records[number] = Record(
            number=number, sitting=content["sitting"], runs=runs, verdicts=verdicts
        )

    def _damaged(self, line: int, reason: str) -> BadArtifact:
        return BadArtifact(
            f"{self.path} is damaged in line {line}: {reason}. Restore it, or measure all anew "
            "with --fresh"
        )


@contextmanager
def open_journal(path: Path | None, bench: Facts, *, is_fresh: bool = False) -> Iterator[Journal]:
    """The journal of this benchmark: what is there already, ready to be gone on with.

    `is_fresh` forgets what is there. Raises BadOption if it belongs to another benchmark or if
    another run is writing into it, BadArtifact if it is damaged other than at its end.
    """
    journal = Journal(json.loads(json.dumps(bench)), path)  # as it comes back from a file
    if path is None:
        yield journal
        return
    with _opened(path) as file:
        if is_fresh:
            file.truncate(0)
        journal._read(file.read())
        journal._file = file
        yield journal


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """For this run alone; a kill lets go of it too."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise BadOption(
            f"the runs are kept in {path}, which cannot be written ({error.strerror or error}); "
            "choose another place"
        ) from error
    with os.fdopen(handle, "r+b", buffering=0) as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BadOption(
                    f"another bench is writing into {path}; wait for it or choose another place"
                ) from None
            except OSError:  # a network disk without locks
                pass
        yield file


def packed(run: Timed) -> Facts:
    """A run as plain data. What was shown piece by piece is not kept, only the whole text."""
    result = run.result
    rounds = [
        [len(r.tokens), r.num_drafted, r.num_accepted, r.draft_seconds, r.verify_seconds,
         r.other_seconds]
        for r in (result.prefill, *result.rounds)
    ]  # fmt: skip
    return {
        "total": run.total,
        "state_bytes": run.state_bytes,
        "token_ids": result.token_ids,
        "text": result.text,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "image_tokens": result.image_tokens,
        "drafter": result.drafter,
        "target": result.target,
        "fallback": result.fallback,
        "rounds": rounds,
    }


def unpacked(data: Facts) -> Timed:
    """The other way round."""
    content = dict(data)
    total, state_bytes = content.pop("total"), content.pop("state_bytes")
    prefill, *rounds = _rounds(content.pop("rounds"), content["token_ids"])
    result = GenerationResult(prefill=prefill, rounds=rounds, **content)
    return Timed(result=result, total=total, state_bytes=state_bytes)


def _rounds(rows: Sequence[Sequence[Any]], tokens: Sequence[int]) -> list[Round]:
    made: list[Round] = []
    place = 0
    for count, drafted, accepted, draft, verify, other in rows:
        made.append(
            Round(
                tokens=list(tokens[place : place + count]),
                text="",
                num_drafted=drafted,
                num_accepted=accepted,
                draft_seconds=draft,
                verify_seconds=verify,
                other_seconds=other,
                is_prefill=not made,
            )
        )
        place += count
    return made


def _line(content: Facts) -> bytes:
    body = json.dumps(content, allow_nan=False).encode()
    return b'{"sha256": "%s", "is": %s}\n' % (_digest(body).encode(), body)


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


def _lasting(machine: Facts) -> Facts:
    return {name: value for name, value in machine.items() if name not in _PASSING}
