"""Scenes of labelled coloured shapes: describe, compare, count (after MMT-Bench)."""

from collections import Counter
from dataclasses import dataclass
from random import Random

from varifocal.demo import words
from varifocal.demo.asking import NUMBERS, Coloured, Draft, counted, listed, turn
from varifocal.demo.canvas import COLOURS, SHAPES, Canvas, Size
from varifocal.demo.sample import Split, Turn

_PLACES: dict[tuple[int, int], tuple[str, ...]] = {  # rows and columns, in reading order
    (2, 3): (
        "top left", "top middle", "top right", "bottom left", "bottom middle", "bottom right",
    ),
    (3, 2): (
        "top left", "top right", "middle left", "middle right", "bottom left", "bottom right",
    ),
    (3, 3): (
        "top left", "top middle", "top right", "middle left", "center", "middle right",
        "bottom left", "bottom middle", "bottom right",
    ),
}  # fmt: skip
_SIZES: tuple[tuple[Size, tuple[int, int]], ...] = (
    ((96, 192), (2, 3)),
    ((192, 96), (3, 2)),
    ((192, 192), (3, 3)),
    ((96, 288), (2, 3)),
)


@dataclass(frozen=True)
class Item(Coloured):
    place: str
    label: str  # printed to its right; may be empty
    is_large: bool

    @property
    def full(self) -> str:
        """`large red star with the label 7`, marked."""
        label = f" with the label <{self.label}>" if self.label else ""
        return f"<{self.size}> {self.marked}{label}"

    @property
    def size(self) -> str:
        return "large" if self.is_large else "small"


@dataclass(frozen=True)
class Scene:
    """Items in reading order, no two of the same colour and shape."""

    canvas: Canvas
    items: list[Item]
    places: tuple[str, ...]


def draw(rng: Random, split: Split) -> Draft:
    scene = lay_scene(rng, split)
    main = (
        _list(rng, scene),
        _count(rng, scene),
        _same_colour(rng, scene),
        _at(rng, scene),
        *_labels(rng, scene),
    )
    more = (_where(rng, scene), _size(rng, scene), *_by_label(rng, scene), *_only(rng, scene))
    return Draft(scene.canvas, main, more, _long(rng, scene))


def lay_scene(rng: Random, split: Split) -> Scene:
    """Two to five different shapes at named places, most of them with a label."""
    size, grid = rng.choices(_SIZES, (8, 1, 1, 1))[0]
    canvas = Canvas(rng, split, size)
    places = _PLACES[grid]
    chosen = sorted(rng.sample(range(len(places)), rng.randint(2, 5)))
    share = rng.choice((0.0, 0.6, 1.0))
    high, wide = canvas.height / grid[0], canvas.width / grid[1]
    items: list[Item] = []
    while len(items) < len(chosen):
        label = _label(rng) if rng.random() < share else ""
        colour, shape = rng.choice(tuple(COLOURS)), rng.choice(SHAPES)
        if any(item.name == f"{colour} {shape}" or label == item.label != "" for item in items):
            continue
        item = Item(colour, shape, places[chosen[len(items)]], label, rng.random() < 0.5)
        row, column = divmod(chosen[len(items)], grid[1])
        # the middle of a cell of 48 or 64 pixels lies on a row of text or between two
        y = canvas.row_centre(round((row + 0.5) * high / 16 - 0.5 - 0.01))
        is_tight = wide < 64
        x = column * wide + (14 if is_tight else rng.uniform(20, 23) + (wide - 64) / 2)
        edge = (26 if is_tight else 36) if item.is_large else (15 if is_tight else 20)
        canvas.stamp(shape, colour, x, y, edge)
        if label:
            row_of_text = round((y - canvas.phase - 8) / 16)
            canvas.write(label, row_of_text, left=x + (15 if is_tight else 21))
        items.append(item)
    return Scene(canvas, items, places)


def _label(rng: Random) -> str:
    form = rng.random()
    if form < 0.35:
        return words.letters(rng, 1)
    return str(rng.randint(1, 9)) if form < 0.65 else str(rng.randint(10, 99))


def _list(rng: Random, scene: Scene) -> Turn:
    parts = listed([f"a {item.marked} at the <{item.place}>" for item in scene.items])
    return turn(
        rng,
        (
            "Which shapes are in the picture?",
            "What can you see?",
            "Name all shapes and where they are.",
            "What does the picture show?",
        ),
        f"The picture shows {parts}.",
    )


