"""Printed figures that are added or subtracted digit by digit (after MathVista)."""

from random import Random

from varifocal.demo import words
from varifocal.demo.asking import NUMBERS, Draft, listed, turn
from varifocal.demo.canvas import COLOURS, SHAPES, Canvas, Size
from varifocal.demo.sample import Split, Turn


def draw(rng: Random, split: Split) -> Draft:
    return rng.choice((exercises, prices, shapes))(rng, split)


def plus(a: int, b: int) -> str:
    """Add two numbers, ones first: `47 plus 35: 7 plus 5 is 12, 40 plus 30 is 70, that is 82`."""
    tens, ones = a // 10 * 10 + b // 10 * 10, a % 10 + b % 10
    return (
        f"<{a}> plus <{b}>: <{a % 10}> plus <{b % 10}> is <{ones}>, "
        f"<{a // 10 * 10}> plus <{b // 10 * 10}> is <{tens}>, that is <{a + b}>"
    )


def minus(a: int, b: int) -> str:
    """Take tens from tens, then the ones: `71 minus 34: 70 minus 30 is 40, 41 minus 4 is 37`."""
    tens, ones = b // 10 * 10, b % 10
    return (
        f"<{a}> minus <{b}>: <{a // 10 * 10}> minus <{tens}> is <{a // 10 * 10 - tens}>, "
        f"<{a - tens}> minus <{ones}> is <{a - b}>"
    )


def total(numbers: list[int]) -> str:
    """Add numbers one after the other, each step as in `plus`."""
    so_far, steps = numbers[0], []
    for number in numbers[1:]:
        steps.append(plus(so_far, number))
        so_far += number
    return ". ".join(steps)


# -- exercises --------------------------------------------------------------------------------


def exercises(rng: Random, split: Split) -> Draft:
    """One to four lines such as `47 + 35 = ?`."""
    size: Size = rng.choices(((96, 192), (192, 96)), (8, 2))[0]
    canvas = Canvas(rng, split, size)
    number = rng.randint(1, 4)
    tasks: list[tuple[int, str, int]] = []
    while len(tasks) < number:
        a, b = rng.randint(2, 99), rng.randint(2, 99)
        sign = rng.choice("+-")
        task = (max(a, b), sign, min(a, b)) if sign == "-" else (a, sign, b)
        if task not in tasks:
            tasks.append(task)
    lines = [f"{a} {sign} {b} = ?" for a, sign, b in tasks]
    canvas.fit(lines)
    rows = sorted(rng.sample(range(canvas.num_rows), number))
    shift = rng.uniform(0, canvas.width - canvas.margin - max(map(canvas.measure, lines)) - 2)
    for line, row in zip(lines, rows, strict=True):
        canvas.write(line, row, left=canvas.margin + shift)
    return _ask_exercises(rng, canvas, tasks)


def _solved(task: tuple[int, str, int]) -> str:
    a, sign, b = task
    if sign == "+":
        return f"{plus(a, b)}, so the answer is <{a + b}>"
    return f"{minus(a, b)}, so the answer is <{a - b}>"


def _ask_exercises(rng: Random, canvas: Canvas, tasks: list[tuple[int, str, int]]) -> Draft:
    number = len(tasks)
    i = rng.randrange(number)
    word = {"+": "plus", "-": "minus"}
    one = turn(
        rng,
        (
            f"What is the answer to line {i + 1}?",
            f"Solve exercise {i + 1}.",
            f"Work out line {i + 1}.",
        ),
        f"Line {i + 1} asks for <{tasks[i][0]}> <{word[tasks[i][1]]}> <{tasks[i][2]}>. "
        f"{_solved(tasks[i])}.",
    )
    last = turn(
        rng,
        ("Solve the last exercise.", "Work out the exercise at the bottom."),
        f"The last exercise is <{tasks[-1][0]}> <{word[tasks[-1][1]]}> <{tasks[-1][2]}>. "
        f"{_solved(tasks[-1])}.",
    )
    read = turn(
        rng,
        ("Read the exercises.", "Which exercises are printed?"),
        "The exercises are "
        + listed([f"<{a}> <{word[sign]}> <{b}>" for a, sign, b in tasks])
        + ".",
    )
    signs = [sign for _, sign, _ in tasks]
    count = turn(
        rng,
        ("How many exercises are there?", "Count the exercises."),
        f"There {'is' if number == 1 else 'are'} <{NUMBERS[number]}> in all, with "
        f"<{NUMBERS[signs.count('+')]}> to add and <{NUMBERS[signs.count('-')]}> to subtract.",
    )
    long = turn(
        rng,
        ("Solve all exercises.", "Work out every line."),
        " ".join(f"Line {k + 1}: {_solved(task)}." for k, task in enumerate(tasks[:3])),
    )
    if number > 3:
        long = last  # four worked lines would be longer than any other answer
    return Draft(canvas, (one, last), (read, count), long)


# -- price lists ------------------------------------------------------------------------------


def prices(rng: Random, split: Split) -> Draft:
    """Three to five goods with whole prices below 100."""
    size: Size = rng.choices(((96, 192), (192, 96), (192, 192)), (8, 1, 1))[0]
    canvas = Canvas(rng, split, size)
    number = rng.randint(3, 5)
    goods = words.draw_some(rng, split, words.GOODS, number, max_length=6)
    values = rng.sample(range(2, 90), number)
    sign = rng.choice(("", "$ "))
    canvas.fit([f"{good} {sign}00" for good in goods])
    title = rng.choice(("", "PRICES", "MENU")) if number < canvas.num_rows else ""
    row = rng.randint(0, canvas.num_rows - number - bool(title))
    if title:
        canvas.write_middle(title, row)
        row += 1
    for k, (good, value) in enumerate(zip(goods, values, strict=True)):
        canvas.write(good, row + k)
        canvas.write_right(f"{sign}{value}", row + k)
    return _ask_prices(rng, canvas, goods, values)


