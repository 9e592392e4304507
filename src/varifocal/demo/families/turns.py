"""Several questions in a row about one picture of any kind (after MMSpec), one of them long."""

from random import Random

from varifocal.demo.asking import Draft, distinct
from varifocal.demo.families import chart, diagram, document, general, spatial, text
from varifocal.demo.sample import Split, Turn

_KINDS = (
    document.receipt,
    document.receipt,
    document.form,
    text.sign,
    text.notice,
    chart.bars,
    chart.columns,
    general.draw,
    general.draw,
    spatial.draw,
    diagram.draw,
)


def draw(rng: Random, split: Split) -> Draft:
    return rng.choice(_KINDS)(rng, split)


def pick(rng: Random, draft: Draft) -> tuple[Turn, ...]:
    """Three to five turns, the full description first or in the middle."""
    others = [*draft.main, *draft.more]
    rng.shuffle(others)
    num_turns = rng.randint(3, 5)
    place = rng.choice((0, 0, 1, 2))
    return distinct([*others[:place], draft.long, *others[place:]], num_turns)
