"""A benchmark of gates as one self-contained HTML page, and its speed-ups as a picture."""

from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from textwrap import wrap

from markupsafe import Markup
from PIL import PngImagePlugin

from varifocal.diffusion.evaluation.bench import BenchResult
from varifocal.diffusion.evaluation.figures import Row
from varifocal.diffusion.evaluation.methods import LATCH
from varifocal.diffusion.evaluation.summary import story
from varifocal.diffusion.evaluation.table import (
    Grid,
    all_columns,
    figures,
    grids,
    heading,
    notes,
    points,
    speed,
)
from varifocal.evaluation.charts import Item, Scale, Stack, bars, columns, series_colour, stacks
from varifocal.evaluation.drawing import COLOURS, Drawing, Pen, Real, Text, svg
from varifocal.evaluation.page import templates

_PARTS = ("forward", "gate", "sample", "other")
_PART_COLOURS = ("p1", "p2", "p0", "p3")
_WIDTH, _EDGE, _GAP, _ACROSS = 1200, 24.0, 26.0, 3


def page(result: BenchResult) -> str:
    """The whole page."""
    made = grids(result)
    return templates(Path(__file__).parent).get_template("page.html").render(
        result=result, heading=heading(result), story=story(result.rows, result.summaries),
        notes=list(notes(result)), colours=COLOURS, grids=made, points=points, speed=speed,
        all_columns=all_columns(), figures=figures,
        latch=[s for s in result.summaries if s.gate == LATCH],
        speedups=[(grid.title, _drawn(speedups(grid))) for grid in made],
        exits=[(grid.title, _drawn(exits(grid))) for grid in made],
        splits=[(grid.title, _drawn(splits(grid))) for grid in made],
        swatches=list(zip(_PARTS, _PART_COLOURS, strict=True)),
    )  # fmt: skip


def _drawn(drawings: Sequence[Drawing]) -> list[Markup]:
    return [svg(drawing) for drawing in drawings]


def speedups(grid: Grid, width: Real = 300) -> list[Drawing]:
    """A panel a task: end-to-end speed-ups; crossed out where more than 2.0 points are lost."""
    timed = [row for row in grid.rows.values() if row.speedup is not None and row.is_scored]
    numbers = {gate: number for number, gate in enumerate(grid.gates)}
    made = []
    for place in grid.places:
        own = [row for row in timed if row.place == place]
        if own:
            scale = Scale.upto(max(1.05, *(_most(row) for row in own)))
            items = [_bar(row, numbers[row.gate]) for row in own]
            made.append(bars(grid.name(place), items, scale, width=width, one=True))
    return made


def _most(row: Row) -> float:
    return max(row.speedup or 0.0, row.speedup_ci95[1] if row.speedup_ci95 else 0.0)


def _bar(row: Row, number: int) -> Item:
    assert row.speedup is not None
    low, high = row.speedup_ci95 or (row.speedup, row.speedup)
    return Item(
        name=row.gate,
        value=row.speedup,
        text=f"{row.speedup:.2f}  {points(row)}",
        colour="s1" if row.gate == LATCH else series_colour(0) if number else "base",
        ends=row.speedup_ci95,
        is_struck=not row.is_within,
        is_strong=row.gate == LATCH,
        title=f"{row.gate}, {row.task}: {row.speedup:.2f}× (95 %: {low:.2f}–{high:.2f}), "
        f"{row.nfe:.1f} of {row.nfe_full:.0f} forwards, {points(row)} points, agreement "
        f"{row.agreement:.1%}",
    )


def exits(grid: Grid) -> list[Drawing]:
    """A panel a task: where in the schedule latch exits."""
    made = []
    for place in grid.places:
        row = grid.rows.get((LATCH, place))
        if row is not None:
            counts = row.exit_histogram
            shares = [count / row.items for count in counts]
            note = f"{row.exits:.0%} exit, {row.premature:.1%} of these too early"
            if sum(counts):
                made.append(columns(grid.name(place), note, shares, "s1", max(shares)))
    return made


def splits(grid: Grid) -> list[Drawing]:
    """Milliseconds a step of each gate, by what they are spent on; means over tasks."""
    stacked = list(_splits(grid))
    if not stacked:
        return []
    scale = Scale.upto(max(sum(one.values) for one in stacked))
    return [stacks("milliseconds a step", stacked, _PARTS, _PART_COLOURS, scale, width=460)]


def _splits(grid: Grid) -> Iterator[Stack]:
    for gate in grid.gates:
        own = [row for (name, _), row in grid.rows.items() if name == gate and row.share]
        if own:
            parts = [
                sum((row.step_milliseconds or 0.0) * row.share[part] for row in own) / len(own)
                for part in _PARTS
            ]
            share = sum(row.gate_share or 0.0 for row in own) / len(own)
            yield Stack(name=gate, values=parts, text=f"{sum(parts):.2f}, gate {share:.1%}")


def png(result: BenchResult) -> bytes:
    """The speed-ups of every model with its own sampler, 1200 pixels wide."""
    chosen = [grid for grid in grids(result) if grid.is_baseline_sampler and speedups(grid)]
    width = (_WIDTH - 2 * _EDGE - _GAP * (_ACROSS - 1)) / _ACROSS
    lines = [line for text in (heading(result), result.frozen) for line in wrap(text, 150)]
    top = 56.0 + 17 * len(lines)
    heights = [_height(speedups(grid, width)) for grid in chosen]
    height = top + sum(heights) + 50
    pen = Pen(_WIDTH, height)
    title = "End-to-end speed-up over full decoding, and points of accuracy"
    pen.paint([Text(x=_EDGE, y=38, text=title, size=20, is_bold=True)])
    pen.paint([Text(x=_EDGE, y=60 + 17 * n, text=line, size=11.5, colour="soft")
               for n, line in enumerate(lines)])  # fmt: skip
    for grid, tall in zip(chosen, heights, strict=True):
        pen.paint([Text(x=_EDGE, y=top + 20, text=grid.title, size=14, is_bold=True)])
        panels = speedups(grid, width)
        row_height = max(panel.height for panel in panels) + 12
        for number, panel in enumerate(panels):
            left = _EDGE + (width + _GAP) * (number % _ACROSS)
            pen.paint(panel.parts, left, top + 32 + row_height * (number // _ACROSS))
        top += tall
    said = (
        "Line at 1: full decoding. Whiskers: 95 % intervals. Crossed out, ‼: more than 2.0 points "
        f"are lost. ?: the interval passes 2.0 points. Commit {result.commit[:12]}."
    )
    pen.paint([Text(x=_EDGE, y=height - 16, text=said, size=11.5, colour="soft")])
    data, about = BytesIO(), PngImagePlugin.PngInfo()
    about.add_itxt("Description", described(result))
    pen.finish(height).save(data, "PNG", pnginfo=about, optimize=True)
    return data.getvalue()


def described(result: BenchResult) -> str:
    """What the picture shows, in words."""
    told = [panel.alt for grid in grids(result) if grid.is_baseline_sampler
            for panel in speedups(grid)]  # fmt: skip
    return f"Bars: end-to-end speed-up by task. {' '.join(told)}"


def _height(panels: Sequence[Drawing]) -> float:
    rows = -(-len(panels) // _ACROSS)
    return 40 + rows * (max(panel.height for panel in panels) + 12)
