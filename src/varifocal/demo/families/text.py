"""Signs, notices and captioned shapes whose words are to be read (after TextVQA).

Held out for the test: a third of the words, and the held-out face in half of the pictures.
"""

from random import Random

from varifocal.demo import words
from varifocal.demo.asking import NUMBERS, ORDINALS, Draft, plural, turn
from varifocal.demo.canvas import COLOURS, SHAPES, Canvas, Size
from varifocal.demo.sample import Split, Turn


def draw(rng: Random, split: Split) -> Draft:
    return rng.choice((sign, sign, notice, captions))(rng, split)


def _line(rng: Random, split: Split, room: int) -> str:
    """A line of at most `room` characters: words, or words with a code, a price or a time."""
    form = rng.random()
    if form < 0.45:
        return words.word(rng, split, min(9, room))
    if form < 0.6:
        return words.code(rng)
    if room < 13:
        return rng.choice((f"$ {words.price(rng)}", words.clock(rng), words.date(rng)))
    first = words.word(rng, split, 7)
    last = (
        words.word(rng, split, room - len(first) - 1)
        if form < 0.8
        else rng.choice((words.digits(rng, 2), words.price(rng), words.code(rng)))
    )
    return f"{first} {last}"


def _different_lines(rng: Random, split: Split, number: int, room: int) -> list[str]:
    lines: list[str] = []
    while len(lines) < number:
        line = _line(rng, split, room)
        if line not in lines:
            lines.append(line)
    return lines


def sign(rng: Random, split: Split) -> Draft:
    """Two to four lines, mostly centred, mostly in a frame."""
    canvas, lines = lay_sign(rng, split)
    return _ask_lines(rng, canvas, "sign", lines)


def lay_sign(rng: Random, split: Split) -> tuple[Canvas, list[str]]:
    """The picture of a sign and its lines."""
    size: Size = rng.choices(((96, 192), (192, 96), (96, 288)), (8, 1, 1))[0]
    canvas = Canvas(rng, split, size, may_hold_out=True)
    room = {192: 17, 96: 10, 288: 20}[canvas.width]
    lines = _different_lines(rng, split, rng.randint(2, 4), room)
    canvas.fit(lines, canvas.width - 14)
    if rng.random() < 0.6:
        canvas.phase = 0  # or the frame would cut the letters of an outer row
        canvas.rectangle(0, 0, canvas.width, canvas.height, rim=canvas.ink)
    top = rng.randint(0, canvas.num_rows - len(lines))
    is_centred = rng.random() < 0.7
    for i, line in enumerate(lines):
        if is_centred:
            canvas.write_middle(line, top + i)
        else:
            canvas.write(line, top + i, left=max(6, canvas.margin))
    return canvas, lines


def notice(rng: Random, split: Split) -> Draft:
    """A heading in a band, left-aligned lines under it."""
    size: Size = rng.choices(((96, 192), (192, 192)), (8, 2))[0]
    canvas = Canvas(rng, split, size, may_hold_out=True)
    heading = rng.choice(("NOTICE", "OPEN", "SALE", "MENU", "TODAY", "INFO", words.invented(rng)))
    most = 5 if canvas.height == 96 else 6
    lines = [heading, *_different_lines(rng, split, rng.randint(2, most - 1), 19)]
    canvas.fit(lines)
    centre = canvas.row_centre(0)
    canvas.rectangle(0, centre - 8, canvas.width, centre + 8, fill=canvas.ink)
    canvas.write_middle(heading, 0, ink=canvas.paper)
    for i, line in enumerate(lines[1:], start=1):
        canvas.write(line, i)
    return _ask_lines(rng, canvas, "notice", lines)


def _ask_lines(rng: Random, canvas: Canvas, noun: str, lines: list[str]) -> Draft:
    whole = _whole(rng, noun, lines)
    n = rng.randrange(len(lines))
    nth = turn(
        rng,
        (
            f"What is on line {n + 1} of the {noun}?",
            f"Read the {ORDINALS[n]} line of the {noun}.",
            f"What does the {noun} say on line {n + 1}?",
        ),
        f"The {noun} says <{lines[n]}> on the {ORDINALS[n]} line.",
    )
    number = len(lines)
    count = turn(
        rng,
        (f"How many lines does the {noun} have?", f"Count the lines of the {noun}."),
        f"The {noun} has <{NUMBERS[number]}> {plural(number, 'line')}, "
        f"from <{lines[0]}> to <{lines[-1]}>.",
    )
    ends = turn(
        rng,
        (
            f"What are the first and the last line of the {noun}?",
            f"Read the top and the bottom line of the {noun}.",
        ),
        f"The first line says <{lines[0]}> and the last line says <{lines[-1]}>.",
    )
    k = rng.randrange(number - 1)
    after = turn(
        rng,
        (f"What follows {lines[k]} on the {noun}?", f"Which line is under {lines[k]}?"),
        f"Under {lines[k]} the {noun} says <{lines[k + 1]}>.",
    )
    said = ", ".join(f"<{line}> on the {ORDINALS[i]} line" for i, line in enumerate(lines))
    long = turn(
        rng,
        (f"Describe the {noun} in detail.", f"Describe everything on the {noun}."),
        f"The picture shows a {noun} with <{NUMBERS[number]}> lines of "
        f"<{'light' if canvas.is_dark else 'dark'}> text on a "
        f"<{'dark' if canvas.is_dark else 'light'}> ground. It says {said}.",
    )
    return Draft(canvas, (whole, nth), (count, ends, after), long)