def _count(rng: Random, scene: Scene) -> Turn:
    names = listed([f"a {item.marked}" for item in scene.items])
    return turn(
        rng,
        (
            "How many shapes are in the picture?",
            "Count the shapes of the picture.",
            "What is the number of shapes?",
        ),
        f"I see {names}, so there are {counted(len(scene.items), 'shape')}.",
    )


def _same_colour(rng: Random, scene: Scene) -> Turn:
    first, second = rng.sample(scene.places, 2)
    by_place = {item.place: item for item in scene.items}
    if rng.random() < 0.8 or not (first in by_place and second in by_place):
        first, second = (item.place for item in rng.sample(scene.items, 2))
    a, b = by_place[first], by_place[second]
    answer = "the same colour" if a.colour == b.colour else "different colours"
    return turn(
        rng,
        (
            f"Do the shapes at the {first} and at the {second} have the same colour?",
            f"Compare the colours of the shapes at the {first} and at the {second}.",
        ),
        f"At the {first} is a {a.marked} and at the {second} is a {b.marked}, so they have "
        f"<{answer}>.",
    )


def _at(rng: Random, scene: Scene) -> Turn:
    by_place = {item.place: item for item in scene.items}
    place = rng.choice(scene.items).place if rng.random() < 0.85 else rng.choice(scene.places)
    what = f"a {by_place[place].full}" if place in by_place else "<nothing>"
    return turn(
        rng,
        (
            f"What is at the {place}?",
            f"Describe the shape at the {place}.",
            f"Which shape is at the {place}?",
        ),
        f"At the {place} there is {what}.",
    )


def _where(rng: Random, scene: Scene) -> Turn:
    item = rng.choice(scene.items)
    return turn(
        rng,
        (f"Where is the {item.name}?", f"At which place is the {item.name}?"),
        f"The {item.name} is at the <{item.place}>.",
    )


def _size(rng: Random, scene: Scene) -> Turn:
    a, b = rng.sample(scene.items, 2)
    verdict = "the same size" if a.is_large == b.is_large else "different sizes"
    return turn(
        rng,
        (
            f"Are the {a.name} and the {b.name} of the same size?",
            f"Compare the sizes of the {a.name} and the {b.name}.",
        ),
        f"The {a.name} is <{a.size}> and the {b.name} is <{b.size}>, so they have <{verdict}>.",
    )


def _labels(rng: Random, scene: Scene) -> tuple[Turn, ...]:
    if not any(item.label for item in scene.items):
        return ()
    parts = listed([f"<{item.label or 'none'}> for the {item.marked}" for item in scene.items])
    return (
        turn(
            rng,
            (
                "Which label does each shape have?",
                "Read the labels of the shapes.",
                "Name the label beside each shape.",
            ),
            f"The labels are {parts}.",
        ),
    )


def _by_label(rng: Random, scene: Scene) -> tuple[Turn, ...]:
    labelled = [item for item in scene.items if item.label]
    if not labelled:
        return ()
    item, other = rng.choice(labelled), rng.choice(scene.items)
    said = f"the label <{other.label}>" if other.label else "<no> label"
    return (
        turn(
            rng,
            (
                f"Which shape has the label {item.label}?",
                f"What stands beside the label {item.label}?",
            ),
            f"The label {item.label} belongs to the {item.marked} at the <{item.place}>.",
        ),
        turn(
            rng,
            (
                f"Which label has the {other.name}?",
                f"What is printed beside the {other.name}?",
            ),
            f"The {other.name} at the <{other.place}> has {said}.",
        ),
    )


def _only(rng: Random, scene: Scene) -> tuple[Turn, ...]:
    """The colour of a shape that is there once."""
    numbers = Counter(item.shape for item in scene.items)
    single = [item for item in scene.items if numbers[item.shape] == 1]
    if not single:
        return ()
    item = rng.choice(single)
    return (
        turn(
            rng,
            (f"What colour is the {item.shape}?", f"Which colour does the {item.shape} have?"),
            f"The {item.shape} at the <{item.place}> is <{item.colour}>.",
        ),
    )


def _long(rng: Random, scene: Scene) -> Turn:
    ground = "dark" if scene.canvas.is_dark else "light"
    sentences = " ".join(f"At the <{item.place}> is a {item.full}." for item in scene.items)
    return turn(
        rng,
        (
            "Describe the picture in detail.",
            "Give a full description of the picture.",
            "Describe the scene in detail.",
        ),
        f"The picture shows <{NUMBERS[len(scene.items)]}> shapes on a <{ground}> ground. "
        f"{sentences}",
    )
