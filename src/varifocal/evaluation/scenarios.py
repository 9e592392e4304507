"""The kinds of requests on which TABED was measured, with drawn pictures. [TABED, 4.1, App. I, J]

One turn and two; one picture, two and five; pictures as the embedded models learned from them, and
others. The demo's families stand for the published sets that a model knows. All else is beyond what
the embedded target was trained on, which is one picture a request, upright, with letters of 11 to
16 pixels on even lines. Its answers there need not be right: what counts is how far a drafter
foresees them. Everything is drawn from the family and a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, islice
from random import Random
from typing import Final

from PIL import Image, ImageDraw, ImageFont, ImageOps

from varifocal.demo import words
from varifocal.demo.canvas import FONT_FOLDER, HELD_OUT_FACE
from varifocal.demo.sample import Sample, Turn
from varifocal.demo.world import FAMILIES, draw
from varifocal.evaluation.suites import Case
from varifocal.request import Message, Part, Request

LIMIT = 5  # requests a family, where the caller names no limit
MAX_NEW_TOKENS = 128  # [TABED, 4.1]
_APART: Final = 10_000  # from the pictures of one family, or of the demo suite, to the next one's
_WIDE: Final = (192, 96)  # pixels across and down of most pictures
_PAPERS: Final = ((252, 244, 214), (214, 232, 250), (30, 42, 66), (66, 24, 38))
_INKS: Final = ((60, 20, 90), (110, 14, 20), (255, 240, 150), (210, 255, 200))


@dataclass(frozen=True)
class Asked:
    """A conversation, and what is known of the answer to its last turn."""

    parts: tuple[Part, ...]
    later: tuple[tuple[Part, ...], ...] = ()
    answer: str | None = None
    fields: tuple[str, ...] = ()


def cases(families: Sequence[str], limit: int | None = None) -> list[Case]:
    """The first `limit` of each family, in this order; those of a second turn have a `later`."""
    return [
        _case(family, number)
        for family in families
        for number in range(LIMIT if limit is None else limit)
    ]


def names(*, with_later: bool = True) -> list[str]:
    """All families, group by group; those of a second turn only if wanted."""
    return [
        family for group, own in GROUPS.items() for family in own if with_later or group != _SECOND
    ]


def _case(family: str, number: int) -> Case:
    if family in FAMILIES:
        asked = _known(family, number)
    else:
        asked = _MAKERS[family](_APART * (1 + list(_MAKERS).index(family)) + number)
    name = f"{family}-{number}"
    request = Request(
        messages=(Message("user", asked.parts),), max_new_tokens=MAX_NEW_TOKENS, id=name
    )
    return Case(
        id=name,
        family=family,
        request=request,
        later=tuple(Message("user", parts) for parts in asked.later),
        reference=asked.answer,
        fields=asked.fields,
    )


# -- pictures ----------------------------------------------------------------------------------


def _sample(family: str, number: int, at_least: int = 1) -> Sample:
    """A picture of a family, about which there are so many questions."""
    drawn = (draw(family, number + tries * _APART**2, "test") for tries in count())
    return next(sample for sample in drawn if len(sample.turns) >= at_least)


def _any(number: int, step: int = 0) -> Sample:
    """A picture; all families come in turn."""
    return _sample(FAMILIES[(number * 4 + step) % len(FAMILIES)], number)


def _turned(number: int) -> Asked:
    """On its side, as a camera leaves it that knows no gravity."""
    sample = _any(number)
    return _about(sample.image.transpose(Image.Transpose.ROTATE_90), sample.turns[0])


def _inverted(number: int) -> Asked:
    """As a negative: light becomes dark, and every colour another one."""
    sample = _any(number)
    return Asked((ImageOps.invert(sample.image), sample.turns[0].question))


def _collage(number: int) -> Asked:
    """Two pictures of different kinds on one page; the lower one is asked about."""
    wide = (s for step in count() if (s := _any(number, step)).image.size == _WIDE)
    upper, lower = islice(wide, 2)
    page = Image.new("RGB", (_WIDE[0], 2 * _WIDE[1]))
    page.paste(upper.image, (0, 0))
    page.paste(lower.image, (0, _WIDE[1]))
    return _about(page, lower.turns[0])


def _poster(number: int) -> Asked:
    """Large letters of a face that no lesson had, on lines that rise or fall."""
    rng = Random(f"poster/{number}")
    style = rng.randrange(len(_PAPERS))
    picture = Image.new("RGB", (192, 192), _PAPERS[style])
    lines = [words.word(rng, "test", 8), words.code(rng), words.word(rng, "test", 8)]
    for place, line in enumerate(lines):
        size = rng.randint(18, 26)
        font = ImageFont.truetype(str(FONT_FOLDER / f"{HELD_OUT_FACE.font}.ttf"), size)
        room = 188 / max(font.getlength(line), 188)  # 1 where it fits
        font = font.font_variant(size=int(size * room))
        at = (rng.uniform(2, 190 - font.getlength(line)), 34 + 62 * place + rng.uniform(-8, 8))
        mask = Image.new("L", picture.size, 0)
        ImageDraw.Draw(mask).text(at, line, fill=255, font=font, anchor="lm")
        leaning = mask.rotate(rng.uniform(-9, 9), Image.Resampling.BICUBIC, center=at)
        picture.paste(_INKS[style], mask=leaning)
    return _about(picture, Turn("Read the text.", " / ".join(lines), tuple(lines)))


def _about(picture: Image.Image, turn: Turn) -> Asked:
    return Asked((picture, turn.question), answer=turn.answer, fields=turn.fields)


def _known(family: str, number: int) -> Asked:
    """The how-manyth request of the demo suite."""
    sample = draw(family, number, "test")
    return _about(sample.image, sample.turns[0])


# -- several pictures --------------------------------------------------------------------------


def _changes(number: int) -> Asked:
    """A picture, and the same without one of its shapes. After Spot-the-Difference."""
    sample = _sample(("general", "spatial")[number % 2], number)
    thing = Random(f"changes/{number}").choice(sample.things)
    left, top, right, bottom = thing.box
    after = sample.image.copy()
    paper = after.getpixel((0, 0))
    ImageDraw.Draw(after).rectangle((left - 3, top - 3, right + 3, bottom + 3), fill=paper)
    question = "Explain the differences between the first and the second picture."
    return Asked((sample.image, after, question))


def _edits(number: int) -> Asked:
    """Two pictures of a family. After IEdit and MagicBrush."""
    family = ("chart", "document", "diagram", "text")[number % 4]
    before, after = (_sample(family, 2 * number + n).image for n in range(2))
    question = "Write instructions for editing the first picture so that it becomes the second."
    return Asked((before, after, question))


def _story(number: int) -> Asked:
    """Five pictures, the first four with captions. After PororoSV and VIST."""
    samples = [_sample("general", 5 * number + n) for n in range(5)]
    parts: list[Part] = ["The first pictures tell a story. How does it end in the last one?"]
    for place, sample in enumerate(samples, start=1):
        caption = f" {sample.caption}" if place < len(samples) else ""
        parts += [sample.image, f"\nCaption {place}:{caption}"]
    return Asked(tuple(parts))


def _last(number: int) -> Asked:
    """Five pictures of different families, the last of shapes."""
    samples = [_any(number, step) for step in range(4)] + [_sample("general", number)]
    return Asked((*(s.image for s in samples), "Describe the last picture in detail."))


# -- second turns ------------------------------------------------------------------------------


def _related(number: int) -> Asked:
    """Another question about the picture, which is not shown again. After ConvBench."""
    family = ("general", "document", "spatial", "chart")[number % 4]
    first, second, *_ = (sample := _sample(family, number, at_least=2)).turns
    return Asked(
        (sample.image, first.question), ((second.question,),), second.answer, second.fields
    )


def _next(number: int) -> Asked:
    """A question about another picture of the family."""
    family = ("document", "general", "chart", "text")[number % 4]
    first, second = (_sample(family, 2 * number + n) for n in range(2))
    asked = second.turns[0]
    return Asked(
        (first.image, first.turns[0].question),
        ((second.image, asked.question),),
        asked.answer,
        asked.fields,
    )


def _unrelated(number: int) -> Asked:
    """A sum in words, which no picture helps with. After GSM8K."""
    rng = Random(f"unrelated/{number}")
    first = _any(number)
    a, b, c = (rng.randint(11, 99) for _ in range(3))
    who, other = words.draw_some(rng, "test", words.NAMES, 2)
    question, answer = rng.choice(
        (
            (f"What is {a} plus {b}?", a + b),
            (f"The numbers are {a}, {b} and {c}. What is the total?", a + b + c),
            (f"{who} has {a} pens and {other} has {b}. How many do they have in all?", a + b),
        )
    )
    return Asked((first.image, first.turns[0].question), ((question,),), str(answer))


def _after_five(number: int) -> Asked:
    """A question about one of five pictures, which came with the first turn."""
    place = ("first", "second", "third", "fourth")[number % 4]
    return Asked(_last(number).parts, ((f"And what does the {place} picture show?",),))


# -- the table ---------------------------------------------------------------------------------

_SECOND: Final = "second turn"
_Makers = dict[str, Callable[[int], Asked]]
_UNSEEN: Final[_Makers] = {
    "poster": _poster,
    "turned": _turned,
    "inverted": _inverted,
    "collage": _collage,
}
_TWO: Final[_Makers] = {"two-changes": _changes, "two-edits": _edits}
_FIVE: Final[_Makers] = {"five-story": _story, "five-last": _last}
_LATER: Final[_Makers] = {
    "second-related": _related,
    "second-picture": _next,
    "second-unrelated": _unrelated,
    "second-of-five": _after_five,
}
_MAKERS: Final = _UNSEEN | _TWO | _FIVE | _LATER
# By what sets them apart; a paper's averages are taken over the families of a group.
GROUPS: Final[dict[str, tuple[str, ...]]] = {
    "as trained": FAMILIES,
    "unseen pictures": tuple(_UNSEEN),
    "two pictures": tuple(_TWO),
    "five pictures": tuple(_FIVE),
    _SECOND: tuple(_LATER),
}
