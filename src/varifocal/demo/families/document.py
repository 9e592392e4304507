"""Receipts, forms, letters and tickets to transcribe or to take fields from (after OCRBench).

Held out for the test: a third of all names and goods, and the held-out face in half of the
pictures.
"""

from dataclasses import dataclass
from random import Random

from varifocal.demo import words
from varifocal.demo.asking import NUMBERS, ORDINALS, Draft, listed, plural, turn
from varifocal.demo.canvas import Canvas, Size
from varifocal.demo.sample import Split, Turn


def draw(rng: Random, split: Split) -> Draft:
    return rng.choice((receipt, receipt, form, form, ticket, letter))(rng, split)


@dataclass(frozen=True)
class Receipt:
    store: str
    date: str
    goods: list[str]
    prices: list[str]
    total: str

    @property
    def rows(self) -> list[tuple[str, str]]:
        """The left and the right part of each printed line."""
        items = zip(self.goods, self.prices, strict=True)
        return [(self.store, ""), (self.date, ""), *items, ("TOTAL", self.total)]

    @property
    def lines(self) -> list[str]:
        return [f"{left} {right}".strip() for left, right in self.rows]


def receipt(rng: Random, split: Split) -> Draft:
    """A store, a date, two to five goods with prices and their total."""
    canvas, bill = lay_receipt(rng, split)
    return Draft(
        canvas,
        (_transcript(rng, "receipt", bill.lines), _goods(rng, bill)),
        _ask_receipt(rng, bill),
        _long_receipt(rng, bill),
    )


def lay_receipt(rng: Random, split: Split) -> tuple[Canvas, Receipt]:
    """The picture of a receipt and what it says."""
    size: Size = rng.choices(((96, 192), (192, 96), (192, 192)), (7, 2, 1))[0]
    canvas = Canvas(rng, split, size, may_hold_out=True, is_dark=False)
    goods = words.draw_some(
        rng, split, words.GOODS, rng.randint(2, 3 if canvas.height == 96 else 5), max_length=6
    )
    prices = [words.price(rng) for _ in goods]
    cents = sum(int(price.replace(".", "")) for price in prices)
    bill = Receipt(
        store=f"{words.word(rng, split, 6)} {rng.choice(('SHOP', 'STORE', 'MART', 'CAFE'))}",
        date=words.date(rng),
        goods=goods,
        prices=prices,
        total=f"{cents // 100}.{cents % 100:02d}",
    )
    canvas.fit(bill.lines)
    num_lines = len(bill.lines)
    gap = 1 if canvas.num_rows > num_lines and rng.random() < 0.5 else 0
    top = rng.randint(0, canvas.num_rows - num_lines - gap)
    is_centred = rng.random() < 0.5
    for i, (left, right) in enumerate(bill.rows):
        row = top + i + (gap if i > 1 else 0)
        if is_centred and not right:
            canvas.write_middle(left, row)
        else:
            canvas.write(left, row)
        canvas.write_right(right, row)
    y = canvas.row_centre(top + num_lines + gap - 1) - 8
    canvas.line((canvas.margin, y), (canvas.width - canvas.margin, y))
    return canvas, bill


def _goods(rng: Random, bill: Receipt) -> Turn:
    items = listed([f"<{g}> for <{p}>" for g, p in zip(bill.goods, bill.prices, strict=True)])
    return turn(
        rng,
        (
            "What was bought and for how much?",
            "List the items of the receipt with their prices.",
            "Which items and prices are on the receipt?",
            "What does the receipt list?",
        ),
        f"The receipt lists {items}. The total is <{bill.total}>.",
    )


def _ask_receipt(rng: Random, bill: Receipt) -> tuple[Turn, ...]:
    goods, prices = bill.goods, bill.prices
    i = rng.randrange(len(goods))
    return (
        turn(
            rng,
            (
                f"How much is the {goods[i]}?",
                f"What does the {goods[i]} cost?",
                f"What is the price of the {goods[i]}?",
            ),
            f"The {goods[i]} costs <{prices[i]}>.",
        ),
        turn(
            rng,
            ("What is the total?", "How much was paid in all?", "Read the total of the receipt."),
            f"The total of the receipt is <{bill.total}>.",
        ),
        turn(
            rng,
            (
                "Where and when was this bought?",
                "Which store is the receipt from and which date does it have?",
                "Name the store and the date.",
            ),
            f"The receipt is from <{bill.store}> and has the date <{bill.date}>.",
        ),
        turn(
            rng,
            ("How many items are on the receipt?", "Count the items of the receipt."),
            f"The items are {listed([f'<{g}>' for g in goods])}, "
            f"so there are <{NUMBERS[len(goods)]}> items.",
        ),
        turn(
            rng,
            ("Which item is listed last?", "What is the last item before the total?"),
            f"The last item is <{goods[-1]}> for <{prices[-1]}>.",
        ),
    )


