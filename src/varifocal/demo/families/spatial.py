"""Grids of coloured shapes: count them and say which stands where (after SEED-Bench).

Answers read the grid row by row before they conclude, as people count: what is asked then follows
from words already said.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random

from varifocal.demo.asking import NUMBERS, ORDINALS, Coloured, Draft, counted, listed, turn
from varifocal.demo.canvas import COLOURS, SHAPES, Canvas, Size
from varifocal.demo.sample import Split, Turn

# picture, rows, columns and how often
_GRIDS: tuple[tuple[Size, int, int, int], ...] = (
    ((96, 192), 2, 3, 4),
    ((96, 192), 2, 4, 4),
    ((192, 192), 3, 3, 1),
    ((192, 96), 3, 2, 1),
    ((96, 288), 2, 4, 1),
)


@dataclass(frozen=True)
class Cell(Coloured):
    row: int
    column: int

    @property
    def place(self) -> str:
        return f"row <{self.row + 1}>, column <{self.column + 1}>"


def draw(rng: Random, split: Split) -> Draft:
    size, num_rows, num_columns, _ = rng.choices(_GRIDS, [grid[3] for grid in _GRIDS])[0]
    canvas = Canvas(rng, split, size)
    palette = rng.sample(tuple(COLOURS), rng.randint(3, 5))
    shapes = rng.sample(SHAPES, rng.randint(2, 4))
    share = rng.choice((0.0, 0.15, 0.3))
    cells: list[Cell] = []
    high, wide = canvas.height / num_rows, canvas.width / num_columns
    if rng.random() < 0.4:
        for i in range(1, num_rows):
            canvas.line((0, i * high), (canvas.width, i * high))
        for i in range(1, num_columns):
            canvas.line((i * wide, 0), (i * wide, canvas.height))
    dx, dy, edge = rng.uniform(-3, 3), rng.uniform(-3, 3), rng.randint(24, 36)
    for place in range(num_rows * num_columns):
        if rng.random() < share and not (place > 5 and len(cells) < 4):
            continue
        row, column = divmod(place, num_columns)
        cell = Cell(rng.choice(palette), rng.choice(shapes), row, column)
        cells.append(cell)
        x, y = (column + 0.5) * wide + dx, (row + 0.5) * high + dy
        canvas.stamp(cell.shape, cell.colour, x, y, edge)
    if len(cells) < 3:
        return draw(rng, split)
    main = (
        _count(rng, cells, "colour", num_rows, num_columns),
        _count(rng, cells, "shape", num_rows, num_columns),
        _rows(rng, cells, num_rows, num_columns),
        *_relations(rng, cells, num_rows, num_columns),
    )
    more = (_at(rng, cells, num_rows, num_columns), _total(rng, cells, num_rows, num_columns))
    return Draft(canvas, main, more, _long(rng, cells, num_rows, num_columns))


def _count(rng: Random, cells: list[Cell], aspect: str, num_rows: int, num_columns: int) -> Turn:
    """Count the shapes of one colour, or of one shape."""
    if aspect == "colour":
        value = rng.choice(cells).colour
        found = [cell for cell in cells if cell.colour == value]
        noun = f"{value} shape"
    else:
        value = noun = rng.choice(cells).shape
        found = [cell for cell in cells if cell.shape == value]
    rows = _all_rows(cells, num_rows, num_columns)
    verb = "is" if len(found) == 1 else "are"
    return turn(
        rng,
        (f"How many {noun}s are there?", f"Count the {noun}s.", f"How many {noun}s can you see?"),
        f"{rows} So there {verb} {counted(len(found), noun)}.",
    )


def _rows(rng: Random, cells: list[Cell], num_rows: int, num_columns: int) -> Turn:
    row = rng.randrange(num_rows)
    return turn(
        rng,
        (
            f"What is in row {row + 1}?",
            f"Name the shapes of the {ORDINALS[row]} row from left to right.",
            f"Which shapes does row {row + 1} hold?",
        ),
        f"Row {row + 1} holds {_row_text(cells, row, num_columns)}.",
    )


def _all_rows(cells: list[Cell], num_rows: int, num_columns: int) -> str:
    return " ".join(
        f"Row {row + 1} holds {_row_text(cells, row, num_columns)}." for row in range(num_rows)
    )


def _row_text(cells: list[Cell], row: int, num_columns: int) -> str:
    by_column = {cell.column: cell for cell in cells if cell.row == row}
    parts = [
        f"a {by_column[i].marked}" if i in by_column else "<nothing>" for i in range(num_columns)
    ]
    return listed(parts)


def _at(rng: Random, cells: list[Cell], num_rows: int, num_columns: int) -> Turn:
    row, column = rng.randrange(num_rows), rng.randrange(num_columns)
    found = [cell for cell in cells if (cell.row, cell.column) == (row, column)]
    what = f"a {found[0].marked}" if found else "<nothing>"
    return turn(
        rng,
        (
            f"What is at row {row + 1}, column {column + 1}?",
            f"Which shape is in the {ORDINALS[row]} row and the {ORDINALS[column]} column?",
        ),
        f"Row {row + 1} holds {_row_text(cells, row, num_columns)}, so in column {column + 1} "
        f"there is {what}.",
    )


def _total(rng: Random, cells: list[Cell], num_rows: int, num_columns: int) -> Turn:
    rows = _all_rows(cells, num_rows, num_columns)
    return turn(
        rng,
        ("How many shapes are there?", "How many shapes are there in all?", "Count all shapes."),
        f"{rows} So there are {counted(len(cells), 'shape')} in all.",
    )


def _relations(rng: Random, cells: list[Cell], num_rows: int, num_columns: int) -> tuple[Turn, ...]:
    """What is beside or above a shape that stands only once, and where two stand."""
    names = Counter(cell.name for cell in cells)
    unique = [cell for cell in cells if names[cell.name] == 1]
    if not unique:
        return ()
    by_place = {(cell.row, cell.column): cell for cell in cells}
    rows = _all_rows(cells, num_rows, num_columns)
    cell = rng.choice(unique)
    where = turn(
        rng,
        (
            f"Where is the {cell.name}?",
            f"In which row and column is the {cell.name}?",
            f"Find the {cell.name}.",
        ),
        f"{rows} So the {cell.name} is in {cell.place}.",
    )
    words, step = rng.choice(
        (
            ("to the left of", (0, -1)),
            ("to the right of", (0, 1)),
            ("above", (-1, 0)),
            ("below", (1, 0)),
        )
    )
    other = by_place.get((cell.row + step[0], cell.column + step[1]))
    what = f"is a {other.marked}" if other else "is <nothing>"
    beside = turn(
        rng,
        (
            f"What is directly {words} the {cell.name}?",
            f"Which shape is directly {words} the {cell.name}?",
            f"Name what stands directly {words} the {cell.name}.",
        ),
        f"{rows} The {cell.name} is in {cell.place}, so directly {words} it {what}.",
    )
    return (beside, where, *_pair(rng, unique, rows))


def _pair(rng: Random, unique: list[Cell], rows: str) -> tuple[Turn, ...]:
    pairs = [(a, b) for a in unique for b in unique if a.column != b.column]
    if not pairs:
        return ()
    a, b = rng.choice(pairs)
    side = "left" if a.column < b.column else "right"
    return (
        turn(
            rng,
            (
                f"Is the {a.name} left or right of the {b.name}?",
                f"On which side of the {b.name} is the {a.name}?",
                f"Compare the columns of the {a.name} and the {b.name}.",
            ),
            f"{rows} The {a.name} is in column <{a.column + 1}> and the {b.name} is in column "
            f"<{b.column + 1}>, so the {a.name} is on the <{side}>.",
        ),
    )


def _long(rng: Random, cells: list[Cell], num_rows: int, num_columns: int) -> Turn:
    rows = _all_rows(cells, num_rows, num_columns)
    return turn(
        rng,
        (
            "Describe the grid in detail.",
            "Describe the whole grid row by row.",
            "Give a full description of the grid.",
        ),
        f"The grid has <{NUMBERS[num_rows]}> rows and <{NUMBERS[num_columns]}> columns with "
        f"{counted(len(cells), 'shape')}. {rows}",
    )
