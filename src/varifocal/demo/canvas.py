"""Draw text, shapes and lines on a small picture, and keep a record of what stands where.

Fonts: unmodified copies from the matplotlib 3.11.2 wheel, licences in fonts/LICENSE.txt.
`HELD_OUT_FACE` is never drawn for train or valid.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from varifocal.demo.sample import Box, Glyph, Split, Thing

FONT_FOLDER: Final = Path(__file__).parent / "fonts"
ALPHABET: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-/$%+=?,"
ROW: Final = 16  # pixels from one line of text to the next: one row of patches
Size = tuple[int, int]  # height, width
SIZES: Final[tuple[Size, ...]] = ((96, 192), (192, 96), (192, 192), (96, 288), (288, 96))
Colour = tuple[int, int, int]
Pixels = int | float

COLOURS: Final[dict[str, Colour]] = {
    "red": (214, 32, 38),
    "green": (30, 150, 62),
    "blue": (38, 84, 214),
    "yellow": (246, 214, 28),
    "orange": (244, 126, 20),
    "purple": (136, 48, 168),
    "black": (18, 18, 22),
    "white": (252, 252, 250),
}
SHAPES: Final = ("circle", "square", "triangle", "star", "diamond")
_CORNERS: Final[dict[str, tuple[tuple[Pixels, Pixels], ...]]] = {  # in a box from 0 to 1
    "triangle": ((0.5, 0.0), (1.0, 1.0), (0.0, 1.0)),
    "diamond": ((0.5, 0.0), (1.0, 0.5), (0.5, 1.0), (0.0, 0.5)),
    "star": (
        (0.5, 0.0), (0.62, 0.36), (1.0, 0.37), (0.69, 0.6), (0.81, 0.98),
        (0.5, 0.75), (0.19, 0.98), (0.31, 0.6), (0.0, 0.37), (0.38, 0.36),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Face:
    """A font at one size with its spacing.

    `pitch` is the advance of every character, or 0 where each takes the width of its ink.
    """

    font: str
    size: int
    pitch: float


# font, sizes with capitals 8-11 px high, is it evenly spaced, how often it is drawn
_FONTS: Final[tuple[tuple[str, tuple[int, ...], bool, int], ...]] = (
    ("DejaVuSansMono", (12, 13, 14), True, 6),
    ("DejaVuSansMono-Bold", (12, 13, 14), True, 6),
    ("cmtt10", (15, 16), True, 4),
    ("DejaVuSans", (11, 12), False, 2),
    ("DejaVuSans-Bold", (11, 12), False, 2),
    ("DejaVuSerif-Bold", (11, 12), False, 2),
    ("STIXGeneralBol", (12, 13, 14), False, 2),
)
HELD_OUT_FACE: Final = Face("DejaVuSerif", 12, 0.0)
NARROW_FACE: Final = Face("DejaVuSansMono", 12, 7.0)  # for lines that fit in no other face
_LEAST_ADVANCE: Final = 7.0  # narrower letters would put three into one patch

_LIGHT: Final[tuple[Colour, ...]] = (
    (252, 252, 250), (246, 240, 222), (232, 240, 250), (236, 248, 232),
    (250, 232, 236), (255, 246, 196), (226, 226, 230), (212, 224, 232),
)  # fmt: skip
_DARK: Final[tuple[Colour, ...]] = (
    (24, 26, 34), (16, 44, 92), (20, 70, 44), (96, 20, 28), (62, 32, 90), (54, 54, 60),
)  # fmt: skip
_DARK_INK: Final[tuple[Colour, ...]] = (
    (10, 10, 14), (10, 10, 14), (20, 30, 110), (110, 14, 20), (8, 70, 34), (70, 30, 90),
)  # fmt: skip
_LIGHT_INK: Final[tuple[Colour, ...]] = (
    (255, 255, 255), (255, 255, 255), (255, 240, 150), (190, 240, 255), (210, 255, 200),
)  # fmt: skip


def draw_face(rng: Random, split: Split, *, may_hold_out: bool = False) -> Face:
    """A face for one picture; half of the test pictures that may get the held-out one do."""
    if split == "test" and may_hold_out and rng.random() < 0.5:
        return HELD_OUT_FACE
    font, sizes, is_even, _ = rng.choices(_FONTS, weights=[entry[3] for entry in _FONTS])[0]
    size = rng.choice(sizes)
    if not is_even:
        return Face(font, size, 0.0)
    advance = _font(font, size).getlength("0")
    return Face(font, size, round(min(9.0, max(7.0, advance + rng.uniform(0.0, 0.7))), 2))


class _Stencil(NamedTuple):
    """The ink of one character, cut to its box."""

    mask: Image.Image
    top: int  # from the baseline, negative above it
    width: int
    height: int


@lru_cache(maxsize=64)
def _font(name: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(str(FONT_FOLDER / f"{name}.ttf"), size)


@lru_cache(maxsize=2048)
def _stencil(name: str, size: int, char: str) -> _Stencil:
    font = _font(name, size)
    left, top, right, bottom = (int(edge) for edge in font.getbbox(char, anchor="ls"))
    mask = Image.new("L", (right - left + 2, bottom - top + 2), 0)
    ImageDraw.Draw(mask).text((1 - left, 1 - top), char, fill=255, font=font, anchor="ls")
    ink = mask.point(lambda level: 255 if level > 40 else 0).getbbox()
    assert ink is not None, char
    return _Stencil(mask.crop(ink), top - 1 + ink[1], ink[2] - ink[0], ink[3] - ink[1])


@lru_cache(maxsize=512)
def _shape_stencil(shape: str, size: int) -> Image.Image:
    scale = 4  # drawn large and shrunk: smooth edges
    mask = Image.new("L", (size * scale, size * scale), 0)
    pen = ImageDraw.Draw(mask)
    last = size * scale - 1
    if shape == "circle":
        pen.ellipse((0, 0, last, last), fill=255)
    elif shape == "square":
        pen.rectangle((0, 0, last, last), fill=255)
    else:
        pen.polygon([(x * last, y * last) for x, y in _CORNERS[shape]], fill=255)
    return mask.resize((size, size), Image.Resampling.BOX)


@lru_cache(maxsize=1)
def _noise() -> np.ndarray[tuple[int, int, int], np.dtype[np.float32]]:
    """A fixed sheet of unit noise, larger than any picture, from which each cuts its own."""
    return np.random.default_rng(7).standard_normal((384, 384, 3)).astype(np.float32)


class Canvas:
    """One picture in the making. Text stands on rows of 16 pixels, all shifted by one phase."""

    def __init__(
        self,
        rng: Random,
        split: Split,
        size: Size,
        *,
        may_hold_out: bool = False,
        is_dark: bool | None = None,
    ) -> None:
        self.height, self.width = size
        self.num_rows = self.height // ROW
        self.face = draw_face(rng, split, may_hold_out=may_hold_out)
        self.is_dark = rng.random() < 0.3 if is_dark is None else is_dark
        self.paper = _jitter(rng, rng.choice(_DARK if self.is_dark else _LIGHT), 8)
        self.ink = _jitter(rng, rng.choice(_LIGHT_INK if self.is_dark else _DARK_INK), 8)
        self.margin = rng.randint(3, 9)
        self.phase = rng.randint(-2, 2)
        self.glyphs: list[Glyph] = []
        self.things: list[Thing] = []
        self._rng = rng
        self.image = Image.new("RGB", (self.width, self.height), self.paper)
        self.pen = ImageDraw.Draw(self.image)

    # -- text ---------------------------------------------------------------------------------

    def advance(self, char: str) -> Pixels:
        if self.face.pitch:
            return self.face.pitch
        if char == " ":
            return _LEAST_ADVANCE
        return max(_LEAST_ADVANCE, _stencil(self.face.font, self.face.size, char).width + 2)

    def measure(self, text: str) -> Pixels:
        return sum(self.advance(char) for char in text)

    def fit(self, lines: Iterable[str], width: Pixels | None = None) -> None:
        """Take the narrow face if a line is too wide for `width` (default: the whole picture)."""
        room = self.width - self.margin - 3 if width is None else width
        lines = tuple(lines)
        if any(self.measure(line) > room for line in lines):
            self.face = NARROW_FACE
            self.margin = min(self.margin, 4)
            room = self.width - self.margin - 1 if width is None else width + 1
            for line in lines:
                assert self.measure(line) <= room, f"{line!r} is wider than {room}"

    def row_centre(self, row: Pixels) -> Pixels:
        return row * ROW + ROW / 2 + self.phase

    def write(
        self, text: str, row: int, *, left: Pixels | None = None, ink: Colour | None = None
    ) -> Pixels:
        """Print `text` on a row from `left` (default: the margin); the right end."""
        return self.write_at(text, self.margin if left is None else left, self.row_centre(row), ink)

    def write_right(self, text: str, row: int, *, right: Pixels | None = None) -> Pixels:
        """Print `text` so that it ends at `right` (default: the margin); the left end."""
        end = self.width - self.margin if right is None else right
        left = max(1.0, end - self.measure(text))
        self.write(text, row, left=left)
        return left

    def write_middle(
        self, text: str, row: int, *, middle: Pixels | None = None, ink: Colour | None = None
    ) -> Pixels:
        """Print `text` centred on `middle` (default: the picture's); the left end."""
        centre = self.width / 2 if middle is None else middle
        left = min(max(1.0, centre - self.measure(text) / 2), self.width - 1 - self.measure(text))
        self.write(text, row, left=left, ink=ink)
        return left

    def write_at(
        self, text: str, left: Pixels, centre: Pixels, ink: Colour | None = None
    ) -> Pixels:
        """Print `text` from `left` with the middle of its capitals at `centre`; the right end."""
        font, size = self.face.font, self.face.size
        cap = -_stencil(font, size, "H").top
        baseline = round(centre + cap / 2)
        colour = ink or self.ink
        for char in text:
            advance = self.advance(char)
            if char != " ":
                mask, top, width, height = _stencil(font, size, char)
                x = min(max(0, round(left + (advance - width) / 2)), self.width - width)
                y = min(max(0, baseline + top), self.height - height)
                self.image.paste(colour, (x, y), mask)
                self.glyphs.append(Glyph(char, _box(x, y, x + width, y + height)))
            left += advance
        return left

    # -- shapes -------------------------------------------------------------------------------

    def stamp(self, shape: str, colour: str, x: Pixels, y: Pixels, size: int) -> None:
        """Put a shape with its middle at (x, y), or as near as the picture's edge allows."""
        left = min(max(0, round(x - size / 2)), self.width - size)
        top = min(max(0, round(y - size / 2)), self.height - size)
        stencil = _shape_stencil(shape, size)
        if colour in self.needs_rim():
            rim = _shape_stencil(shape, size + 4)
            tone = (176, 176, 180) if self.is_dark else (96, 96, 100)
            self.image.paste(tone, (left - 2, top - 2), rim)
        self.image.paste(_jitter(self._rng, COLOURS[colour], 9), (left, top), stencil)
        self.things.append(Thing(shape, colour, _box(left, top, left + size, top + size)))

    def needs_rim(self) -> tuple[str, ...]:
        """The colours that do not stand out from the paper by themselves."""
        if self.is_dark:
            return ("black", "blue", "purple", "green", "red")
        return ("white", "yellow")

    def bar(self, colour: str, left: Pixels, top: Pixels, right: Pixels, bottom: Pixels) -> None:
        """A filled bar of a chart."""
        edges = (round(left), round(top), round(right), round(bottom))
        self.rectangle(*edges, fill=_jitter(self._rng, COLOURS[colour], 9))
        self.things.append(Thing("bar", colour, _box(*edges)))

    def rectangle(
        self,
        left: Pixels,
        top: Pixels,
        right: Pixels,
        bottom: Pixels,
        *,
        fill: Colour | None = None,
        rim: Colour | None = None,
    ) -> None:
        """A rectangle that is no coloured thing: a frame, a band, an axis."""
        self.pen.rectangle(
            (round(left), round(top), round(right) - 1, round(bottom) - 1), fill=fill, outline=rim
        )

    def line(
        self, start: tuple[Pixels, Pixels], end: tuple[Pixels, Pixels], width: int = 1
    ) -> None:
        self.pen.line((*start, *end), fill=self.ink, width=width)

    def arrow(self, start: tuple[Pixels, Pixels], end: tuple[Pixels, Pixels]) -> None:
        """A straight arrow along one axis."""
        self.line(start, end, 2)
        (x0, y0), (x, y) = start, end
        if abs(x - x0) >= abs(y - y0):
            back = x - 6 if x > x0 else x + 6
            head = [(x, y), (back, y - 4), (back, y + 4)]
        else:
            back = y - 6 if y > y0 else y + 6
            head = [(x, y), (x - 4, back), (x + 4, back)]
        self.pen.polygon(head, fill=self.ink)

    # -- the end ------------------------------------------------------------------------------

    def finish(self) -> Image.Image:
        """The picture with some noise, as a camera or a scanner would leave it."""
        strength = self._rng.choice((0.0, 2.0, 4.0, 6.0))
        if not strength:
            return self.image
        y, x = self._rng.randrange(384 - 288), self._rng.randrange(384 - 288)
        noise = _noise()[y : y + self.height, x : x + self.width] * strength
        pixels = np.asarray(self.image, dtype=np.float32) + noise
        return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8), "RGB")


def _box(left: Pixels, top: Pixels, right: Pixels, bottom: Pixels) -> Box:
    return float(left), float(top), float(right), float(bottom)


def _jitter(rng: Random, colour: Colour, reach: int) -> Colour:
    red, green, blue = (min(255, max(0, c + rng.randint(-reach, reach))) for c in colour)
    return red, green, blue