def _long_receipt(rng: Random, bill: Receipt) -> Turn:
    items = " ".join(
        f"The {ORDINALS[i]} item is <{g}> and it costs <{p}>."
        for i, (g, p) in enumerate(zip(bill.goods, bill.prices, strict=True))
    )
    return turn(
        rng,
        (
            "Describe the receipt in detail.",
            "Give a full description of the receipt.",
            "Tell everything that the receipt says.",
        ),
        f"This is a receipt from <{bill.store}> with the date <{bill.date}>. It lists "
        f"<{NUMBERS[len(bill.goods)]}> items. {items} At the bottom the total is <{bill.total}>.",
    )


def form(rng: Random, split: Split) -> Draft:
    """Three to five lines of a key and a value."""
    size: Size = rng.choices(((96, 192), (192, 192)), (8, 2))[0]
    canvas = Canvas(rng, split, size, may_hold_out=True)
    surname = words.draw_from(rng, split, words.SURNAMES)
    person = words.draw_some(rng, split, words.NAMES, 1, max_length=6)[0]
    values = {
        "NAME": f"{person} {surname}",
        "CITY": words.draw_from(rng, split, words.CITIES),
        "DATE": words.date(rng),
        "CODE": words.code(rng),
        "ROOM": f"{words.letters(rng, 1)}{words.digits(rng, 2)}",
        "TEL": f"{words.digits(rng, 3)}-{words.digits(rng, 4)}",
        "TIME": words.clock(rng),
        "ITEM": words.word(rng, split, 8),
        "FEE": words.price(rng, 100),
    }
    number = rng.randint(3, 5)
    chosen = rng.sample(tuple(values), number)
    keys = [key for key in values if key in chosen]
    heading = rng.choice(("", "FORM", "VISITOR CARD", "ORDER", "STAFF PASS"))
    heading = heading if len(keys) < canvas.num_rows else ""
    _print_form(rng, canvas, heading, {key: values[key] for key in keys})
    return _ask_form(rng, canvas, heading, {key: values[key] for key in keys})


def _print_form(rng: Random, canvas: Canvas, heading: str, values: dict[str, str]) -> None:
    lines = [f"{key}: {value}" for key, value in values.items()]
    canvas.fit([*lines, heading])
    space = canvas.num_rows - len(lines) - bool(heading)
    row = rng.randint(0, space)
    in_columns = rng.random() < 0.4
    column = canvas.margin + max(canvas.measure(f"{key}: ") for key in values)
    if in_columns and any(column + canvas.measure(v) > canvas.width - 2 for v in values.values()):
        in_columns = False
    if heading:
        canvas.write_middle(heading, row)
        y = canvas.row_centre(row) + 8
        canvas.line((canvas.margin, y), (canvas.width - canvas.margin, y))
        row += 1
    for key, value in values.items():
        end = canvas.write(f"{key}: ", row)
        canvas.write(value, row, left=column if in_columns else end)
        row += 1


_KEY_WORDS = {
    "NAME": "name",
    "CITY": "city",
    "DATE": "date",
    "CODE": "code",
    "ROOM": "room",
    "TEL": "telephone number",
    "TIME": "time",
    "ITEM": "item",
    "FEE": "fee",
    "FROM": "start",
    "TO": "goal",
    "SEAT": "seat",
    "PRICE": "price",
}


