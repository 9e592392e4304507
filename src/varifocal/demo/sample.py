"""What one drawn picture is: pixels, what stands where in them, and questions with answers."""

from dataclasses import dataclass
from typing import Literal

from PIL import Image

Split = Literal["train", "valid", "test"]
Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels


@dataclass(frozen=True)
class Glyph:
    """One printed character and the box of its ink."""

    char: str
    box: Box


@dataclass(frozen=True)
class Thing:
    """One coloured shape and the box that it fills."""

    shape: str
    colour: str
    box: Box


@dataclass(frozen=True)
class Turn:
    """A question about the picture with its answer.

    `fields` are the parts of `answer`, in order of appearance, that cannot be known without
    looking at the picture; `demo score` counts how many come out exactly.
    """

    question: str
    answer: str
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """A picture drawn for one task family, with everything needed to train and to score."""

    id: str
    family: str
    image: Image.Image  # mode RGB
    turns: tuple[Turn, ...]
    glyphs: tuple[Glyph, ...] = ()
    things: tuple[Thing, ...] = ()
    caption: str = ""  # the picture in words, as the answer to its longest question has it
