"""Questions to be answered with yes or no, after what is seen (after MME and POPE).

Half are false. False statements are near misses: colours, shapes, words and numbers that stand
elsewhere in the picture or differ in one character. The evidence comes before the verdict: a small
model that had to say yes or no first would have to compare everything within one token.
"""

from collections.abc import Callable
from random import Random

from varifocal.demo import words
from varifocal.demo.asking import NUMBERS, ORDINALS, Draft, listed, turn
from varifocal.demo.canvas import COLOURS, SHAPES
from varifocal.demo.families import document, general, text
from varifocal.demo.sample import Split, Turn


def draw(rng: Random, split: Split) -> Draft:
    return rng.choice((scene, scene, sign, receipt))(rng, split)


def _judged(rng: Random, is_true: bool, questions: tuple[str, ...], seen: str) -> Turn:
    return turn(rng, questions, f"{seen}, so <{'yes' if is_true else 'no'}>.")


def _near(rng: Random, text_: str) -> str:
    """`text_` with one letter or digit changed."""
    places = [i for i, char in enumerate(text_) if char.isalnum()]
    i = rng.choice(places)
    pool = "0123456789" if text_[i].isdigit() else "ABCDEFGHKLMNPRSTUVWYZ"
    return text_[:i] + rng.choice(pool.replace(text_[i], "")) + text_[i + 1 :]


# -- scenes -----------------------------------------------------------------------------------


def scene(rng: Random, split: Split) -> Draft:
    laid = general.lay_scene(rng, split)
    makers: tuple[Callable[[Random, general.Scene], Turn], ...] = (
        _exists,
        _exists,
        _stands_at,
        _is_colour,
        _number,
        _has_label,
    )
    turns = [make(rng, laid) for make in makers]
    return Draft(laid.canvas, tuple(turns[:4]), tuple(turns[4:]), _exists(rng, laid))


def _exists(rng: Random, laid: general.Scene) -> Turn:
    item = rng.choice(laid.items)
    names = {other.name for other in laid.items}
    name = item.name
    if rng.random() < 0.5:
        while name in names:
            colours = [i.colour for i in laid.items] if rng.random() < 0.5 else list(COLOURS)
            shapes = [i.shape for i in laid.items] if rng.random() < 0.5 else list(SHAPES)
            name = f"{rng.choice(colours)} {rng.choice(shapes)}"
    return _judged(
        rng,
        name in names,
        (
            f"Is there a {name} in the picture?",
            f"Does the picture show a {name}?",
            f"Can you see a {name}?",
        ),
        _seen(laid),
    )


def _stands_at(rng: Random, laid: general.Scene) -> Turn:
    item = rng.choice(laid.items)
    place = item.place if rng.random() < 0.5 else rng.choice(laid.places)
    return _judged(
        rng,
        place == item.place,
        (
            f"Is the {item.name} at the {place}?",
            f"Does the {item.name} stand at the {place}?",
            f"Is the place of the {item.name} the {place}?",
        ),
        f"{_seen(laid)}. The {item.name} is at the <{item.place}>",
    )


def _seen(laid: general.Scene) -> str:
    return f"I see {listed([f'a {i.marked} at the <{i.place}>' for i in laid.items])}"


def _is_colour(rng: Random, laid: general.Scene) -> Turn:
    item = rng.choice(laid.items)
    colour = item.colour
    if rng.random() < 0.5:
        others = [other.colour for other in laid.items if other.colour != colour]
        colour = rng.choice(others or [other for other in COLOURS if other != colour])
    return _judged(
        rng,
        colour == item.colour,
        (
            f"Is the shape at the {item.place} {colour}?",
            f"Does the shape at the {item.place} have the colour {colour}?",
        ),
        f"The shape at the {item.place} is a {item.marked}",
    )


def _number(rng: Random, laid: general.Scene) -> Turn:
    number = len(laid.items)
    claimed = number if rng.random() < 0.5 else rng.choice([n for n in range(2, 7) if n != number])
    return _judged(
        rng,
        claimed == number,
        (
            f"Are there {NUMBERS[claimed]} shapes?",
            f"Does the picture show {NUMBERS[claimed]} shapes?",
        ),
        f"I see {listed([f'a {i.marked}' for i in laid.items])}, that is <{NUMBERS[number]}>",
    )


