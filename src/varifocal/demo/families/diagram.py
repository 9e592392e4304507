"""Food chains, cycles and flows of words joined by arrows (after ScienceQA).

Answers follow the arrows from end to end before they conclude.

Held out for the test: a third of the words and of the living things.
"""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from varifocal.demo import words
from varifocal.demo.asking import NUMBERS, ORDINALS, Draft, listed, turn
from varifocal.demo.canvas import Canvas, Pixels
from varifocal.demo.sample import Split, Turn

_LIVING: tuple[tuple[str, ...], ...] = (  # each level eats the one before
    ("GRASS", "CORN", "WHEAT", "CLOVER", "SEEDS", "LEAF", "ALGAE", "MOSS", "BERRY", "FRUIT",
     "CARROT", "NUTS"),
    ("RABBIT", "MOUSE", "SNAIL", "ANT", "DEER", "VOLE", "SHRIMP", "BEETLE", "MOTH", "SHEEP",
     "HARE", "SLUG"),
    ("FROG", "SNAKE", "TROUT", "LIZARD", "SPIDER", "ROBIN", "TOAD", "CRAB", "SHREW", "BAT",
     "HERRING", "WEASEL"),
    ("FOX", "EAGLE", "HAWK", "OWL", "WOLF", "SHARK", "LYNX", "SEAL", "OTTER", "FALCON",
     "HERON", "TIGER"),
)  # fmt: skip
_STAGES: tuple[str, ...] = tuple(
    """EGG LARVA PUPA ADULT SEED SPROUT PLANT FLOWER RAIN RIVER SEA CLOUD MINE MILL SHOP HOME
    HEAT MELT MOLD COOL WASH CUT COOK SERVE READ PLAN BUILD TEST COLLECT SORT PRESS REUSE
    PUMP FILTER TANK TAP WIND SOLAR GRID LAMP SAND GLASS""".split()
)


@dataclass(frozen=True)
class Chain:
    noun: str  # food chain, cycle, flow
    names: list[str]  # in the order of the arrows

    @property
    def is_cycle(self) -> bool:
        return self.noun == "cycle"

    @property
    def joined(self) -> str:
        return listed([f"<{name}>" for name in self.names])

    @property
    def told(self) -> str:
        """All parts in order; a cycle comes back to where it started."""
        parts = " to ".join(f"<{name}>" for name in self.names)
        if self.is_cycle:
            return f"Starting at the top left the cycle runs {parts} and back to <{self.names[0]}>"
        return f"Along the arrows the {self.noun} runs {parts}"


def draw(rng: Random, split: Split) -> Draft:
    noun = rng.choice(("food chain", "cycle", "flow"))
    number = rng.randint(3, 4)
    form = rng.randrange(3)
    room = 6 if form == 0 else 8
    if noun == "food chain":
        names = [words.draw_some(rng, split, level, 1, room)[0] for level in _LIVING[:number]]
    elif rng.random() < 0.5:
        names = words.draw_some(rng, split, _STAGES, number, room)
    else:
        names = words.different_words(rng, split, number, room)
    chain = Chain(noun, names)
    if chain.is_cycle:
        canvas = _ring(rng, split, names)
    elif form == 0:
        canvas = _across(rng, split, names)
    elif form == 1 or number == 4:
        canvas = _down(rng, split, names)
    else:
        canvas = _ring(rng, split, names, is_open=True)
    return _ask(rng, canvas, chain)


# -- layouts ----------------------------------------------------------------------------------


def _box(
    canvas: Canvas, name: str, row: int, middle: Pixels, has_rim: bool
) -> tuple[Pixels, Pixels]:
    """Print `name`, perhaps in a box; the left and the right edge of it."""
    left = canvas.write_middle(name, row, middle=middle)
    right = left + canvas.measure(name)
    if has_rim:
        y = canvas.row_centre(row)
        canvas.rectangle(left - 3, y - 8, right + 3, y + 9, rim=canvas.ink)
    return left - 4, right + 4


