"""Cut a picture into the views a tower reads, and say what stands in every patch of them.

The labels come free, because the pictures are drawn: which characters have their centre in a
patch, and the colour and shape of the thing that covers most of it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from varifocal.demo.canvas import COLOURS, SHAPES
from varifocal.demo.sample import Sample

TILE = 96  # pixels on a side of one view that the vision tower reads
PATCH = 16  # pixels on a side of one image token
SIDE = TILE // PATCH  # patches along one edge of a view
PATCHES = SIDE * SIDE
SLOTS = 3  # character slots of a patch: its thirds from left to right; letters are 7 px apart

KINDS = (*SHAPES, "bar")  # a bar of a chart is a thing too
CHARACTERS = "".join(chr(code) for code in range(33, 127))
NUM_CHARACTERS = len(CHARACTERS) + 1  # class 0: no character
NUM_COLOURS = len(COLOURS) + 1  # class 0: nothing stands here
NUM_SHAPES = len(KINDS) + 1
IGNORE = -100  # two characters in one slot, or one that is not ASCII
MOSTLY = 0.25  # of a patch, or of the thing: from here on the thing counts as standing there

_CHARACTER = {character: index + 1 for index, character in enumerate(CHARACTERS)}
COLOUR_NAMES = tuple(COLOURS)
_COLOUR = {name: index + 1 for index, name in enumerate(COLOUR_NAMES)}
_SHAPE = {name: index + 1 for index, name in enumerate(KINDS)}

Bytes = NDArray[np.uint8]
Classes = NDArray[np.int16]
Floats = NDArray[np.floating]


@dataclass(frozen=True)
class Views:
    """The views of one picture, whole picture first, then its tiles row by row."""

    pixels: Bytes  # (views, TILE, TILE, 3)
    characters: Classes  # (views, PATCHES, SLOTS)
    colours: Classes  # (views, PATCHES)
    shapes: Classes  # (views, PATCHES)


def cut(image: Image.Image) -> Bytes:
    """The views of a picture whose edges are multiples of TILE, as the processor makes them."""
    whole = np.asarray(image)
    height, width = whole.shape[:2]
    if height % TILE or width % TILE:
        raise ValueError(f"edges must be multiples of {TILE}, got {width} x {height}")
    base = np.asarray(image.resize((TILE, TILE), Image.Resampling.BICUBIC))
    rows, columns = height // TILE, width // TILE
    tiles = whole.reshape(rows, TILE, columns, TILE, 3).transpose(0, 2, 1, 3, 4)
    return np.concatenate([base[None], tiles.reshape(-1, TILE, TILE, 3)])


def label(sample: Sample) -> Views:
    """Views of a sample's picture with the classes of all their patches."""
    width, height = sample.image.size
    pixels = cut(sample.image)
    frames = [(0.0, 0.0, TILE / width, TILE / height)]
    frames += [(x, y, 1.0, 1.0) for y in range(0, height, TILE) for x in range(0, width, TILE)]
    codes = np.array([_CHARACTER.get(g.char, IGNORE) for g in sample.glyphs], np.int16)
    ink = np.array([g.box for g in sample.glyphs], np.float32).reshape(-1, 4)
    centres = (ink[:, :2] + ink[:, 2:]) / 2
    boxes = np.array([thing.box for thing in sample.things], np.float32).reshape(-1, 4)
    kinds = np.array([(_COLOUR[t.colour], _SHAPE[t.shape]) for t in sample.things], np.int16)
    characters, colours, shapes = [], [], []
    for left, top, across, down in frames:
        origin, scale = np.array([left, top], np.float32), np.array([across, down], np.float32)
        characters.append(_characters(codes, (centres - origin) * scale))
        moved = (boxes - np.tile(origin, 2)) * np.tile(scale, 2)
        colour, shape = _things(kinds.reshape(-1, 2), moved)
        colours.append(colour)
        shapes.append(shape)
    return Views(pixels, np.stack(characters), np.stack(colours), np.stack(shapes))


def _characters(codes: Classes, centres: Floats) -> Classes:
    """Class of each slot (PATCHES, SLOTS); the slots of a patch run left to right."""
    inside = ((centres >= 0) & (centres < TILE)).all(-1)
    cell = np.floor(centres[inside]).astype(np.int64)
    third = cell[:, 0] * SLOTS // PATCH
    slot = (cell[:, 1] // PATCH * SIDE + third // SLOTS) * SLOTS + third % SLOTS
    classes = np.zeros(PATCHES * SLOTS, np.int16)
    classes[slot] = codes[inside]
    classes[np.bincount(slot, minlength=len(classes)) > 1] = IGNORE
    return classes.reshape(PATCHES, SLOTS)


def _things(kinds: Classes, boxes: Floats) -> tuple[Classes, Classes]:
    """Colour and shape class of each patch; the thing with the largest share of it wins."""
    if not len(boxes):
        return np.zeros(PATCHES, np.int16), np.zeros(PATCHES, np.int16)
    edges = np.arange(0, TILE, PATCH, dtype=np.float32)

    def overlap(low: Floats, high: Floats) -> Floats:
        shared = np.minimum(high[:, None], edges + PATCH) - np.maximum(low[:, None], edges)
        covered: Floats = np.maximum(shared, 0)
        return covered

    across = overlap(boxes[:, 0], boxes[:, 2])
    down = overlap(boxes[:, 1], boxes[:, 3])
    area = (down[:, :, None] * across[:, None, :]).reshape(len(boxes), PATCHES)
    full = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    enough = MOSTLY * np.minimum(np.float32(PATCH * PATCH), full)
    area = np.where(area >= enough[:, None], area, 0)
    winner = area.argmax(0)
    found = np.where((area.max(0) > 0)[:, None], kinds[winner], 0)
    return found[:, 0].astype(np.int16), found[:, 1].astype(np.int16)
