"""A benchmark as a folder to show: one page with tables and charts, Markdown, CSV, JSON, a picture.

Bar charts are laid out once, in units of the page, and drawn twice: by the template as SVG and by
Pillow as the picture. A speed-up whose texts differ is struck out everywhere; its bar is crossed.
"""

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any, Final, Literal, get_args

import jinja2
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin

from varifocal.demo.canvas import FONT_FOLDER
from varifocal.errors import BadOption
from varifocal.evaluation.figures import BenchResult, Mean, Row
from varifocal.evaluation.table import heading, markdown, notes, verdict
from varifocal.training.artifacts import write_atomically

MEAN = "mean"  # the first column, where there are several families
NGRAM = "n-gram table"
PARTS = ("draft", "verify", "other")
COLOURS = ("#0072b2", "#c4500a", "#00845f", "#9c4f8b", "#3f4650", "#9a7200", "#3a86bd", "#8c2727")
SOFT = "#55606b"  # small print
SCALE = 2  # the picture is drawn larger and shrunk, for smooth edges

SPEEDUP: Final = "decode speed-up"
Kind = Literal["decode speed-up", "tau", "prefill share"]
Grid = dict[str, dict[str, Row | Mean]]  # the paper's form: entries by families, and the mean


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar in units of the page; y points down."""

    series: int  # whose colour it has; -1 is the n-gram table
    x: float
    width: float
    top: float
    whisker: tuple[float, float] | None  # upper and lower end
    is_struck: bool
    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class BarChart:
    """Bars side by side in groups, laid out."""

    alt: str
    width: float
    left: float  # where the axis stands
    bottom: float  # where the bars stand
    ticks: list[tuple[float, str]]
    groups: list[tuple[float, str]]
    bars: list[Bar]
    one: float | None  # height of the line at 1.00


def write_report(result: BenchResult, folder: Path) -> None:
    """All is made before the first file is written; each file appears whole or not at all."""
    files = {
        "bench.json": json.dumps(result.to_dict(), ensure_ascii=False, indent=1).encode(),
        "bench.csv": _csv(result).encode(),
        "bench.md": _markdown(result).encode(),
        "bench.png": _png(result),
        "index.html": _page(result).encode(),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"the report needs a folder, and {folder} cannot be one ({error.strerror or error}); "
            "name another with --report"
        ) from error
    for name, data in files.items():
        write_atomically(folder / name, data)


def _grid(result: BenchResult) -> Grid:
    is_many = len({row.family for row in result.rows}) > 1
    grid: Grid = {e: {MEAN: mean} if is_many else {} for e, mean in result.means.items()}
    for row in result.rows:
        grid[row.drafter][row.family] = row
    return grid


def _columns(result: BenchResult) -> list[str]:
    return list(next(iter(_grid(result).values())))


def _series(result: BenchResult) -> list[str]:
    """Entries that charts show: all but the plain loop, whose speed-up is 1 by definition."""
    stock = {row.drafter for row in result.rows if row.drafter == row.baseline}
    return [entry for entry in result.means if entry not in stock] or list(result.means)


def _colour_of(result: BenchResult) -> dict[str, int]:
    return {entry: n % len(COLOURS) for n, entry in enumerate(_series(result))}


def _best(result: BenchResult) -> dict[str, float]:
    """By column, the highest speed-up of entries whose texts are all right; 1 if none is higher."""
    good = [cells for entry, cells in _grid(result).items() if not result.means[entry].different]
    return {c: max([1.0, *(cells[c].decode_speedup for cells in good)]) for c in _columns(result)}


def _leader(result: BenchResult) -> str | None:
    """Of our drafters whose texts are right, the one with the highest mean speed-up."""
    ours = [
        entry
        for entry in _series(result)
        if not entry.startswith(("hf-", "plain")) and not result.means[entry].different
    ]
    return max(ours, key=lambda entry: result.means[entry].decode_speedup, default=None)


def _facts(result: BenchResult) -> dict[str, Any]:
    """Where the figures come from."""
    names = ("target", "suite", "dtype", "clock", "repeats", "seed", "commit")
    sampling = ", ".join(f"{name} {value}" for name, value in result.sampling.items())
    own = {name: getattr(result, name) for name in names}
    return own | {"sampling": sampling} | result.machine


# Charts


def bar_chart(result: BenchResult, kind: Kind) -> BarChart:
    """One group a column, one bar an entry, over a linear scale from 0."""
    is_share, grid, series = kind == "prefill share", _grid(result), _series(result)
    columns = [c for c in _columns(result) if not (is_share and c == MEAN)]
    names = [*series, *([NGRAM] if kind == "tau" else [])]
    cells = [[grid[series[0] if e == NGRAM else e][c] for e in names] for c in columns]
    heights = [[_height(c, e, kind) for c, e in zip(group, names, strict=True)] for group in cells]
    ends = [c.decode_speedup_ci95[1] for group in cells for c in group if kind == SPEEDUP]
    steps = _steps(max([0.01 if is_share else 1.05, *ends, *(h for g in heights for h in g)]))
    left, bottom = 52.0, 290.0
    group = max(1080 / len(columns), 12.0 * len(names) + 22)
    wide = min((group - 22) / len(names), 64.0)

    def at(height: float) -> float:
        return round(bottom - (bottom - 26) * height / steps[-1], 1)

    def bar(place: int, number: int) -> Bar:
        cell, height = cells[place][number], heights[place][number]
        low, high = cell.decode_speedup_ci95
        is_struck = kind == SPEEDUP and cell.different > 0
        value = f"{height:.0%}" if is_share else f"{height:.2f}"
        span = f" (95 %: {low:.2f}–{high:.2f})" if kind == SPEEDUP else ""
        fault = ", does not count: texts differ" if is_struck else ""
        return Bar(
            series=-1 if names[number] == NGRAM else number % len(COLOURS),
            x=round(left + group * (place + 0.5) + wide * (number - len(names) / 2) + 1, 1),
            width=round(wide - 2, 1),
            top=at(height),
            whisker=(at(high), at(low)) if kind == SPEEDUP else None,
            is_struck=is_struck,
            value=value,
            label=f"{names[number]}, {columns[place]}: {value}{span}{fault}",
        )

    bars = [bar(place, n) for place in range(len(columns)) for n in range(len(names))]
    first = "; ".join(bar.label for bar in bars[: len(names)])
    return BarChart(
        alt=f"Bars: {kind} per family. {first}. All numbers are in the tables.",
        width=round(left + group * len(columns) + 8, 1),
        left=left,
        bottom=bottom,
        ticks=[(at(s), f"{s:.0%}" if is_share else f"{s:g}") for s in steps],
        groups=[
            (round(left + group * (n + 0.5), 1), _short(c, group)) for n, c in enumerate(columns)
        ],
        bars=bars,
        one=None if is_share else at(1.0),
    )


def _height(cell: Row | Mean, entry: str, kind: Kind) -> float:
    if kind == "tau":
        return cell.ngram_tau if entry == NGRAM else cell.tau
    if kind == "prefill share" and isinstance(cell, Row):
        return cell.prefill_share
    return cell.decode_speedup


def _short(text: str, width: float) -> str:
    most = max(4, int(width / 8))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _steps(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`."""
    sizes = (m * 10.0**e for e in range(-3, 300) for m in (1, 2, 5))
    step = next(size for size in sizes if most / size <= 6)
    return [round(step * n, 6) for n in range(int(-(-most // step)) + 1)]


def _curves(result: BenchResult) -> dict[str, dict[str, list[float]]]:
    """Acceptance by position, by column and entry; a position that was never reached is 0."""
    rows = [row for row in result.rows if row.drafter in _series(result)]
    longest = max((len(row.acceptance_by_position) for row in rows), default=0)
    curves: dict[str, dict[str, list[float]]] = {column: {} for column in _columns(result)}
    for entry in dict.fromkeys(row.drafter for row in rows if row.acceptance_by_position):
        for row in (row for row in rows if row.drafter == entry):
            known = row.acceptance_by_position
            curves[row.family][entry] = [*known, *[0.0] * (longest - len(known))]
        own = [curve[entry] for curve in curves.values() if entry in curve]
        if MEAN in curves:
            curves[MEAN][entry] = [sum(at) / len(own) for at in zip(*own, strict=True)]
    return curves if longest else {}


def _splits(result: BenchResult) -> Iterator[tuple[str, float, dict[str, float]]]:
    """Entry, milliseconds a round and shares of their parts: plain averages over families."""
    for entry in result.means:
        rows = [row for row in result.rows if row.drafter == entry and row.rounds]
        if rows and not entry.startswith("hf-"):  # which are not split
            spent = [1000 * row.seconds["decode"] / row.rounds for row in rows]
            shares = {part: sum(row.share[part] for row in rows) / len(rows) for part in PARTS}
            yield entry, sum(spent) / len(spent), shares


# Files


def _page(result: BenchResult) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    return environment.get_template("report.html").render(
        result=result, heading=heading(result), notes=list(notes(result)), facts=_facts(result),
        grid=_grid(result), columns=_columns(result), best=_best(result), verdict=verdict,
        leader=_leader(result), series=_colour_of(result), colours=COLOURS, parts=PARTS,
        charts={k: bar_chart(result, k) for k in get_args(Kind)}, curves=_curves(result),
        splits=list(_splits(result)),
    )  # fmt: skip


def _csv(result: BenchResult) -> str:
    """A line per entry and family, then the means; each with where it was measured."""
    content = result.to_dict()
    rows, means = content.pop("rows"), content.pop("means")
    del content["rule"]
    where = _flat(content, "bench.")
    made = [{"kind": "family"} | _flat(row) | where for row in rows]
    made += [{"kind": MEAN, "drafter": d} | _flat(mean) | where for d, mean in means.items()]
    text = StringIO()
    names = dict.fromkeys(name for line in made for name in line)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            made |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            made[prefix + name] = " ".join(map(str, value))
        else:
            made[prefix + name] = value
    return made


def _markdown(result: BenchResult) -> str:
    def cell(counts: Row | Mean) -> str:
        gain = f"{counts.decode_speedup:.2f}×"
        return (
            f"{counts.tau:.2f} / {f'~~{gain}~~' if counts.different else gain} ({verdict(counts)})"
        )

    columns = _columns(result)
    lines = [["tau / decode speed-up (texts)", *columns], [":--"] * (1 + len(columns))]
    lines += [[e, *map(cell, cells.values())] for e, cells in _grid(result).items()]
    table = ["| " + " | ".join(x.replace("|", "\\|") for x in line) + " |" for line in lines]
    facts = [f"- {name}: {value}" for name, value in _facts(result).items()]
    chart = f"![{bar_chart(result, SPEEDUP).alt}](bench.png)"
    return "\n".join(
        ["# varifocal bench", "", chart, "", *table, "", markdown(result), "## Measured with", "",
         *facts, ""]
    )  # fmt: skip


def _png(result: BenchResult) -> bytes:
    """The chart of speed-ups, 1200 pixels wide or as wide as its bars need."""
    chart = bar_chart(result, SPEEDUP)
    width = max(1200, int(chart.width) + 40)
    pen = _Pen(Image.new("RGB", (width * SCALE, 1200 * SCALE), "white"))
    pen.write(24.0, 18.0, "Decode speed-up over plain decoding, by family", size=22, is_bold=True)
    x, y = 24.0, 50.0
    for line in wrap(heading(result), (width - 48) // 8):
        pen.write(x, y, line, size=13, fill=SOFT)
        y += 20
    y += 10
    for entry, colour in _colour_of(result).items():
        if x > 24 and x + 60 + 9 * len(entry) > width:
            x, y = 24.0, y + 24
        pen.box(x, y + 2, x + 14, y + 16, fill=COLOURS[colour])
        x += 48 + pen.write(x + 22, y, entry)
    pen.left, pen.top = 20.0, y + 20
    for at, label in chart.ticks:
        pen.box(chart.left, at, chart.width, at + 0.5, fill="#d9d6cd")
        pen.write(chart.left - 8, at, label, size=13, anchor="rm", fill=SOFT)
    for bar in chart.bars:
        _draw_bar(pen, bar, chart.bottom)
    if chart.one is not None:
        pen.box(chart.left, chart.one - 0.75, chart.width, chart.one + 0.75, fill="#1d2329")
    for x, label in chart.groups:
        pen.write(x, chart.bottom + 8, label, anchor="ma", is_bold=label == MEAN)
    end = pen.top + chart.bottom + 44
    pen.left = pen.top = 0.0
    text = "Whiskers: 95 % intervals. Black line: plain decoding. Means: plain averages."
    if any(bar.is_struck for bar in chart.bars):
        text += " Crossed out: texts differ, does not count."
    text += f" Commit {result.commit[:12]}, seed {result.seed}."
    pen.write(24.0, end, text, size=13, fill=SOFT)
    made = pen.picture.crop((0, 0, width * SCALE, int(end + 34) * SCALE)).reduce(SCALE)
    data, about = BytesIO(), PngImagePlugin.PngInfo()
    about.add_itxt("Description", chart.alt)
    made.save(data, "PNG", pnginfo=about, optimize=True)
    return data.getvalue()


def _draw_bar(pen: "_Pen", bar: Bar, bottom: float) -> None:
    right, colour = bar.x + bar.width, COLOURS[bar.series]
    pen.box(bar.x, bar.top, right, bottom, fill="white" if bar.is_struck else colour, edge=colour)
    if bar.is_struck:
        pen.line(bar.x, bar.top, right, bottom, colour)
        pen.line(bar.x, bottom, right, bar.top, colour)
    high, low = bar.whisker or (bar.top, bar.top)
    middle = bar.x + bar.width / 2
    for y in (high, low):
        pen.line(middle - 3, y, middle + 3, y, "#1d2329")
    pen.line(middle, high, middle, low, "#1d2329")
    if bar.width >= 26:
        pen.write(middle, min(high, bar.top) - 4, bar.value, size=12, anchor="md")


class _Pen:
    """Draws in units of the page from a movable origin."""

    def __init__(self, picture: Image.Image) -> None:
        self.picture, self.left, self.top = picture, 0.0, 0.0
        self._draw = ImageDraw.Draw(picture)

    def write(
        self, x: float, y: float, text: str, *, size: int = 14, anchor: str = "la",
        fill: str = "#1d2329", is_bold: bool = False,
    ) -> float:  # fmt: skip
        """Text, and its width."""
        file = FONT_FOLDER / f"DejaVuSans{'-Bold' if is_bold else ''}.ttf"
        font = ImageFont.truetype(str(file), size * SCALE)
        self._draw.text(self._at(x, y), text, fill, font, anchor)
        return self._draw.textlength(text, font) / SCALE

    def box(
        self, x: float, y: float, right: float, low: float, *, fill: str, edge: str = ""
    ) -> None:
        self._draw.rectangle((*self._at(x, y), *self._at(right, low)), fill, edge or None, SCALE)

    def line(self, x: float, y: float, right: float, low: float, fill: str) -> None:
        self._draw.line((*self._at(x, y), *self._at(right, low)), fill, int(1.5 * SCALE))

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (x + self.left) * SCALE, (y + self.top) * SCALE
