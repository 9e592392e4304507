"""Draw the sample of a family and a number, the same on every machine.

Samples of the three splits come from different seeds. Pictures of `test` also show what the
others never do: `HELD_OUT_FACE` (canvas.py) in half of the text and document pictures, the held-out
third of all word lists in half of their words (words.py), and charts with grid lines (chart.py).
"""

from random import Random
from typing import Final

from varifocal.demo import words
from varifocal.demo.asking import ORDINALS, Draft, distinct, turn
from varifocal.demo.canvas import ALPHABET, COLOURS, ROW, SHAPES, SIZES, Canvas, Size
from varifocal.demo.families import (
    chart,
    diagram,
    document,
    general,
    spatial,
    sums,
    text,
    turns,
    yesno,
)
from varifocal.demo.sample import Sample, Split, Turn

_DRAW: Final = {
    "general": general.draw,
    "text": text.draw,
    "yesno": yesno.draw,
    "chart": chart.draw,
    "sums": sums.draw,
    "document": document.draw,
    "diagram": diagram.draw,
    "spatial": spatial.draw,
    "turns": turns.draw,
}
FAMILIES: Final[tuple[str, ...]] = tuple(_DRAW)
_SIZE_SHARES: Final = (14, 1, 2, 2, 1)  # of SIZES, where no family decides


def draw(family: str, index: int, split: Split = "train") -> Sample:
    """Sample number `index` of a family."""
    rng = Random(f"{family}/{split}/{index}")
    draft = _DRAW[family](rng, split)
    asked, caption = _turns(rng, family, draft), draft.long.answer
    return _sample(f"{family}-{split}-{index}", family, draft.canvas, asked, caption)


def _turns(rng: Random, family: str, draft: Draft) -> tuple[Turn, ...]:
    if family == "turns":
        return turns.pick(rng, draft)
    return draft.pick(rng, rng.choices((2, 3, 4), (3, 5, 2))[0])


def _sample(
    name: str, family: str, canvas: Canvas, asked: tuple[Turn, ...], caption: str = ""
) -> Sample:
    return Sample(
        id=name,
        family=family,
        image=canvas.finish(),
        turns=asked,
        glyphs=tuple(canvas.glyphs),
        things=tuple(canvas.things),
        caption=caption,
    )


def draw_tower(index: int, split: Split = "train") -> Sample:
    """Practice for the vision tower: any characters anywhere, or an ordinary picture; no turns."""
    rng = Random(f"tower/{split}/{index}")
    name = f"tower-{split}-{index}"
    if rng.random() < 0.5:
        canvas = _DRAW[rng.choice(FAMILIES)](rng, split).canvas
    else:
        canvas = _scatter(rng, split)
    return _sample(name, "tower", canvas, ())


def _scatter(rng: Random, split: Split) -> Canvas:
    """Every row full of random characters, with shapes in some places instead."""
    canvas = Canvas(rng, split, _any_size(rng), may_hold_out=True)
    taken: set[tuple[int, int]] = set()
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        edge = rng.randint(20, 38)
        x = rng.uniform(edge / 2, canvas.width - edge / 2)
        y = rng.uniform(edge / 2, canvas.height - edge / 2)
        reach = edge / 2 + 10
        patches = {
            (row, column)
            for row in range(int((y - reach) // ROW), int((y + reach) // ROW) + 1)
            for column in range(int((x - reach) // ROW), int((x + reach) // ROW) + 1)
        }
        if patches & taken:
            continue
        taken |= patches
        canvas.stamp(rng.choice(SHAPES), rng.choice(tuple(COLOURS)), x, y, edge)
    for row in range(canvas.num_rows):
        left = rng.uniform(0, 20)
        while left < canvas.width - 12:
            char = rng.choice(ALPHABET) if rng.random() < 0.85 else " "
            end = left + canvas.advance(char)
            columns = (int(left // ROW), int(end // ROW))
            if end < canvas.width and not any((row, column) in taken for column in columns):
                canvas.write(char, row, left=left)
            left = end
    return canvas


def _any_size(rng: Random) -> Size:
    return rng.choices(SIZES, _SIZE_SHARES)[0]


def draw_lines(index: int, split: Split = "train") -> Sample:
    """Practice in reading: one to four lines of words and codes and nothing else."""
    rng = Random(f"lines/{split}/{index}")
    canvas = Canvas(rng, split, _any_size(rng), may_hold_out=True)
    room = {96: 10, 192: 18, 288: 28}[canvas.width]
    lines = [_random_line(rng, split, rng.randint(4, room)) for _ in range(rng.randint(1, 4))]
    canvas.fit(lines)
    rows = sorted(rng.sample(range(canvas.num_rows), len(lines)))
    for line, row in zip(lines, rows, strict=True):
        slack = canvas.width - canvas.measure(line) - 4
        canvas.write(line, row, left=2 + rng.uniform(0, max(0.0, slack)))
    whole = turn(
        rng,
        ("Read the text.", "Read all lines.", "What does the text say?"),
        " / ".join(f"<{line}>" for line in lines),
    )
    n = rng.randrange(len(lines))
    one = turn(rng, (f"Read line {n + 1}.", f"Read the {ORDINALS[n]} line."), f"<{lines[n]}>")
    return _sample(f"lines-{split}-{index}", "lines", canvas, distinct((whole, one), 2))


def _random_line(rng: Random, split: Split, room: int) -> str:
    """Words, invented words and codes up to `room` characters, at least one of them."""
    line = ""
    while True:
        form = rng.random()
        part = words.code(rng) if form < 0.3 else words.word(rng, split, min(9, max(4, room)))
        if form > 0.9:
            part = rng.choice((words.price(rng), words.date(rng), words.clock(rng)))
        longer = f"{line} {part}".strip()
        if len(longer) > max(room, 9):
            return line or part
        line = longer