def _has_label(rng: Random, laid: general.Scene) -> Turn:
    item = rng.choice(laid.items)
    label = item.label
    if not label or rng.random() < 0.5:
        others = [other.label for other in laid.items if other.label not in ("", label)]
        label = rng.choice(others) if others else _near(rng, label or "7")
    said = f"the label <{item.label}>" if item.label else "<no> label"
    return _judged(
        rng,
        label == item.label,
        (f"Does the {item.name} have the label {label}?", f"Is {label} beside the {item.name}?"),
        f"The {item.name} has {said}",
    )


# -- text -------------------------------------------------------------------------------------


def sign(rng: Random, split: Split) -> Draft:
    canvas, lines = text.lay_sign(rng, split)
    turns = [_line_says(rng, lines) for _ in range(3)] + [_contains(rng, split, lines)]
    number = len(lines)
    claimed = number if rng.random() < 0.5 else rng.choice([n for n in range(2, 6) if n != number])
    count = _judged(
        rng,
        claimed == number,
        (
            f"Does the sign have {NUMBERS[claimed]} lines?",
            f"Are there {NUMBERS[claimed]} lines on the sign?",
        ),
        f"The sign says {_shown(lines)}, that is <{NUMBERS[number]}>",
    )
    return Draft(canvas, (turns[0], turns[3]), (turns[1], count), turns[2])


def _line_says(rng: Random, lines: list[str]) -> Turn:
    i = rng.randrange(len(lines))
    claimed = lines[i]
    if rng.random() < 0.5:
        claimed = rng.choice([line for line in lines if line != claimed])
        claimed = claimed if rng.random() < 0.5 else _near(rng, lines[i])
    return _judged(
        rng,
        claimed == lines[i],
        (
            f"Does line {i + 1} of the sign say {claimed}?",
            f"Is {claimed} printed on the {ORDINALS[i]} line?",
            f"Is {claimed} the text of line {i + 1}?",
        ),
        f"The {ORDINALS[i]} line says <{lines[i]}>",
    )


def _contains(rng: Random, split: Split, lines: list[str]) -> Turn:
    claimed = rng.choice(lines)
    if rng.random() < 0.5:
        claimed = _near(rng, claimed) if rng.random() < 0.5 else words.word(rng, split)
    return _judged(
        rng,
        claimed in lines,
        (
            f"Is there a line {claimed} on the sign?",
            f"Is one of the lines {claimed}?",
            f"Does one line of the sign say {claimed}?",
        ),
        f"The sign says {_shown(lines)}",
    )


def _shown(lines: list[str]) -> str:
    return " / ".join(f"<{line}>" for line in lines)


def receipt(rng: Random, split: Split) -> Draft:
    canvas, bill = document.lay_receipt(rng, split)
    main = (_costs(rng, bill), _lists(rng, split, bill))
    total = bill.total if rng.random() < 0.5 else _near(rng, bill.total)
    store = bill.store if rng.random() < 0.5 else _near(rng, bill.store)
    date = bill.date if rng.random() < 0.5 else _near(rng, bill.date)
    more = (
        _judged(
            rng,
            total == bill.total,
            (f"Is the total {total}?", f"Does the receipt have the total {total}?"),
            f"The total is <{bill.total}>",
        ),
        _judged(
            rng,
            store == bill.store,
            (f"Is the receipt from {store}?", f"Does the receipt come from {store}?"),
            f"The receipt is from <{bill.store}>",
        ),
    )
    day = _judged(
        rng,
        date == bill.date,
        (f"Is the date of the receipt {date}?", f"Does the receipt have the date {date}?"),
        f"The date is <{bill.date}>",
    )
    return Draft(canvas, main, more, day)


def _costs(rng: Random, bill: document.Receipt) -> Turn:
    i = rng.randrange(len(bill.goods))
    claimed = bill.prices[i]
    if rng.random() < 0.5:
        claimed = rng.choice((*bill.prices, _near(rng, claimed)))
    return _judged(
        rng,
        claimed == bill.prices[i],
        (
            f"Does the {bill.goods[i]} cost {claimed}?",
            f"Is {claimed} the price of the {bill.goods[i]}?",
            f"Is the {bill.goods[i]} listed for {claimed}?",
        ),
        f"The {bill.goods[i]} costs <{bill.prices[i]}>",
    )


def _lists(rng: Random, split: Split, bill: document.Receipt) -> Turn:
    good = rng.choice(bill.goods)
    if rng.random() < 0.5:
        good = words.draw_from(rng, split, words.GOODS)
    return _judged(
        rng,
        good in bill.goods,
        (
            f"Is {good} on the receipt?",
            f"Does the receipt list {good}?",
            f"Was {good} bought?",
        ),
        f"The receipt lists {listed([f'<{g}>' for g in bill.goods])}",
    )