def _across(rng: Random, split: Split, names: list[str]) -> Canvas:
    """One row, arrows to the right or, in a quarter of the pictures, to the left."""
    canvas = Canvas(rng, split, (96, 288) if len(names) == 4 or rng.random() < 0.5 else (96, 192))
    column = canvas.width / len(names)
    canvas.fit(names, column - 18)
    is_backward = rng.random() < 0.25
    row, has_rim = rng.randint(1, 4), rng.random() < 0.6
    shown = names[::-1] if is_backward else names
    edges = [_box(canvas, name, row, column * (i + 0.5), has_rim) for i, name in enumerate(shown)]
    y = canvas.row_centre(row)
    for (_, start), (end, _) in pairwise(edges):
        canvas.arrow(*(((end - 1, y), (start, y)) if is_backward else ((start, y), (end - 1, y))))
    return canvas


def _down(rng: Random, split: Split, names: list[str]) -> Canvas:
    """One column, arrows down or, in a quarter of the pictures, up."""
    size = (96, 192) if len(names) == 3 else rng.choice(((192, 96), (192, 192)))
    canvas = Canvas(rng, split, size)
    canvas.fit(names, canvas.width - 10)
    canvas.phase = min(canvas.phase, 1)
    is_backward, has_rim = rng.random() < 0.25, rng.random() < 0.6
    middle = canvas.width / 2 + rng.uniform(-0.15, 0.15) * canvas.width * (canvas.width > 96)
    step = 2 if canvas.height == 96 else rng.choice((2, 3))
    top = rng.randint(0, canvas.num_rows - 1 - step * (len(names) - 1))
    shown = names[::-1] if is_backward else names
    for i, name in enumerate(shown):
        _box(canvas, name, top + i * step, middle, has_rim)
        if i:
            start = canvas.row_centre(top + (i - 1) * step) + 9
            end = canvas.row_centre(top + i * step) - 9
            ends = ((middle, start), (middle, end))
            canvas.arrow(*(ends[::-1] if is_backward else ends))
    return canvas


def _ring(rng: Random, split: Split, names: list[str], *, is_open: bool = False) -> Canvas:
    """Corners of a rectangle joined clockwise; an open ring lacks the last arrow."""
    canvas = Canvas(rng, split, rng.choices(((96, 192), (192, 192), (96, 288)), (8, 1, 1))[0])
    canvas.fit(names, canvas.width / 2 - 26)
    has_rim = rng.random() < 0.6
    canvas.phase = 0 if has_rim else canvas.phase  # boxes fill their rows to the edge
    upper = rng.randint(0, 1)
    lower = canvas.num_rows - 1 - rng.randint(0, 1)
    a, b = canvas.width * 0.24, canvas.width * 0.76
    corners = [(upper, a), (upper, b), (lower, b), (lower, a)][: len(names)]
    edges = [
        _box(canvas, name, row, x, has_rim) for name, (row, x) in zip(names, corners, strict=True)
    ]
    y_up, y_low = canvas.row_centre(upper), canvas.row_centre(lower)
    canvas.arrow((edges[0][1], y_up), (edges[1][0] - 1, y_up))
    canvas.arrow((b, y_up + 10), (b, y_low - 10))
    if len(names) == 4:
        canvas.arrow((edges[2][0] - 1, y_low), (edges[3][1], y_low))
    elif not is_open:
        # three corners: the way back runs along the bottom, then up
        canvas.line((edges[2][0] - 1, y_low), (a, y_low), 2)
    if not is_open:
        start = y_low - 10 if len(names) == 4 else y_low
        canvas.arrow((a, start), (a, y_up + 10))
    return canvas


# -- questions --------------------------------------------------------------------------------


def _ask(rng: Random, canvas: Canvas, chain: Chain) -> Draft:
    main = [_order(rng, chain), _neighbour(rng, chain, 1), _gone(rng, chain)]
    more = [_neighbour(rng, chain, -1), _number(rng, chain), _two_on(rng, chain)]
    if not chain.is_cycle:
        more.append(_ends(rng, chain))
    return Draft(canvas, tuple(main), tuple(more), _long(rng, chain))


def _order(rng: Random, chain: Chain) -> Turn:
    return turn(
        rng,
        (
            f"In which order do the arrows of the {chain.noun} run?",
            f"Name the parts of the {chain.noun} in order.",
            f"Follow the arrows of the {chain.noun}.",
        ),
        f"{chain.told}.",
    )