def _ask_form(rng: Random, canvas: Canvas, heading: str, values: dict[str, str]) -> Draft:
    lines = [heading] if heading else []
    lines += [f"{key}: {value}" for key, value in values.items()]
    key = rng.choice(tuple(values))
    noun = _KEY_WORDS[key]
    one = turn(
        rng,
        (
            f"What is the {noun}?",
            f"Which {noun} is printed?",
            f"Read the {noun}.",
            f"What does the page give as the {noun}?",
        ),
        f"The {noun} is <{values[key]}>.",
    )
    stated = listed([f"the {_KEY_WORDS[k]} is <{v}>" for k, v in values.items()])
    every = turn(
        rng,
        (
            "List the fields of the page.",
            "What are the fields and their values?",
            "Which details does the page give?",
        ),
        f"On the page {stated}.",
    )
    keys = turn(
        rng,
        ("Which fields does the page have?", "Name the fields of the page in order."),
        f"The fields are {listed([f'<{k}>' for k in values])}.",
    )
    title = turn(
        rng,
        ("Does the page have a heading?", "What is the heading of the page?"),
        f"The heading of the page is <{heading}>."
        if heading
        else f"The page has <no> heading, its first line is <{lines[0]}>.",
    )
    number = len(lines)
    what = f"with the heading <{heading}>" if heading else "with <no> heading"
    sentences = " ".join(
        f"Line {i + 1} says <{line}>." for i, line in enumerate(lines) if line != heading
    )
    long = turn(
        rng,
        ("Describe the page in detail.", "Give a full description of the page."),
        f"This is a page {what} and <{NUMBERS[number]}> {plural(number, 'line')} of text. "
        f"{sentences}",
    )
    return Draft(canvas, (_transcript(rng, "page", lines), every), (one, keys, title), long)


def ticket(rng: Random, split: Split) -> Draft:
    """A train or bus ticket: from, to, date, time, seat, price."""
    size: Size = rng.choices(((96, 192), (96, 288)), (8, 2))[0]
    canvas = Canvas(rng, split, size, may_hold_out=True)
    start, goal = words.draw_some(rng, split, words.CITIES, 2, max_length=8)
    values = {
        "FROM": start,
        "TO": goal,
        "DATE": words.date(rng),
        "TIME": words.clock(rng),
        "SEAT": f"{rng.randint(1, 89)}{words.letters(rng, 1)}",
        "PRICE": words.price(rng, 100),
    }
    dropped = rng.sample(("DATE", "TIME", "SEAT", "PRICE"), rng.randint(1, 2))
    for key in dropped:
        del values[key]
    heading = rng.choice(("TRAIN TICKET", "BUS TICKET", "TICKET", "FERRY PASS"))
    _print_form(rng, canvas, heading, values)
    return _ask_form(rng, canvas, heading, values)


def letter(rng: Random, split: Split) -> Draft:
    """A short letter with sender, town, date, greeting and one or two lines."""
    size: Size = rng.choices(((96, 192), (192, 192)), (6, 4))[0]
    canvas = Canvas(rng, split, size, may_hold_out=True, is_dark=False)
    reader, writer = words.draw_some(rng, split, words.NAMES, 2)
    city = words.draw_from(rng, split, words.CITIES)
    day = words.date(rng)
    verb = rng.choice(("SEND", "BRING", "BUY", "SELL", "KEEP"))
    number = rng.randint(2, 99)
    good = words.draw_some(rng, split, words.GOODS, 1)[0]
    hour = words.clock(rng)
    body = [f"PLEASE {verb} {number} {good}", f"AT {hour}"]
    lines = [f"{city}, {day}", f"DEAR {reader},", *body, f"YOURS, {writer}"]
    canvas.fit(lines)
    row = rng.randint(0, canvas.num_rows - len(lines))
    for i, line in enumerate(lines):
        if i == 0:
            canvas.write_right(line, row)
        else:
            canvas.write(line, row + i)
    who = turn(
        rng,
        ("Who wrote to whom?", "Who sent the letter and who gets it?"),
        f"<{writer}> wrote the letter to <{reader}>.",
    )
    where = turn(
        rng,
        ("Where and when was the letter written?", "Name the place and the date of the letter."),
        f"The letter was written in <{city}> on <{day}>.",
    )
    what = turn(
        rng,
        ("What does the letter ask for?", "What is the reader of the letter to do?"),
        f"<{reader}> is asked to <{verb}> <{number}> <{good}> at <{hour}>.",
    )
    long = turn(
        rng,
        ("Describe the letter in detail.", "Give a full description of the letter."),
        f"This is a letter from <{writer}> to <{reader}>, written in <{city}> on <{day}>. "
        f"It starts with <{lines[1]}> and asks to <{verb}> <{number}> <{good}> at <{hour}>. "
        f"It ends with <{lines[-1]}>.",
    )
    return Draft(canvas, (_transcript(rng, "letter", lines), what), (who, where), long)


def _transcript(rng: Random, noun: str, lines: list[str]) -> Turn:
    return turn(
        rng,
        (
            f"Transcribe the {noun}.",
            f"Read the whole {noun} line by line.",
            f"Write down all text of the {noun}.",
            f"What is printed on the {noun}?",
        ),
        " / ".join(f"<{line}>" for line in lines),
    )
