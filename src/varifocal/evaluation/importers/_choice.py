"""First pass: the records of a set, without their pictures, and those that make a split."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from varifocal.evaluation.importers._files import Found
from varifocal.evaluation.importers._layout import Form, Layout, Row, family_of, text_of
from varifocal.evaluation.importers._split import NUM_TRAIN, SEED, drawn, drawn_to_train

_NAMED = 20  # records that are named where more are counted


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A record of the files."""

    index: int  # among all records, in the order of the files
    id: str  # told apart from those of all others
    family: str
    part: str  # the published split, or ""


class LeftOut:
    """Records that become no request: why, how many, and the first of them."""

    def __init__(self) -> None:
        self._records: dict[str, list[str]] = {}

    def add(self, reason: str, record: str) -> None:
        """Count one more."""
        self._records.setdefault(reason, []).append(record)

    @property
    def counts(self) -> dict[str, int]:
        """How many for each reason."""
        return {reason: len(records) for reason, records in self._records.items()}

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            reason: {"count": len(records), "first": records[:_NAMED]}
            for reason, records in self._records.items()
        }


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is imported, and from what it must be kept apart."""

    chosen: list[Seen]  # in the order of the suite
    trained: list[Seen] = field(default_factory=list)  # no picture of these may be in the suite
    rule: str  # how the split was made
    leakage: str  # what these two lists were compared for, or why they were not


def scan(name: str, layout: Layout, found: Found, left_out: LeftOut) -> tuple[list[Seen], int]:
    """The records that may be requests, and how many records there are in all."""
    seen: list[Seen] = []
    ids = _Ids()
    numbers: Counter[str] = Counter()  # records of each part so far
    for index, (_, told, row) in enumerate(found.rows(with_pictures=layout.looks_at_pictures)):
        part = text_of(row[found.form.part]) if found.form.part else told
        numbers[part] += 1
        id = ids.unused(_id_of(row, found.form) or _numbered(name, part, numbers[part]))
        if reason := layout.leave_out(row):
            left_out.add(reason, id)
        else:
            family = family_of(row, found.form, name)
            seen.append(Seen(index=index, id=id, family=family, part=part))
    return seen, numbers.total()


def choose(layout: Layout, seen: Sequence[Seen], split: str, limit: int | None) -> Choice:
    """The records of a split, at most `limit` of a family."""
    choice = _split(layout, seen, split)
    taken: Counter[str] = Counter()
    kept = []
    for one in choice.chosen:
        taken[one.family] += 1
        if limit is None or taken[one.family] <= limit:
            kept.append(one)
    return replace(choice, chosen=kept)


def _split(layout: Layout, seen: Sequence[Seen], split: str) -> Choice:
    if split == "all":
        return Choice(
            chosen=list(seen), rule="all records", leakage="not checked: no part is for training"
        )
    if layout.split == "whole":
        return Choice(
            chosen=list(seen),
            rule="all records of the published part",
            leakage="not checked: nothing of this set is for training",
        )
    train, test, rule = _drawn(layout, seen) if layout.split == "drawn" else _official(layout, seen)
    if split == "train":
        return Choice(
            chosen=train,
            rule=rule,
            leakage="not checked: the suite to measure on drops what is here",
        )
    checked = "pictures of the training part are dropped here"
    missing = "not checked: the training part is not among the files"
    return Choice(chosen=test, trained=train, rule=rule, leakage=checked if train else missing)


def _drawn(layout: Layout, seen: Sequence[Seen]) -> tuple[list[Seen], list[Seen], str]:
    train, test = drawn(seen, layout.title)
    rule = (
        f"train_test_split of {len(seen)} records with train_size={len(train)}, "
        f"test_size={len(test)}, random_state={SEED}"
    )
    return train, test, rule


def _official(layout: Layout, seen: Sequence[Seen]) -> tuple[list[Seen], list[Seen], str]:
    pool = [one for one in seen if one.part in layout.parts["train"]]
    test = [one for one in seen if one.part in layout.parts["test"]]
    rule = (
        f"the published test part; to train on at most {NUM_TRAIN} of the {len(pool)} of the "
        f"published training part, drawn with random_state={SEED}"
    )
    return drawn_to_train(pool), test, rule


def _id_of(row: Row, form: Form) -> str:
    return text_of(row[form.id]).strip() if form.id else ""


def _numbered(name: str, part: str, number: int) -> str:
    return "-".join(filter(None, (name, part, str(number))))


class _Ids:
    """Ids given so far; a second record of the same id gets "-2" behind it, and so on."""

    def __init__(self) -> None:
        self._given: set[str] = set()
        self._times: Counter[str] = Counter()

    def unused(self, id: str) -> str:
        self._times[id] += 1
        name = id if self._times[id] == 1 else f"{id}-{self._times[id]}"
        if name in self._given:  # some other record is really called so
            return self.unused(id)
        self._given.add(name)
        return name
