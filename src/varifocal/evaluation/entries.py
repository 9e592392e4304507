"""What takes part in a benchmark: `name:option=value:...`, one entry per row of the table.

`fast=true` and `label=NAME` are options of the bench itself: packed weights, and what the rows are
called. `{model}` stands for the draft model that `--draft-model` names.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from varifocal.drafters import drafter_class, drafter_names
from varifocal.drafters._weights import shipped_weights
from varifocal.engine import parse_options
from varifocal.errors import BadOption
from varifocal.evaluation.lead import is_outside, is_plain
from varifocal.evaluation.peers import parse_peer_options, peer_names
from varifocal.target import Target

_OPTION = r"[A-Za-z_]\w*="
ALL = "all"
MODEL = "{model}"
_OUTSIDE = ("hf-generate", "hf-prompt-lookup")  # of "all": those that need nothing else
_YES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One way of decoding, as the user wrote it."""

    text: str  # the name of its rows: its label, else as given
    name: str  # of a drafter, its module or folder, or of an outside baseline
    given: str = ""  # as given, where there is a label
    options: dict[str, Any] = field(default_factory=dict)
    is_fast: bool = False  # on packed weights; the bench's own option

    @property
    def is_outside(self) -> bool:
        """Whether transformers decodes it, not our loop."""
        return is_outside(self.name)

    @property
    def is_baseline(self) -> bool:
        """Whether it is one of the plain loops that others are compared with."""
        return self.name == "plain"

    def baseline_of(self, entries: Sequence["Entry"]) -> "Entry":
        """The plain loop with the same weights and kernels; plain loops go by the stock one."""
        is_fast = self.is_fast and not self.is_baseline
        return next(e for e in entries if e.is_baseline and e.is_fast == is_fast)


def expand_all(text: str, target: Target | None = None) -> str:
    """The list with "all" replaced by what it stands for; what is named besides comes once.

    All: every drafter that needs no weights, every one whose weights are shipped for the target,
    hf-generate and hf-prompt-lookup. Without a target, none that needs weights.
    """
    pieces = _pieces(text)
    if ALL not in pieces:
        return text
    place = pieces.index(ALL)
    every = [*everything(target), *_OUTSIDE]
    named = [piece for piece in pieces if piece != ALL]
    pieces[place : place + 1] = [name for name in every if name not in named]
    return ",".join(piece for piece in pieces if piece != ALL)


def with_model(text: str, model: str) -> str:
    """The list with the draft model in the place of `{model}`; "" takes the one that is shipped.

    Raises BadOption for a model that no entry asks for.
    """
    if model and MODEL not in text:
        raise BadOption(
            f"--draft-model has no effect: no entry has {MODEL} in it, as those of the presets of "
            "TABED have and as ensemble{model}:views=MT would"
        )
    return text.replace(MODEL, f":model={model}" if model else "")


def everything(target: Target | None = None) -> list[str]:
    """Our drafters that can run as they are: plain first, then those without weights, the rest."""
    known = {name: drafter_class(name).needs.startswith("nothing") for name in drafter_names()}
    free = [name for name, is_free in known.items() if is_free and name != "plain"]
    trained = [
        name
        for name, is_free in known.items()
        if not is_free and target is not None and shipped_weights(name, target) is not None
    ]
    return ["plain", *free, *trained]


def parse_drafters(text: str) -> list[Entry]:
    """Entries of "plain,fovea,fovea:nodes=40:depth=4,hf-generate", in their order.

    A comma starts an entry, a colon an option; `key=value` after a comma still belongs to the
    entry before it. The plain loops that the entries are compared with are added in front.
    """
    pieces = _pieces(text)
    if not pieces:
        raise BadOption("no drafter is named; give for instance plain,lookup")
    entries = [_entry(piece) for piece in pieces]
    rows = [entry.text for entry in entries]
    if repeated := sorted({row for row in rows if rows.count(row) > 1}):
        raise BadOption(f"{', '.join(repeated)} is named twice; one row each is enough")
    return _with_baselines(entries)


def _pieces(text: str) -> list[str]:
    pieces: list[str] = []
    for piece in (p.strip() for p in text.split(",")):
        if re.match(_OPTION, piece) and pieces:
            pieces[-1] += f",{piece}"
        elif piece:
            pieces.append(piece)
    return pieces


def _entry(text: str) -> Entry:
    name, *pairs = re.split(rf"[:,](?={_OPTION})", text)
    given: dict[str, str] = {}
    for pair in pairs:
        key, value = pair.split("=", 1)
        if key in given:
            raise BadOption(f"{text}: {key} is given twice")
        given[key] = value
    is_windows_path = re.match(r"[A-Za-z]:[\\/]", name)
    if not name or (":" in name and not is_windows_path):
        raise BadOption(f"{text!r} is not name:option=value")
    if name.startswith("hf-"):
        if name not in peer_names():
            raise BadOption(
                f"no outside baseline is called {name!r}; there are {', '.join(peer_names())}"
            )
        return Entry(text=text, name=name, options=parse_peer_options(name, given))
    is_fast = _yes(text, given.pop("fast", "false"))
    label = _label(text, name, given.pop("label", None))
    options = parse_options(name, given)
    return Entry(
        text=label or text, name=name, given=text if label else "", options=options, is_fast=is_fast
    )


def _label(entry: str, name: str, label: str | None) -> str:
    """What the rows are called, if not as the entry is written."""
    if label is None:
        return ""
    if not label.strip() or name == "plain" or is_plain(label) or is_outside(label):
        raise BadOption(
            f"{entry}: a label must be a name, and neither be that of a plain loop or outside "
            "baseline nor be given to one"
        )
    return label.strip()


def _yes(entry: str, value: str) -> bool:
    if value.lower() not in _YES:
        raise BadOption(f"{entry}: fast must be true or false, got {value!r}")
    return _YES[value.lower()]


def _with_baselines(entries: list[Entry]) -> list[Entry]:
    stock = Entry(text="plain", name="plain")
    packed = Entry(text="plain:fast=true", name="plain", is_fast=True)
    if not any(e.is_baseline and not e.is_fast for e in entries):
        entries = [stock, *entries]
    have_packed = any(e.is_baseline and e.is_fast for e in entries)
    if any(e.is_fast for e in entries) and not have_packed:
        place = 1 + next(n for n, e in enumerate(entries) if e.is_baseline)
        entries = [*entries[:place], packed, *entries[place:]]
    return entries
