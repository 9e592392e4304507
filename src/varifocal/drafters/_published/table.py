"""Tables from published names to ours, and the accounts that they must balance."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn

from varifocal.drafters._published.files import Checkpoint
from varifocal.errors import BadArtifact

_SHOWN = 8  # names that an error lists


class How(Enum):
    """What is done with the published tensors of an entry."""

    ROWS = "one below another"
    SWAPPED = "left and right half of the columns exchanged"
    LEFT = "left half of the columns"
    RIGHT = "right half of the columns"


@dataclass(frozen=True)
class Entry:
    """One tensor of ours, and the published ones that it is made of."""

    ours: str
    theirs: tuple[str, ...]
    how: How = How.ROWS

    def make(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Ours, of theirs."""
        found = [tensors[name] for name in self.theirs]
        if self.how is How.ROWS:
            return torch.cat(found) if found[1:] else found[0]
        left, right = found[0].chunk(2, -1)
        if self.how is How.SWAPPED:
            return torch.cat([right, left], -1)
        return left if self.how is How.LEFT else right

    def part(self, made: Tensor, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Theirs, of ours: the way back, for rows. `sizes` are those of names with several."""
        assert self.how is How.ROWS
        if not self.theirs[1:]:
            return {self.theirs[0]: made}
        parts = made.split([sizes[name.rsplit(".", 2)[-2]] for name in self.theirs])
        return dict(zip(self.theirs, parts, strict=True))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A checkpoint understood: which drafter it is, and where each of its tensors goes."""

    layout: str  # for people
    drafter: str  # its file here
    settings: dict[str, Any]  # of its Config
    entries: Sequence[Entry]
    unneeded: tuple[str, ...] = ()  # patterns of names that may be there besides
    added: Mapping[str, Tensor] = field(default_factory=dict)  # ours that are in no entry
    taken: tuple[str, ...] = ()  # theirs that `added` was made of
    notes: str = ""  # what a reader of the card should know


# Buffers of positions, and copies of the target's head and norm that are used in training alone.
_ALWAYS_UNNEEDED = (r"(.*\.)?rotary_emb\.\w+", r"verifier_\w+\.weight")


def translate(checkpoint: Checkpoint, reading: Reading) -> dict[str, Tensor]:
    """All tensors of ours. Raises BadArtifact unless every published one has its place."""
    wanted = {name for entry in reading.entries for name in entry.theirs}
    have, spare = set(checkpoint.tensors), (*_ALWAYS_UNNEEDED, *reading.unneeded)
    left = {
        name
        for name in have - wanted - set(reading.taken)
        if not any(re.fullmatch(pattern, name) for pattern in spare)
    }
    problems = [f"it lacks {_listed(wanted - have)}"] if wanted - have else []
    problems += [f"it holds {_listed(left)}, which {reading.drafter} does not have"] if left else []
    if problems:
        raise BadArtifact(
            f"{checkpoint.name} is no complete checkpoint in the layout {reading.layout}: "
            f"{'; '.join(problems)}. Fetch it again, or give its family if it is of another "
            "(family=, --family)"
        )
    try:
        made = {entry.ours: entry.make(checkpoint.tensors) for entry in reading.entries}
    except RuntimeError as error:  # widths that do not agree
        reason = " ".join(str(error).split())
        raise BadArtifact(f"tensors of {checkpoint.name} do not fit together ({reason})") from error
    return made | dict(reading.added)


def fill(network: nn.Module, tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Copy all of them into the network; names and shapes must agree."""
    wanted = network.state_dict()
    assert set(wanted) == set(tensors), set(wanted) ^ set(tensors)  # a table that is incomplete
    wrong = [
        f"{name} is {tuple(tensors[name].shape)}, wanted {tuple(wanted[name].shape)}"
        for name in sorted(wanted)
        if tensors[name].shape != wanted[name].shape
    ]
    if wrong:
        raise BadArtifact(
            f"tensors of {checkpoint.name} do not have the sizes that its others imply (in our "
            f"names): {'; '.join(wrong[:_SHOWN])}. Fetch it again"
        )
    network.load_state_dict(dict(tensors))


def attention(ours: str, theirs: str, *, bias: bool) -> list[Entry]:
    """Queries, keys and values as rows of one layer, and the output."""
    kinds = ("weight", "bias") if bias else ("weight",)
    joined = [
        Entry(f"{ours}.qkv.{kind}", tuple(f"{theirs}.{x}_proj.{kind}" for x in "qkv"))
        for kind in kinds
    ]
    return [*joined, Entry(f"{ours}.out.weight", (f"{theirs}.o_proj.weight",))]


def feed_forward(ours: str, theirs: str) -> list[Entry]:
    """SwiGLU behind its norm, of a whole layer."""
    mlp = f"{theirs}.mlp"
    return [
        Entry(f"{ours}.inner_norm.weight", (f"{theirs}.post_attention_layernorm.weight",)),
        Entry(f"{ours}.gate_up.weight", (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")),
        Entry(f"{ours}.down.weight", (f"{mlp}.down_proj.weight",)),
    ]


def layer(ours: str, theirs: str, *, bias: bool, first_norm: bool = True) -> list[Entry]:
    """A decoder layer of self-attention."""
    norm = [Entry(f"{ours}.attention_norm.weight", (f"{theirs}.input_layernorm.weight",))]
    return [
        *(norm if first_norm else []),
        *attention(ours, f"{theirs}.self_attn", bias=bias),
        *feed_forward(ours, theirs),
    ]


def _listed(names: Iterable[str]) -> str:
    found = sorted(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