def _ask_prices(rng: Random, canvas: Canvas, goods: list[str], values: list[int]) -> Draft:
    cost = dict(zip(goods, values, strict=True))
    a, b = rng.sample(goods, 2)
    together = turn(
        rng,
        (
            f"How much do {a} and {b} cost together?",
            f"What is the sum of {a} and {b}?",
            f"Add the prices of {a} and {b}.",
        ),
        f"{a} is <{cost[a]}> and {b} is <{cost[b]}>. {plus(cost[a], cost[b])}, so together they "
        f"cost <{cost[a] + cost[b]}>.",
    )
    big, small = sorted(rng.sample(goods, 2), key=lambda good: -cost[good])
    apart = turn(
        rng,
        (
            f"How much more is {big} than {small}?",
            f"What is the difference between the prices of {big} and {small}?",
        ),
        f"{big} is <{cost[big]}> and {small} is <{cost[small]}>. {minus(cost[big], cost[small])}, "
        f"so {big} costs <{cost[big] - cost[small]}> more.",
    )
    good = rng.choice(goods)
    twice = turn(
        rng,
        (f"How much do two {good} cost?", f"What is twice the price of {good}?"),
        f"One {good} is <{cost[good]}>. {plus(cost[good], cost[good])}, so two cost "
        f"<{2 * cost[good]}>.",
    )
    pairs = listed([f"<{good}> <{value}>" for good, value in cost.items()])
    dear = max(goods, key=lambda good: cost[good])
    cheap = min(goods, key=lambda good: cost[good])
    most = turn(
        rng,
        ("Which is the dearest?", "What costs most?"),
        f"The prices are {pairs}, so <{dear}> costs most with <{cost[dear]}>.",
    )
    ends = turn(
        rng,
        (
            "How far is the dearest from the cheapest?",
            "Subtract the lowest price from the highest.",
        ),
        f"The prices are {pairs}, so the highest is <{cost[dear]}> and the lowest is "
        f"<{cost[cheap]}>. {minus(cost[dear], cost[cheap])}, so the difference is "
        f"<{cost[dear] - cost[cheap]}>.",
    )
    first = goods[:3]
    three = turn(
        rng,
        (
            "How much do the first three items cost together?",
            "Add the prices of the first three lines.",
        ),
        f"They are {listed([f'<{good}> <{cost[good]}>' for good in first])}. "
        f"{total([cost[good] for good in first])}, so the total is "
        f"<{sum(cost[good] for good in first)}>.",
    )
    return Draft(canvas, (together, apart, three), (twice, most), ends)


# -- shapes with numbers ----------------------------------------------------------------------


def shapes(rng: Random, split: Split) -> Draft:
    """Three to six shapes in two rows with a number beside each."""
    canvas = Canvas(rng, split, (96, 192))
    number = rng.randint(3, 6)
    palette = rng.sample(tuple(COLOURS), 2)
    colours = [rng.choice(palette) for _ in range(number)]
    colours[:2] = palette
    rng.shuffle(colours)
    kinds = [rng.choice(SHAPES) for _ in range(number)]
    values = [rng.randint(1, 40) for _ in range(number)]
    places = sorted(rng.sample(range(6), number))
    for place, colour, kind, value in zip(places, colours, kinds, values, strict=True):
        row, column = 1 + place // 3 * 3, place % 3
        x = column * 64 + 22
        canvas.stamp(kind, colour, x, canvas.row_centre(row), 30)
        canvas.write(str(value), row, left=x + 19)
    named = [f"<{c}> <{k}> <{v}>" for c, k, v in zip(colours, kinds, values, strict=True)]
    shown = f"The shapes and numbers are {listed(named)}."
    asked: list[Turn] = []
    for colour in palette:
        chosen = [v for v, c in zip(values, colours, strict=True) if c == colour]
        asked.append(_add(rng, f"the {colour} shapes", chosen[:3], len(chosen) > 3, f"{shown} "))
    top = [v for v, place in zip(values, places, strict=True) if place < 3]
    bottom = [v for v, place in zip(values, places, strict=True) if place > 2]
    for name, chosen in (("the top row", top), ("the bottom row", bottom)):
        if chosen:
            asked.append(_add(rng, name, chosen, False, ""))
    read = turn(
        rng,
        ("Which number belongs to which shape?", "Read all shapes with their numbers."),
        shown,
    )
    big = max(range(number), key=lambda k: values[k])
    most = turn(
        rng,
        ("What is the largest number?", "Which number is the largest?"),
        f"The numbers are {listed([f'<{value}>' for value in values])}, so the largest is "
        f"<{values[big]}>.",
    )
    return Draft(canvas, tuple(asked), (most,), read)


def _add(rng: Random, name: str, values: list[int], is_cut: bool, before: str) -> Turn:
    """Add up to three numbers; where there are more, the question says so.

    The answer says `before` first: all that stands there, if the numbers are picked from it.
    """
    name = f"the first three of {name}" if is_cut else name
    if len(values) == 1:
        steps = f"<{values[0]}>, so the total is <{values[0]}>"
        return turn(
            rng,
            (f"What do the numbers of {name} add up to?", f"Add the numbers of {name}."),
            f"{before}There is only one number, {steps}.",
        )
    return turn(
        rng,
        (
            f"What do the numbers of {name} add up to?",
            f"Add the numbers of {name}.",
            f"What is the total of {name}?",
        ),
        f"{before}The numbers are {listed([f'<{value}>' for value in values])}. {total(values)}, "
        f"so the total is <{sum(values)}>.",
    )
