"""Times of phases to simulate with: those that [PRR]'s authors measured, or a table of one's own.

Their table has the time of selection, of attention to what was selected and of a whole layer. What
else a simulation needs is assumed, and stands in `ASSUMED`: they give no times for finding out
what was missed and for merging.
"""

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.phases import Line, PhaseTimes

SOURCE = (
    "Nsight times of kernels one after the other, GLM-4-9B, batch 1, roofline/utilization.csv of "
    "the PRR authors' public repository (commit cfc2c41, July 2026)"
)
# method, tokens of context, microseconds of select, attend, layer
PAPER = (
    ("quest", 16384, 44.5, 63.9, 417.0),
    ("quest", 131072, 60.0, 63.2, 434.0),
    ("quest", 524288, 107.5, 63.9, 469.0),
    ("infllm", 16384, 48.4, 65.5, 412.0),
    ("infllm", 131072, 62.5, 65.8, 430.0),
    ("infllm", 524288, 105.9, 65.7, 471.0),
)
ASSUMED: Mapping[str, float] = {
    "launch_us": 3.0,  # of a kernel, whatever it does
    "diff_us": 3.0,
    "merge_us": 5.0,
    "chosen": 64,  # blocks: InfLLM-v2's published setting, as the block size
    "block_size": 64,
    "layers": 40,  # GLM-4-9B, as what follows
    "group": 16,
    "head_dim": 128,
    "batch": 1,
    "busy": 0.25,  # share of the memory's bandwidth in use at batch 1 (23 to 26 %, their roofline)
}
_COLUMNS = ("method", "context", "select_us", "attend_us", "layer_us")
_ITEM = 2  # bytes of a key's number


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A model on a machine at one length: the times of its phases, and sizes they belong to."""

    name: str
    context: int  # tokens
    times: PhaseTimes
    units: int  # of the context
    kept: int  # attended to without being chosen
    chosen: int
    layers: int = 1
    before: float = 0.0  # seconds of a layer before its window
    after: float = 0.0  # and behind it
    head: float = 0.0  # seconds of a token outside all layers
    batch: int = 1
    group: int = 1  # query heads of a KV head
    head_dim: int = 128
    block_size: int = 64
    busy: float = 1.0  # share of the memory's bandwidth that selection or attention takes alone
    is_by_head: bool = False  # each query head costs its own time, as in the reference kernels

    def with_contention(self, contention: float) -> "Profile":
        """The same with another contention."""
        return replace(self, times=replace(self.times, contention=contention))

    def scaled(
        self, *, batch: int | None = None, group: int | None = None, layers: int | None = None
    ) -> "Profile":
        """At another batch size, group size or number of layers.

        Phases that are bound by work or bandwidth grow with what they read; one that uses a share
        `busy` of the bandwidth takes no longer until it would use all of it. Two of them side by
        side share what there is. What lies outside the windows is left as it is: weights are read
        once for a batch.
        """
        batch = self.batch if batch is None else batch
        group = self.group if group is None else group
        layers = self.layers if layers is None else layers
        if min(batch, group, layers) < 1:
            raise BadOption(
                f"batch, group and layers are at least 1, got {batch}, {group} and {layers}"
            )
        rows, heads = batch / self.batch, group / self.group
        reading = rows * heads if self.is_by_head else rows
        slower = max(1.0, self.busy * reading)
        times = replace(
            self.times,
            select=_longer(self.times.select, slower),
            attend=_longer(self.times.attend, slower),
            merge=_longer(self.times.merge, max(1.0, self.busy * rows * heads)),
        )
        if not self.is_by_head:
            kept = max(1.0, self.busy * reading * (1 + self._traffic(group)))
            together = 2 * min(1.0, self.busy * reading)
            contention = max(times.contention, together)
            times = replace(times, states=kept / slower, contention=contention)
        return replace(self, times=times, batch=batch, group=group, layers=layers)

    def _traffic(self, group: int) -> float:
        """Bytes of a block's states, in float32, as a share of those of its keys and values."""
        states = group * (self.head_dim + 2) * 4
        return states / (2 * self.block_size * self.head_dim * _ITEM)


def _longer(line: Line, factor: float) -> Line:
    return Line(base=line.base, slope=line.slope * factor)


def paper_profiles(method: str = "") -> list[Profile]:
    """The authors' table, or one method's part of it."""
    rows = [dict(zip(_COLUMNS, row, strict=True)) for row in PAPER if method in ("", row[0])]
    if not rows:
        raise BadOption(f"the authors' table has quest and infllm, got {method!r}")
    return [_profile({k: str(v) for k, v in row.items()}) for row in rows]


def read_profiles(path: Path) -> list[Profile]:
    """A table in CSV: the columns of `PAPER`, and any of `ASSUMED` to say better."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = [*csv.DictReader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadRequest(f"the profile {path} cannot be read as CSV: {error}") from error
    columns = {*rows[0]} - {None} if rows else set()  # None: cells behind the last column
    missing = [name for name in _COLUMNS if name not in columns]
    unknown = sorted(str(c) for c in columns - {*_COLUMNS, *ASSUMED})
    if missing or unknown:
        problem = f"lacks {', '.join(missing)}" if missing else f"has {', '.join(unknown)}"
        raise BadRequest(
            f"the profile {path} {problem}: wanted a head with {', '.join(_COLUMNS)}, and any of "
            f"{', '.join(ASSUMED)}"
        )
    made = []
    for number, row in enumerate(rows, start=2):
        try:
            made.append(_profile(row))
        except (OverflowError, ValueError, ZeroDivisionError) as error:
            raise BadRequest(f"line {number} of {path}: {error}") from error
    return made


def _profile(row: Mapping[str, str]) -> Profile:
    """One line of a table; the unit of time there is the microsecond."""
    if empty := [name for name in _COLUMNS if not row.get(name)]:
        raise ValueError(f"it has nothing under {', '.join(empty)}")
    if None in row:
        raise ValueError("it has more cells than the head has columns")
    number = {name: float(row.get(name) or default) for name, default in ASSUMED.items()}
    given = {name: float(row[name]) for name in _COLUMNS[1:]}
    if not all(map(math.isfinite, (*given.values(), *number.values()))):
        raise ValueError("times and sizes must be finite numbers")
    if min(*given.values(), *number.values()) < 0 or given["layer_us"] <= 0:
        raise ValueError("times and sizes cannot be negative")
    select, attend = given["select_us"] * 1e-6, given["attend_us"] * 1e-6
    rest = given["layer_us"] * 1e-6 - select - attend
    if rest < 0:
        raise ValueError("select_us and attend_us are more than the layer_us that holds them")
    launch, chosen = min(number["launch_us"] * 1e-6, attend), int(number["chosen"])
    units = int(given["context"] // number["block_size"])
    if not 0 < chosen <= units:
        raise ValueError(f"chosen must be from 1 to the {units} blocks of the context")
    times = PhaseTimes(
        select=Line(base=launch, slope=(select - launch) / units),
        attend=Line(base=launch, slope=(attend - launch) / chosen),
        merge=Line(base=number["merge_us"] * 1e-6),
        diff=Line(base=number["diff_us"] * 1e-6),
        is_fused=True,
    )
    return Profile(
        name=row["method"],
        context=int(given["context"]),
        times=times,
        units=units,
        kept=0,
        chosen=chosen,
        layers=int(number["layers"]),
        after=rest,
        batch=int(number["batch"]),
        group=int(number["group"]),
        head_dim=int(number["head_dim"]),
        block_size=int(number["block_size"]),
        busy=number["busy"],
    )
