"""Bar and line charts and tables with printed values (after ChartQA).

Held out for the test: half of its charts have a frame and grid lines.
"""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from varifocal.demo import words
from varifocal.demo.asking import NUMBERS, Draft, listed, turn
from varifocal.demo.canvas import COLOURS, ROW, Canvas, Pixels, Size
from varifocal.demo.families.sums import minus
from varifocal.demo.sample import Split, Turn

_YEARS = tuple(str(year) for year in range(2001, 2030))
_SETS: tuple[tuple[str, ...], ...] = (
    ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN"),
    ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"),
    _YEARS,
    ("Q1", "Q2", "Q3", "Q4"),
)
_TITLES = ("SALES", "COST", "VISITS", "RAIN", "SCORE", "STOCK", "TRIPS", "UNITS")


@dataclass(frozen=True)
class Plot:
    noun: str  # bar chart, line chart, table
    title: str  # may be empty
    labels: list[str]
    values: list[int]

    @property
    def pairs(self) -> list[str]:
        """Label and value of each entry, both marked."""
        return [f"<{a}> <{b}>" for a, b in zip(self.labels, self.values, strict=True)]


def draw(rng: Random, split: Split) -> Draft:
    return rng.choice((bars, bars, columns, columns, points, table))(rng, split)


def _labels(rng: Random, split: Split, number: int, room: int) -> list[str]:
    """Labels of at most `room` characters: goods, cities, days, months, years, codes."""
    form = rng.random()
    if form < 0.35:
        return words.draw_some(rng, split, words.GOODS, number, max_length=room)
    if form < 0.5 and room >= 5:
        return words.draw_some(rng, split, words.CITIES, number, max_length=room)
    if form < 0.6:
        return [a + b for a, b in zip(rng.sample("ABCDEFGHKLMNPRST", number), "12345")]  # noqa: B905
    if form < 0.75:
        return words.different_words(rng, split, number, max(room, 4))
    series = rng.choice([s for s in _SETS if len(s) >= number and len(s[0]) <= room])
    start = rng.randrange(len(series) - number + 1)
    return list(series[start : start + number])


def _values(rng: Random, number: int) -> list[int]:
    """Different values, mostly of two digits, at least two apart."""
    low, high = rng.choice(((10, 99), (10, 99), (100, 980)))
    values: list[int] = []
    while len(values) < number:
        value = rng.randint(low, high)
        if all(abs(value - other) > 1 for other in values):
            values.append(value)
    return values


def _plot(rng: Random, split: Split, noun: str, number: int, room: int) -> Plot:
    title = rng.choice(_TITLES) if rng.random() < 0.5 else ""
    if title and rng.random() < 0.4:
        title = f"{title} {rng.choice(_YEARS)}"
    return Plot(noun, title, _labels(rng, split, number, room), _values(rng, number))


def _grounded(rng: Random, canvas: Canvas, split: Split, top: Pixels) -> None:
    """The held-out detail: a frame and grid lines behind the chart."""
    if split == "test" and rng.random() < 0.5:
        canvas.rectangle(1, top, canvas.width - 1, canvas.height - 1, rim=(150, 150, 155))
        for i in range(1, 4):
            x = canvas.width * i / 4
            canvas.pen.line((x, top, x, canvas.height - 2), fill=(150, 150, 155))


def _bar_colours(rng: Random, canvas: Canvas, number: int) -> list[str]:
    """One colour for all bars, or one each."""
    usable = [colour for colour in COLOURS if colour not in ("black", "white")]
    if rng.random() < 0.5:
        return rng.sample(usable, number)
    return [rng.choice(usable)] * number


def bars(rng: Random, split: Split) -> Draft:
    """Horizontal bars: a label, the bar, its value at the end."""
    size: Size = rng.choices(((96, 192), (96, 288), (192, 192)), (8, 1, 1))[0]
    canvas = Canvas(rng, split, size)
    plot = _plot(rng, split, "bar chart", rng.randint(3, 5), 7)
    canvas.fit([*plot.labels, plot.title], 72 if not plot.title else 110)
    start = canvas.margin + max(canvas.measure(label) for label in plot.labels) + 4
    end = canvas.width - canvas.margin - canvas.measure("000") - 3
    _grounded(rng, canvas, split, 16 if plot.title else 1)
    row = rng.randint(0, canvas.num_rows - len(plot.labels) - bool(plot.title))
    if plot.title:
        canvas.write_middle(plot.title, row)
        row += 1
    axis = canvas.row_centre(row) - 8
    colours = _bar_colours(rng, canvas, len(plot.labels))
    for label, value, colour in zip(plot.labels, plot.values, colours, strict=True):
        canvas.write(label, row)
        tip = start + max(3.0, (end - start) * value / max(plot.values))
        centre = canvas.row_centre(row)
        canvas.bar(colour, start, centre - 5, tip, centre + 5)
        canvas.write(str(value), row, left=tip + 3)
        row += 1
    canvas.line((start - 1, axis), (start - 1, canvas.row_centre(row) - 9))
    return _ask(rng, canvas, plot, colours)


