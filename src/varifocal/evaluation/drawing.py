"""Drawings made of few shapes, in units of a page: as SVG for a page, by Pillow for a picture."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from markupsafe import Markup, escape
from PIL import Image, ImageDraw, ImageFont

from varifocal.demo.canvas import FONT_FOLDER

Real = int | float
Point = tuple[Real, Real]  # x to the right, y down
Anchor = Literal["start", "middle", "end"]

# By light and dark page. s: entries, p: parts of a round from light to dark.
COLOURS: Final[dict[str, tuple[str, str]]] = {
    "ink": ("#1d2329", "#e9ecee"),
    "soft": ("#55606b", "#a9b4bd"),
    "rule": ("#dcd9d1", "#37414a"),
    "card": ("#ffffff", "#1d2328"),
    "base": ("#8a929a", "#77818a"),
    "s0": ("#1f5fa8", "#6cb2f5"),
    "s1": ("#d1491a", "#ff8f5e"),
    "s2": ("#0b8457", "#3ecf9f"),
    "s3": ("#8e44ad", "#d39be8"),
    "s4": ("#333b44", "#d5dbe0"),
    "s5": ("#a87900", "#f0c14a"),
    "s6": ("#c2186b", "#ff7fb5"),
    "s7": ("#008299", "#4fd4e6"),
    "s8": ("#7a4a2b", "#cf9f77"),
    "s9": ("#5d8a00", "#b8cf5a"),
    "p0": ("#dde3ea", "#3d4852"),
    "p1": ("#7fa3c7", "#5b86ad"),
    "p2": ("#8a2f0b", "#ff9457"),
    "p3": ("#1d2329", "#e9ecee"),
}
SERIES: Final = sum(name.startswith("s") and name[1:].isdigit() for name in COLOURS)
DASHES: Final = ("", "7 3", "2 3", "8 3 2 3")
SCALE: Final = 2  # a picture is painted larger and shrunk, for smooth edges


@dataclass(frozen=True, kw_only=True)
class Box:
    """A rectangle; without `fill` only its edge."""

    x: Real
    y: Real
    width: Real
    height: Real
    fill: str = ""
    edge: str = ""
    title: str = ""  # what a mouse that rests on it is told


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line through points."""

    points: Sequence[Point]
    colour: str
    width: Real = 1.0
    dash: str = ""  # on the page alone: pictures have no charts that need it
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A filled polygon."""

    points: Sequence[Point]
    colour: str
    title: str = ""


@dataclass(frozen=True, kw_only=True)
class Text:
    """A line of text; y is its baseline."""

    x: Real
    y: Real
    text: str
    anchor: Anchor = "start"
    size: Real = 11
    colour: str = "ink"
    is_bold: bool = False


Part = Box | Line | Shape | Text


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """Parts in the order in which they are painted."""

    width: Real
    height: Real
    alt: str  # what it shows, in words
    parts: Sequence[Part]


def marker(number: int, x: Real, y: Real, radius: Real = 4.0) -> list[Point]:
    """The outline of the how-manyth of ten marks that can be told apart without colour."""
    kind, r = number % 10, radius
    if kind in (5, 6):  # plus and cross
        a, b = r * 1.15, r * 0.4
        plus = [(-b, -a), (b, -a), (b, -b), (a, -b), (a, b), (b, b), (b, a), (-b, a), (-b, b),
                (-a, b), (-a, -b), (-b, -b)]  # fmt: skip
        turn = 0.0 if kind == 5 else math.pi / 4
        c, s = math.cos(turn), math.sin(turn)
        return [(x + u * c - v * s, y + u * s + v * c) for u, v in plus]
    if kind == 7:  # star
        spikes = [(r * (1.3 if n % 2 == 0 else 0.55), math.pi * n / 5) for n in range(10)]
        return [(x + q * math.sin(a), y - q * math.cos(a)) for q, a in spikes]
    if kind == 9:  # bar
        return [(x - r, y - r / 3), (x + r, y - r / 3), (x + r, y + r / 3), (x - r, y + r / 3)]
    corners, first, grow = {
        0: (18, 0.0, 1.0),  # disc
        1: (4, math.pi / 4, 1.25),  # square
        2: (3, 0.0, 1.25),  # triangle
        3: (4, 0.0, 1.25),  # diamond
        4: (3, math.pi, 1.25),  # triangle upside down
        8: (6, 0.0, 1.1),  # hexagon
    }[kind]
    angles = (first + 2 * math.pi * n / corners for n in range(corners))
    return [(x + grow * r * math.sin(a), y - grow * r * math.cos(a)) for a in angles]


def svg(drawing: Drawing) -> Markup:
    """For a page that defines each colour as a variable of its name."""
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
        _number(drawing.width), _number(drawing.height), drawing.alt
    )
    return head + Markup("").join(_element(part) for part in drawing.parts) + Markup("</svg>")


def _element(part: Part) -> Markup:
    if isinstance(part, Text):
        weight = Markup(' font-weight="700"') if part.is_bold else Markup("")
        return Markup(
            '<text x="{}" y="{}" text-anchor="{}" font-size="{}" fill="var(--{})"{}>{}</text>'
        ).format(_number(part.x), _number(part.y), part.anchor, _number(part.size), part.colour,
                 weight, part.text)  # fmt: skip
    title = Markup("<title>{}</title>").format(part.title) if part.title else Markup("")
    if isinstance(part, Box):
        fill = f"var(--{part.fill})" if part.fill else "none"
        edge = Markup(' stroke="var(--{})"').format(part.edge) if part.edge else Markup("")
        return Markup(
            '<rect x="{}" y="{}" width="{}" height="{}" fill="{}"{}>{}</rect>'
        ).format(_number(part.x), _number(part.y), _number(max(part.width, 0)),
                 _number(part.height), fill, edge, title)  # fmt: skip
    points = " ".join(f"{_number(x)},{_number(y)}" for x, y in part.points)
    if isinstance(part, Shape):
        return Markup('<polygon points="{}" fill="var(--{})">{}</polygon>').format(
            points, part.colour, title
        )
    dash = Markup(' stroke-dasharray="{}"').format(part.dash) if part.dash else Markup("")
    return Markup(
        '<polyline points="{}" fill="none" stroke="var(--{})" stroke-width="{}"{}>{}</polyline>'
    ).format(points, part.colour, _number(part.width), dash, title)


def _number(value: Real) -> Markup:
    return escape(f"{value:.1f}".removesuffix(".0"))


class Pen:
    """Paints drawings into a picture, in units of the page."""

    def __init__(self, width: Real, height: Real) -> None:
        size = (int(width * SCALE), int(height * SCALE))
        self._picture = Image.new("RGB", size, COLOURS["card"][0])
        self._draw = ImageDraw.Draw(self._picture)

    def paint(self, parts: Iterable[Part], left: Real = 0.0, top: Real = 0.0) -> None:
        """The parts, moved so far."""
        for part in parts:
            if isinstance(part, Text):
                self._write(part, left, top)
                continue
            if isinstance(part, Box):
                self._box(part, left, top)
                continue
            points = [((x + left) * SCALE, (y + top) * SCALE) for x, y in part.points]
            if isinstance(part, Shape):
                self._draw.polygon(points, COLOURS[part.colour][0])
            else:
                width = max(round(part.width * SCALE), 1)
                self._draw.line(points, COLOURS[part.colour][0], width)

    def finish(self, height: Real) -> Image.Image:
        """The picture down to that height, at its final size."""
        box = (0, 0, self._picture.width, int(height * SCALE))
        return self._picture.crop(box).reduce(SCALE)

    def _write(self, part: Text, left: Real, top: Real) -> None:
        anchor = {"start": "ls", "middle": "ms", "end": "rs"}[part.anchor]
        at = ((part.x + left) * SCALE, (part.y + top) * SCALE)
        font = _font(part.size, part.is_bold)
        self._draw.text(at, part.text, COLOURS[part.colour][0], font, anchor)

    def _box(self, part: Box, left: Real, top: Real) -> None:
        x, y = (part.x + left) * SCALE, (part.y + top) * SCALE
        right, low = x + max(part.width, 0) * SCALE, y + part.height * SCALE
        fill = COLOURS[part.fill][0] if part.fill else None
        edge = COLOURS[part.edge][0] if part.edge else None
        self._draw.rectangle((x, y, right, low), fill, edge, SCALE if edge else 0)


def text_width(text: str, size: Real = 11, *, is_bold: bool = False) -> float:
    """How wide a text is in the picture; pages set it in a similar face."""
    return float(_font(size, is_bold).getlength(text)) / SCALE


def _font(size: Real, is_bold: bool) -> ImageFont.FreeTypeFont:
    file = FONT_FOLDER / f"DejaVuSans{'-Bold' if is_bold else ''}.ttf"
    return ImageFont.truetype(str(file), size * SCALE)