def _whole(rng: Random, noun: str, lines: list[str]) -> Turn:
    return turn(
        rng,
        (
            f"What does the {noun} say?",
            f"Read the {noun}.",
            f"What is written on the {noun}?",
            f"Which words are on the {noun}?",
        ),
        f"The {noun} says " + " / ".join(f"<{line}>" for line in lines) + ".",
    )


def captions(rng: Random, split: Split) -> Draft:
    """Two or three coloured shapes, each with a word under it or beside it."""
    size: Size = rng.choices(((96, 192), (96, 288), (192, 96)), (8, 1, 1))[0]
    canvas = Canvas(rng, split, size, may_hold_out=True)
    is_under = size != (192, 96) and rng.random() < 0.5
    number = rng.randint(2, 3)
    room = (6 if number == 3 else 9) if is_under else 8 if canvas.width == 96 else 9
    said = words.different_words(rng, split, number, room)
    if rng.random() < 0.6:
        said[rng.randrange(number)] = words.code(rng)
    pairs = [(colour, rng.choice(SHAPES)) for colour in rng.sample(tuple(COLOURS), number)]
    if is_under:
        column = canvas.width / number
        canvas.fit(said, column - 3)
        for i, (colour, shape) in enumerate(pairs):
            middle = column * (i + 0.5)
            canvas.stamp(shape, colour, middle, canvas.row_centre(1.5), rng.randint(26, 36))
            canvas.write_middle(said[i], 4, middle=middle)
    else:
        canvas.fit(said, canvas.width - 38)
        pitch = canvas.num_rows / number
        for i, (colour, shape) in enumerate(pairs):
            row = int(pitch * i + pitch / 2 - 0.01)
            canvas.stamp(shape, colour, 20, canvas.row_centre(row), rng.randint(20, 26))
            canvas.write(said[i], row, left=37)
    return _ask_captions(rng, canvas, "under" if is_under else "beside", pairs, said)


def _ask_captions(
    rng: Random, canvas: Canvas, where: str, pairs: list[tuple[str, str]], said: list[str]
) -> Draft:
    named = [f"{colour} {shape}" for colour, shape in pairs]
    i, j = rng.sample(range(len(said)), 2)
    one = turn(
        rng,
        (
            f"What is written {where} the {named[i]}?",
            f"Which text is {where} the {named[i]}?",
            f"Read the text {where} the {named[i]}.",
        ),
        f"The text {where} the {named[i]} is <{said[i]}>.",
    )
    every = turn(
        rng,
        (
            f"What is written {where} each shape?",
            "Read all captions with their shapes.",
            "Which text belongs to which shape?",
        ),
        "The picture shows "
        + ", ".join(
            f"a <{colour}> <{shape}> with <{text}>"
            for (colour, shape), text in zip(pairs, said, strict=True)
        )
        + ".",
    )
    back = turn(
        rng,
        (f"Which shape goes with {said[j]}?", f"What shape is next to the text {said[j]}?"),
        f"The text {said[j]} goes with the <{pairs[j][0]}> <{pairs[j][1]}>.",
    )
    colours = turn(
        rng,
        ("Which colours do the shapes have?", "Name the colours of the shapes in order."),
        "In order the colours are " + ", ".join(f"<{colour}>" for colour, _ in pairs) + ".",
    )
    order = ("At the left", "Next", "Last") if where == "under" else ("At the top", "Next", "Last")
    long = turn(
        rng,
        ("Describe the shapes and their texts in detail.", "Describe all captions in detail."),
        f"The picture shows <{NUMBERS[len(said)]}> shapes with text {where} them. "
        + " ".join(
            f"{start} is a <{colour}> <{shape}> and the text {where} it says <{text}>."
            for start, (colour, shape), text in zip(order, pairs, said, strict=False)
        ),
    )
    return Draft(canvas, (one, every), (back, colours), long)