def columns(rng: Random, split: Split) -> Draft:
    """Upright bars with labels under them and values over them."""
    return _upright(rng, split, "bar chart")


def points(rng: Random, split: Split) -> Draft:
    """A line through points, values over them, labels at the bottom."""
    return _upright(rng, split, "line chart")


def _upright(rng: Random, split: Split, noun: str) -> Draft:
    size: Size = rng.choices(((96, 192), (96, 288), (192, 192)), (8, 1, 1))[0]
    canvas = Canvas(rng, split, size)
    number = rng.randint(3, 5)
    column = canvas.width / number
    plot = _plot(rng, split, noun, number, min(8, int((column - 2) / 8)))
    canvas.fit(plot.labels, column - 2)
    first = 1 if plot.title else 0
    last = canvas.num_rows - 1
    _grounded(rng, canvas, split, 16 if plot.title else 1)
    if plot.title:
        canvas.write_middle(plot.title, 0)
    base = canvas.row_centre(last) - 8
    reach = base - (canvas.row_centre(first) + 8) - 1
    colours = _bar_colours(rng, canvas, number) if noun == "bar chart" else []
    tips: list[tuple[Pixels, Pixels]] = []
    for i, (label, value) in enumerate(zip(plot.labels, plot.values, strict=True)):
        middle = column * (i + 0.5)
        canvas.write_middle(label, last, middle=middle)
        top = base - max(4.0, reach * value / max(plot.values))
        tips.append((middle, top))
        if colours:
            canvas.bar(colours[i], middle - column * 0.3, top, middle + column * 0.3, base)
    if not colours:
        for a, b in pairwise(tips):
            canvas.line(a, b, 2)
        for x, y in tips:
            canvas.rectangle(x - 2, y - 2, x + 3, y + 3, fill=canvas.ink)
    for value, (x, y) in zip(plot.values, tips, strict=True):
        # on the last row of the grid that lies wholly above the tip
        row = max(first, int((y - 1 - canvas.phase) // ROW) - 1)
        if not colours:
            half, centre = canvas.measure(str(value)) / 2 + 1, canvas.row_centre(row)
            canvas.rectangle(x - half, centre - 7, x + half, centre + 7, fill=canvas.paper)
        canvas.write_middle(str(value), row, middle=x)
    canvas.line((1, base), (canvas.width - 2, base))
    return _ask(rng, canvas, plot, colours)


def table(rng: Random, split: Split) -> Draft:
    """Rows of a label and a number, with lines between."""
    size: Size = rng.choices(((96, 192), (192, 96), (192, 192)), (7, 2, 1))[0]
    canvas = Canvas(rng, split, size)
    number = rng.randint(3, 5)
    plot = _plot(rng, split, "table", number, 7)
    lines = [f"{a} {b}" for a, b in zip(plot.labels, plot.values, strict=True)]
    canvas.fit([*lines, plot.title])
    row = rng.randint(0, canvas.num_rows - number - bool(plot.title))
    if plot.title:
        canvas.write_middle(plot.title, row)
        row += 1
    has_rules = rng.random() < 0.6
    right = canvas.width - canvas.margin - rng.choice((0, 0, canvas.width // 5))
    if canvas.margin + max(canvas.measure(line) for line in lines) > right:
        right = canvas.width - canvas.margin
    for label, value in zip(plot.labels, plot.values, strict=True):
        if has_rules:
            y = canvas.row_centre(row) - 8
            canvas.line((canvas.margin, y), (canvas.width - canvas.margin, y))
        canvas.write(label, row)
        canvas.write_right(str(value), row, right=right)
        row += 1
    return _ask(rng, canvas, plot, [])


def _ask(rng: Random, canvas: Canvas, plot: Plot, colours: list[str]) -> Draft:
    main = (_every(rng, plot), _extreme(rng, plot, True), _extreme(rng, plot, False))
    more = [_value(rng, plot), _compare(rng, plot), _number(rng, plot), _heading(rng, plot)]
    if max(plot.values) < 100:
        more.append(_difference(rng, plot))
    if len(set(colours)) > 1:
        more.append(_colour(rng, plot, colours))
    return Draft(canvas, main, tuple(more), _long(rng, plot, colours))


def _every(rng: Random, plot: Plot) -> Turn:
    return turn(
        rng,
        (
            f"List all values of the {plot.noun}.",
            f"Which values does the {plot.noun} show?",
            f"Read all labels and values of the {plot.noun}.",
            f"What does the {plot.noun} show?",
        ),
        f"The {plot.noun} shows {listed(plot.pairs)}.",
    )


def _extreme(rng: Random, plot: Plot, is_max: bool) -> Turn:
    best = max(plot.values) if is_max else min(plot.values)
    label = plot.labels[plot.values.index(best)]
    word = "highest" if is_max else "lowest"
    return turn(
        rng,
        (
            f"Which label has the {word} value?",
            f"What is the {word} value of the {plot.noun}?",
            f"Where is the {plot.noun} {word}?",
            f"Name the {word} entry of the {plot.noun}.",
        ),
        f"The values are {listed(plot.pairs)}, so <{label}> is the {word} with <{best}>.",
    )


def _value(rng: Random, plot: Plot) -> Turn:
    i = rng.randrange(len(plot.labels))
    return turn(
        rng,
        (
            f"What is the value of {plot.labels[i]}?",
            f"How much is {plot.labels[i]}?",
            f"Which number belongs to {plot.labels[i]}?",
        ),
        f"The value of {plot.labels[i]} is <{plot.values[i]}>.",
    )


def _compare(rng: Random, plot: Plot) -> Turn:
    i, j = rng.sample(range(len(plot.labels)), 2)
    a, b = plot.labels[i], plot.labels[j]
    answer, word = ("yes", "higher") if plot.values[i] > plot.values[j] else ("no", "lower")
    return turn(
        rng,
        (f"Is {a} higher than {b}?", f"Is the value of {a} above that of {b}?"),
        f"{a} is <{plot.values[i]}> and {b} is <{plot.values[j]}>, so <{answer}>, {a} is <{word}>.",
    )


def _difference(rng: Random, plot: Plot) -> Turn:
    i, j = rng.sample(range(len(plot.labels)), 2)
    a, b = plot.labels[i], plot.labels[j]
    big, small = sorted((plot.values[i], plot.values[j]), reverse=True)
    return turn(
        rng,
        (
            f"What is the difference between {a} and {b}?",
            f"How far apart are {a} and {b}?",
            f"By how much do {a} and {b} differ?",
        ),
        f"{a} is <{plot.values[i]}> and {b} is <{plot.values[j]}>. {minus(big, small)}, so the "
        f"difference is <{big - small}>.",
    )


def _number(rng: Random, plot: Plot) -> Turn:
    return turn(
        rng,
        (
            f"How many values does the {plot.noun} have?",
            f"Count the entries of the {plot.noun}.",
        ),
        f"The labels are {listed([f'<{label}>' for label in plot.labels])}, so there are "
        f"<{NUMBERS[len(plot.labels)]}> values.",
    )


def _heading(rng: Random, plot: Plot) -> Turn:
    return turn(
        rng,
        (f"What is the title of the {plot.noun}?", f"Read the title of the {plot.noun}."),
        f"The title of the {plot.noun} is <{plot.title}>."
        if plot.title
        else f"The {plot.noun} has <no> title, its first label is <{plot.labels[0]}>.",
    )


def _colour(rng: Random, plot: Plot, colours: list[str]) -> Turn:
    i = rng.randrange(len(colours))
    return turn(
        rng,
        (f"What is the {colours[i]} bar?", f"Which label and value has the {colours[i]} bar?"),
        f"The {colours[i]} bar is <{plot.labels[i]}> and its value is <{plot.values[i]}>.",
    )


def _long(rng: Random, plot: Plot, colours: list[str]) -> Turn:
    title = f"with the title <{plot.title}>" if plot.title else "with <no> title"
    best, worst = max(plot.values), min(plot.values)
    inks = [f"<{colour}> bar" for colour in colours] or ["entry"] * len(plot.labels)
    sentences = " ".join(
        f"The {ink if colours else 'value'} of <{label}> is at <{value}>."
        for ink, label, value in zip(inks, plot.labels, plot.values, strict=True)
    )
    return turn(
        rng,
        (f"Describe the {plot.noun} in detail.", f"Give a full description of the {plot.noun}."),
        f"This is a {plot.noun} {title} and <{NUMBERS[len(plot.labels)]}> values. {sentences} "
        f"The highest is <{plot.labels[plot.values.index(best)]}> and the lowest is "
        f"<{plot.labels[plot.values.index(worst)]}>.",
    )
