"""What the file of a layout states: where a set is published, which field holds what, its split."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any, Literal

from varifocal.evaluation.suites import MAX_NEW_TOKENS

Row = Mapping[str, Any]  # a record as it is published
Holding = Literal["path", "base64", "bytes"]


@dataclass(frozen=True, kw_only=True)
class Form:
    """One way in which a set is published: its files, and which field holds what."""

    name: str  # a dataset of the hub, or whose files they are
    files: tuple[str, ...]  # patterns below the folder that is given; the suffix says how to read
    question: str
    picture: str  # one or a list, held as the kind of file has it; see `holding`
    answer: str = ""  # where none is published
    id: str = ""  # where there is none: records are numbered
    options: tuple[str, ...] = ()  # a field that lists them, or one field each
    context: str = ""  # text before the question
    family: str = ""  # where left out: all records are of one family, named like the layout
    part: str = ""  # names the published split that a record belongs to
    others: tuple[str, ...] = ()  # further fields that the layout looks at
    optional: tuple[str, ...] = ()  # of all these, what a file may lack
    records: str = ""  # in JSON: the key of the list; * where they are the values of an object
    has_turns: bool = False  # whether `question` lists the turns of a conversation
    is_single: bool = False  # files of one folder repeat one another, so that one must be named
    read: Callable[[Path], Iterator[Row]] | None = None  # for files that no other set has

    @property
    def suffix(self) -> str:
        """The kind of its files, such as .json."""
        return Path(self.files[0]).suffix

    @property
    def file_names(self) -> tuple[str, ...]:
        """The patterns without the folders that may lie above."""
        return tuple(pattern.removeprefix("**/") for pattern in self.files)

    @property
    def holding(self) -> Holding:
        """How a record holds its pictures."""
        kinds: dict[str, Holding] = {".parquet": "bytes", ".tsv": "base64"}
        return kinds.get(self.suffix, "path")

    @property
    def names_pictures(self) -> bool:
        """Whether its pictures are files that may lie elsewhere."""
        return self.holding == "path" and self.read is None

    @property
    def required(self) -> tuple[str, ...]:
        """The fields without which a file is of another form."""
        named = (self.question, self.picture, self.answer, self.id, self.context, self.family,
                 self.part, *self.options[:2], *self.others)  # fmt: skip
        return tuple(dict.fromkeys(name for name in named if name and name not in self.optional))

    @property
    def fields(self) -> tuple[str, ...]:
        """Every field that is read, if it is there."""
        return tuple(dict.fromkeys((*self.required, *self.options, *self.optional)))

    @property
    def prompt(self) -> str:
        """How the text of a request is made of a record."""
        parts = [
            f"{self.context}, if any" if self.context else "",
            f"{'the first of ' if self.has_turns else ''}{self.question} as published",
            'the options, one a line: "A. ..."' if self.options else "",
        ]
        listed = "; then ".join(part for part in parts if part)
        return f"pictures first; then {listed}; no word on the form of the answer"


def text_of(value: object) -> str:
    """A cell as text; nothing for what is missing."""
    if value is None or value != value:  # NaN
        return ""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def listed(value: object) -> list[Any]:
    """A cell that holds one or several, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def first_answer(value: object, row: Row) -> str:
    """The answer, or the first of several that count as right."""
    return text_of(next(iter(listed(value)), None))


def as_named(name: str, row: Row) -> str:
    """The path of a picture, where a record holds just that."""
    return name


def keep_all(row: Row) -> str:
    """No reason to leave a record out."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A set of questions about pictures, and how it becomes a suite."""

    title: str
    verified: str  # what the names of the fields were checked against
    forms: tuple[Form, ...]  # tried in this order
    split: Literal["drawn", "official", "whole"]  # see `_split`
    # Words in names of files that tell the published splits, for "official" and "whole".
    parts: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {"test": ("test",), "train": ("train",)}
    )
    max_new_tokens: int = MAX_NEW_TOKENS
    answer: Callable[[Any, Row], str] = first_answer  # from the field's value
    place: Callable[[str, Row], str] = as_named  # where a picture lies, from what a record holds
    leave_out: Callable[[Row], str] = keep_all  # why a record is no request, looked at before ...
    looks_at_pictures: bool = False  # ... the split, and whether that reads the pictures


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a record asks."""

    text: str
    num_later_turns: int  # left out: their history would be answers that are not known
    reference: str | None


def question_of(row: Row, form: Form, layout: Layout) -> Question:
    """The text of the request and the known answer; the text may come out empty."""
    asked = row[form.question]
    turns = [text_of(turn) for turn in (listed(asked) if form.has_turns else [asked])] or [""]
    context = text_of(row[form.context]) if form.context else ""
    lines = [context] if context.strip() else []
    lines.append(turns[0])
    if turns[0].strip():
        lines += _options(row, form.options)
    answer = layout.answer(row.get(form.answer), row) if form.answer else ""
    return Question(
        text="\n".join(lines) if turns[0].strip() else "",
        num_later_turns=len(turns) - 1,
        reference=answer if answer.strip() else None,
    )


def _options(row: Row, fields: Sequence[str]) -> list[str]:
    texts = [text_of(value) for name in fields for value in listed(row.get(name))]
    named = zip(ascii_uppercase, texts, strict=False)
    return [f"{letter}. {text}" for letter, text in named if text.strip()]


def family_of(row: Row, form: Form, name: str) -> str:
    """A family's name without spaces, so that it can be typed."""
    given = text_of(row[form.family]) if form.family else ""
    return re.sub(r"\W+", "_", given.strip().lower()) or name