def _neighbour(rng: Random, chain: Chain, step: int) -> Turn:
    """What comes right after (step 1) or before (step -1) a part."""
    number = len(chain.names)
    choices = (
        range(number) if chain.is_cycle else range(number - 1) if step > 0 else range(1, number)
    )
    i = rng.choice(choices)
    name, other = chain.names[i], chain.names[(i + step) % number]
    if chain.noun == "food chain":
        if step > 0:
            questions = (f"What eats {name}?", f"Which animal eats {name} in the food chain?")
            return turn(rng, questions, f"{chain.told}, so <{other}> eats {name}.")
        questions = (f"What does {name} eat?", f"What is the food of {name}?")
        return turn(rng, questions, f"{chain.told}, so {name} eats <{other}>.")
    if step > 0:
        return turn(
            rng,
            (
                f"What comes after {name}?",
                f"What follows {name} in the {chain.noun}?",
                f"Where does the arrow from {name} lead?",
            ),
            f"{chain.told}, so <{other}> comes after {name}.",
        )
    return turn(
        rng,
        (f"What comes before {name}?", f"What leads to {name} in the {chain.noun}?"),
        f"{chain.told}, so <{other}> comes before {name}.",
    )


def _gone(rng: Random, chain: Chain) -> Turn:
    """What happens if a part is removed."""
    number = len(chain.names)
    i = rng.randrange(number if chain.is_cycle else number - 1)
    name, after = chain.names[i], chain.names[(i + 1) % number]
    later = chain.names[(i + 2) % number] if chain.is_cycle or i + 2 < number else ""
    if chain.noun == "food chain":
        questions = (f"What happens if {name} dies out?", f"Who loses food without {name}?")
        text = f"{chain.told}, so without {name} <{after}> loses its food"
        text += f", and then <{later}> has less to eat." if later else ", and it is the last."
        return turn(rng, questions, text)
    return turn(
        rng,
        (
            f"What happens if {name} is removed from the {chain.noun}?",
            f"What is cut off if {name} is missing?",
        ),
        f"{chain.told}, so without {name} nothing reaches <{after}>"
        + (f", and then <{later}> stops too." if later else ", and it is the last."),
    )


def _number(rng: Random, chain: Chain) -> Turn:
    return turn(
        rng,
        (f"How many parts does the {chain.noun} have?", f"Count the parts of the {chain.noun}."),
        f"The parts are {chain.joined}, so there are <{NUMBERS[len(chain.names)]}>.",
    )


def _two_on(rng: Random, chain: Chain) -> Turn:
    number = len(chain.names)
    i = rng.randrange(number if chain.is_cycle else number - 2)
    name, via, goal = chain.names[i], chain.names[(i + 1) % number], chain.names[(i + 2) % number]
    return turn(
        rng,
        (f"What comes two steps after {name}?", f"Where are we two arrows after {name}?"),
        f"{chain.told}. After {name} comes <{via}>, and after <{via}> comes <{goal}>.",
    )


def _ends(rng: Random, chain: Chain) -> Turn:
    return turn(
        rng,
        (
            f"Where does the {chain.noun} start and where does it end?",
            f"What are the first and the last part of the {chain.noun}?",
        ),
        f"{chain.told}, so it starts with <{chain.names[0]}> and ends with <{chain.names[-1]}>.",
    )


def _long(rng: Random, chain: Chain) -> Turn:
    names = [*chain.names, chain.names[0]] if chain.is_cycle else chain.names
    verb = "is eaten by" if chain.noun == "food chain" else "leads to"
    steps = " ".join(
        f"The {ORDINALS[i]} arrow shows that <{a}> {verb} <{b}>."
        for i, (a, b) in enumerate(pairwise(names))
    )
    end = (
        "The last arrow closes the ring."
        if chain.is_cycle
        else f"It ends with <{chain.names[-1]}>."
    )
    return turn(
        rng,
        (
            f"Describe the {chain.noun} in detail.",
            f"Explain the {chain.noun} arrow by arrow.",
            f"Explain how the {chain.noun} works.",
        ),
        f"The diagram shows a {chain.noun} with <{NUMBERS[len(chain.names)]}> parts. {steps} {end}",
    )
