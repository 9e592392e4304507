"""The charts of a benchmark as drawings: small panels with every bar named, so that they print."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from varifocal.evaluation.drawing import (
    DASHES,
    SERIES,
    Box,
    Drawing,
    Line,
    Part,
    Real,
    Shape,
    Text,
    marker,
    text_width,
)

ROW, BAR = 17.0, 11.0  # height of a named row and of the bar in it
TOP = 24.0  # above the first row: the panel's title
FOOT = 20.0  # below the last one: the scale


@dataclass(frozen=True, kw_only=True)
class Item:
    """A row of a bar panel."""

    name: str
    value: Real
    text: str  # the value as it is written behind the bar
    colour: str = "base"
    ends: tuple[Real, Real] | None = None  # of the whisker
    is_struck: bool = False  # does not count
    is_strong: bool = False  # the best
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From 0 in round steps."""

    steps: tuple[Real, ...]
    is_share: bool = False

    @classmethod
    def upto(cls, most: Real, *, is_share: bool = False) -> "Scale":
        """At least up to that."""
        sizes = (m * 10.0**e for e in range(-4, 300) for m in (1, 2, 5))
        step = next(size for size in sizes if most / size <= 5)
        count = int(-(-most // step))
        return cls(steps=tuple(round(step * n, 8) for n in range(count + 1)), is_share=is_share)

    @property
    def most(self) -> float:
        """The last step."""
        return self.steps[-1]

    def label(self, step: Real) -> str:
        """As it stands below the axis."""
        return f"{step:.0%}" if self.is_share else f"{step:g}"


def bars(
    title: str,
    items: Sequence[Item],
    scale: Scale,
    *,
    width: Real = 300.0,
    one: bool = False,
    floor: Real | None = None,
) -> Drawing:
    """A named bar for each item; `one` draws a line at 1, `floor` a dotted one there."""
    names = short_names([item.name for item in items])
    left = _name_width(names, width)
    room = max([text_width(item.text, 10.5, is_bold=True) for item in items] + [20.0]) + 8
    bottom = TOP + ROW * len(items)

    def at(value: Real) -> float:
        return left + (width - left - room) * min(value, scale.most) / scale.most

    parts: list[Part] = [Text(x=0, y=13, text=title, size=12.5, is_bold=True)]
    for step in scale.steps:
        x = at(step)
        parts.append(Line(points=[(x, TOP), (x, bottom)], colour="rule"))
        parts.append(Text(x=x, y=bottom + 12, text=scale.label(step), anchor="middle", size=9,
                          colour="soft"))  # fmt: skip
    for number, (name, item) in enumerate(zip(names, items, strict=True)):
        parts += _bar(name, item, TOP + ROW * number, left, at)
    if one:
        x = at(1.0)
        parts.append(Line(points=[(x, TOP - 2), (x, bottom)], colour="ink", width=1.3))
    if floor is not None:
        x = at(floor)
        line = [(x, TOP - 2), (x, bottom)]
        parts.append(Line(points=line, colour="card", width=3))  # or it is lost on dark bars
        parts.append(Line(points=line, colour="soft", width=1.3, dash="2 3"))
    told = "; ".join(f"{item.name} {item.text}" for item in items)
    return Drawing(width=width, height=bottom + FOOT, alt=f"{title}: {told}.", parts=parts)


def _bar(name: str, item: Item, top: Real, left: Real, at: Callable[[Real], Real]) -> list[Part]:
    y, middle, end = top + (ROW - BAR) / 2, top + ROW / 2, at(item.value)
    bar = Box(x=left, y=y, width=end - left, height=BAR, title=item.title or f"{name} {item.text}",
              fill="" if item.is_struck else item.colour, edge=item.colour)  # fmt: skip
    parts: list[Part] = [
        Text(x=left - 5, y=middle + 3.8, text=name, anchor="end", size=10.5,
             is_bold=item.is_strong),
        bar,
    ]  # fmt: skip
    if item.is_struck:
        for a, b in ((y, y + BAR), (y + BAR, y)):
            parts.append(Line(points=[(left, a), (end, b)], colour=item.colour))
    if item.ends is not None:
        low, high = (at(value) for value in item.ends)
        for colour, thick in (("card", 3.6), ("ink", 1.1)):
            parts.append(Line(points=[(low, middle), (high, middle)], colour=colour, width=thick))
            parts += [
                Line(points=[(x, middle - 3), (x, middle + 3)], colour=colour, width=thick)
                for x in (low, high)
            ]
        end = max(end, high)
    parts.append(Text(x=end + 5, y=middle + 3.8, text=item.text, size=10.5,
                      is_bold=item.is_strong))  # fmt: skip
    return parts


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A row of a panel of stacked bars."""

    name: str
    values: Sequence[Real]
    text: str


def stacks(
    title: str, rows: Sequence[Stack], parts_: Sequence[str], colours: Sequence[str], scale: Scale,
    *, width: Real = 360.0,
) -> Drawing:  # fmt: skip
    """A named bar for each row, made of parts that stand side by side."""
    names = short_names([row.name for row in rows])
    left = _name_width(names, width)
    room = max(text_width(row.text, 10.5) for row in rows) + 8
    bottom = TOP + ROW * len(rows)
    unit = (width - left - room) / scale.most
    parts: list[Part] = [Text(x=0, y=13, text=title, size=12.5, is_bold=True)]
    for step in scale.steps:
        x = left + unit * step
        parts.append(Line(points=[(x, TOP), (x, bottom)], colour="rule"))
        parts.append(Text(x=x, y=bottom + 12, text=scale.label(step), anchor="middle", size=9,
                          colour="soft"))  # fmt: skip
    for number, (name, row) in enumerate(zip(names, rows, strict=True)):
        y, x = TOP + ROW * number + (ROW - BAR) / 2, left
        parts.append(Text(x=left - 5, y=y + BAR / 2 + 3.8, text=name, anchor="end", size=10.5))
        for part, colour, value in zip(parts_, colours, row.values, strict=True):
            if value > 0:
                told = f"{row.name}, {part}: {value:.3g}"
                parts.append(Box(x=x, y=y, width=unit * value, height=BAR, fill=colour,
                                 edge="soft", title=told))  # fmt: skip
            x += unit * value
        parts.append(Text(x=x + 5, y=y + BAR / 2 + 3.8, text=row.text, size=10.5))
    told = "; ".join(
        f"{row.name} {row.text} ("
        + ", ".join(f"{p} {v:.3g}" for p, v in zip(parts_, row.values, strict=True))
        + ")"
        for row in rows
    )
    return Drawing(width=width, height=bottom + FOOT, alt=f"{title}: {told}.", parts=parts)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Shares from 0 to 1, one a position."""

    name: str
    number: int  # of the entry: its colour, mark and dash
    shares: Sequence[Real]


def lines(
    title: str, curves: Sequence[Curve], *, width: Real = 300.0, height: Real = 200.0,
    is_named: bool = False,
) -> Drawing:  # fmt: skip
    """Curves over positions 1, 2, ...; `is_named` writes the names at their ends."""
    names = short_names([curve.name for curve in curves])
    longest = max(len(curve.shares) for curve in curves)
    right = width - (_name_width(names, width) + 8 if is_named else 6)
    left, bottom = 34.0, height - FOOT
    step = (right - left) / max(longest, 1)

    def at(position: int, share: Real) -> tuple[Real, Real]:
        return left + step * (position + 0.5), bottom - (bottom - TOP) * share

    parts: list[Part] = [Text(x=0, y=13, text=title, size=12.5, is_bold=True)]
    for percent in (0, 25, 50, 75, 100):
        y = at(0, percent / 100)[1]
        parts.append(Line(points=[(left, y), (right, y)], colour="rule"))
        parts.append(Text(x=left - 5, y=y + 3, text=f"{percent}%", anchor="end", size=9,
                          colour="soft"))  # fmt: skip
    every = -(-longest // 12)
    for position in range(0, longest, every):
        parts.append(Text(x=at(position, 0)[0], y=bottom + 12, text=f"{position + 1}",
                          anchor="middle", size=9, colour="soft"))  # fmt: skip
    for curve in curves:
        points = [at(n, share) for n, share in enumerate(curve.shares)]
        colour = series_colour(curve.number)
        dash = DASHES[curve.number % len(DASHES)]
        parts.append(Line(points=points, colour=colour, width=1.8, dash=dash, title=curve.name))
        for n, (x, y) in enumerate(points):
            told = f"{curve.name}, position {n + 1}: {curve.shares[n]:.0%}"
            parts.append(Shape(points=marker(curve.number, x, y, 3.4), colour=colour, title=told))
    if is_named:
        parts += _end_names(curves, names, [at(len(c.shares) - 1, c.shares[-1]) for c in curves],
                            right, bottom)  # fmt: skip
    told = "; ".join(f"{c.name} {', '.join(f'{s:.0%}' for s in c.shares)}" for c in curves)
    return Drawing(width=width, height=height, alt=f"{title}: {told}.", parts=parts)


def _end_names(
    curves: Sequence[Curve], names: Sequence[str], ends: Sequence[tuple[Real, Real]],
    right: Real, bottom: Real,
) -> list[Part]:  # fmt: skip
    """Names as near to the ends of their curves as they do not cover each other."""
    order = sorted(range(len(curves)), key=lambda n: ends[n][1])
    gap = min(13.0, (bottom - TOP) / max(len(curves), 1))
    heights: dict[int, float] = {}
    low = TOP - 6
    for place, n in enumerate(order):
        below = bottom + 4 - gap * (len(order) - 1 - place)  # room for those that follow
        heights[n] = low = min(max(ends[n][1], low + gap), below)
    parts: list[Part] = []
    for n in order:
        colour = series_colour(curves[n].number)
        way = [ends[n], (right + 2, heights[n])]
        parts.append(Line(points=way, colour=colour, width=0.8, dash="1 3"))
        parts.append(Text(x=right + 6, y=heights[n] + 3.6, text=names[n], size=10.5,
                          colour=colour, is_bold=True))  # fmt: skip
    return parts


def columns(title: str, note: str, shares: Sequence[Real], colour: str, most: Real) -> Drawing:
    """A histogram: the share of rounds with 0, 1, 2, ... drafted tokens, up to `most`."""
    width, height, left = 300.0, 150.0, 8.0
    bottom, top = height - FOOT, TOP + 12
    step = (width - 2 * left) / max(len(shares), 1)
    wide = min(step - 3, 30.0)
    parts: list[Part] = [
        Text(x=0, y=13, text=short_names([title])[0], size=12.5, is_bold=True),
        Text(x=width, y=13, text=note, anchor="end", size=10, colour="soft"),
        Line(points=[(0, bottom), (width, bottom)], colour="soft"),
    ]
    for number, share in enumerate(shares):
        middle, tall = left + step * (number + 0.5), (bottom - top) * share / most
        told = f"{title}: {number} drafted tokens in {share:.1%} of rounds"
        parts.append(Box(x=middle - wide / 2, y=bottom - tall, width=wide, height=tall,
                         fill=colour, title=told))  # fmt: skip
        if share >= 0.005:
            parts.append(Text(x=middle, y=bottom - tall - 3, text=f"{100 * share:.0f}",
                              anchor="middle", size=9))  # fmt: skip
        parts.append(Text(x=middle, y=bottom + 12, text=f"{number}", anchor="middle", size=9,
                          colour="soft"))  # fmt: skip
    told = ", ".join(f"{number}: {share:.0%}" for number, share in enumerate(shares))
    return Drawing(width=width, height=height, alt=f"{title}, {note}. {told}.", parts=parts)


def _name_width(names: Sequence[str], width: Real) -> float:
    widest = max(text_width(name, 10.5, is_bold=True) for name in names)
    return min(max(widest, 40.0) + 7, 0.5 * width)


def series_colour(number: int) -> str:
    """Of the how-manyth entry; beyond ten they come again, with other dashes and always named."""
    return f"s{number % SERIES}"


def short_names(names: Sequence[str], most: int = 21) -> list[str]:
    """Names that fit beside a bar and still differ: the middle of long ones is left out."""
    head = (most - 1) // 2
    tail = most - 1 - head
    short = [n if len(n) <= most else f"{n[:head]}…{n[-tail:]}" for n in names]
    return [
        name if short.count(name) == 1 else f"{place}: {name}"
        for place, name in enumerate(short, start=1)
    ]
