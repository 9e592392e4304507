"""The drawn pictures are reproducible, split cleanly, and their records are true."""

from collections import Counter
from functools import cache
from random import Random
from statistics import mean

import pytest

from varifocal.demo import canvas, words, world
from varifocal.demo.sample import Sample, Split

SPLITS: tuple[Split, ...] = ("train", "valid", "test")
NUM_DRAWN = 40


@cache
def drawn(family: str, split: Split) -> tuple[Sample, ...]:
    """The first samples of a family, drawn once for all tests."""
    return tuple(world.draw(family, index, split) for index in range(NUM_DRAWN))


@cache
def practice() -> tuple[Sample, ...]:
    tower = [world.draw_tower(index) for index in range(NUM_DRAWN // 2)]
    return (*tower, *(world.draw_lines(index) for index in range(NUM_DRAWN // 2)))


@pytest.mark.parametrize("family", world.FAMILIES)
def test_a_sample_depends_on_family_index_and_split_alone(family: str) -> None:
    first = world.draw(family, 5, "valid")
    world.draw(family, 6, "valid")
    again = world.draw(family, 5, "valid")
    assert first.image.tobytes() == again.image.tobytes()
    assert (first.turns, first.glyphs, first.things) == (again.turns, again.glyphs, again.things)
    assert first.id == f"{family}-valid-5"
    assert first.family == family


@pytest.mark.parametrize("family", world.FAMILIES)
def test_no_picture_is_in_two_splits(family: str) -> None:
    seen: set[bytes] = set()
    for split in SPLITS:
        pictures = {sample.image.tobytes() for sample in drawn(family, split)}
        assert len(pictures) == NUM_DRAWN
        assert not pictures & seen
        seen |= pictures


@pytest.mark.parametrize("family", world.FAMILIES)
def test_fields_stand_in_the_answer_in_their_order(family: str) -> None:
    for split in SPLITS:
        for sample in drawn(family, split):
            for turn in sample.turns:
                assert turn.fields
                start = 0
                for field in turn.fields:
                    assert field
                    start = turn.answer.index(field, start) + len(field)


@pytest.mark.parametrize("family", world.FAMILIES)
def test_no_question_is_asked_twice_about_a_picture(family: str) -> None:
    for sample in drawn(family, "train"):
        questions = [turn.question for turn in sample.turns]
        assert len(set(questions)) == len(questions)
        assert (3 if family == "turns" else 2) <= len(questions) <= (5 if family == "turns" else 4)


@pytest.mark.parametrize("family", [*world.FAMILIES, "practice"])
def test_records_lie_inside_a_picture_of_an_allowed_size(family: str) -> None:
    samples = practice() if family == "practice" else drawn(family, "train")
    for sample in samples:
        width, height = sample.image.size
        assert sample.image.mode == "RGB"
        assert (height, width) in canvas.SIZES
        for left, top, right, bottom in (r.box for r in (*sample.glyphs, *sample.things)):
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
        assert all(glyph.char in canvas.ALPHABET for glyph in sample.glyphs)
        assert all(thing.shape in (*canvas.SHAPES, "bar") for thing in sample.things)
        assert all(thing.colour in canvas.COLOURS for thing in sample.things)


@pytest.mark.parametrize("family", [*world.FAMILIES, "practice"])
def test_no_character_is_printed_over_another(family: str) -> None:
    samples = practice() if family == "practice" else drawn(family, "train")
    for sample in samples:
        boxes = sorted(glyph.box for glyph in sample.glyphs)
        for i, (_, top, right, bottom) in enumerate(boxes):
            for left, other_top, _, other_bottom in boxes[i + 1 :]:
                if left >= right - 1:
                    break
                assert min(bottom, other_bottom) - max(top, other_top) <= 4, sample.id


@pytest.mark.parametrize("family", world.FAMILIES)
def test_capitals_and_digits_of_an_answer_are_printed_or_asked_about(family: str) -> None:
    """A word in capitals comes from the picture; sums also state numbers that follow from it."""
    for sample in drawn(family, "train"):
        printed = Counter(glyph.char for glyph in sample.glyphs)
        for turn in sample.turns:
            for field in turn.fields:
                if len(field) > 1 and field.isupper():
                    assert not Counter(c for c in field if c.isalpha()) - printed, (
                        sample.id,
                        field,
                    )


def test_answers_are_of_a_plausible_length() -> None:
    for family in world.FAMILIES:
        lengths = [len(t.answer) for sample in drawn(family, "train") for t in sample.turns]
        assert 30 < mean(lengths) < 320, family
        assert max(lengths) < 900, family


def test_about_half_of_the_yes_or_no_questions_are_false() -> None:
    answers = [t.answer for sample in drawn("yesno", "train") for t in sample.turns]
    assert all(answer.endswith((", so yes.", ", so no.")) for answer in answers)
    assert 0.35 < mean(answer.endswith("no.") for answer in answers) < 0.65


def test_about_two_thirds_of_the_pictures_have_the_usual_size() -> None:
    sizes = [s.image.size for family in world.FAMILIES for s in drawn(family, "train")]
    assert 0.55 < mean(size == (192, 96) for size in sizes) < 0.9


def test_the_held_out_face_is_drawn_for_the_test_only() -> None:
    rng = Random(0)
    for split, is_allowed in (("train", False), ("valid", False), ("test", True)):
        faces = [canvas.draw_face(rng, split, may_hold_out=True) for _ in range(300)]
        assert any(face.font == canvas.HELD_OUT_FACE.font for face in faces) == is_allowed


def test_held_out_words_are_drawn_for_the_test_only() -> None:
    rng = Random(0)
    held_out = set(words.GOODS[2::3])
    for split, is_allowed in (("train", False), ("valid", False), ("test", True)):
        drawn = {words.draw_from(rng, split, words.GOODS) for _ in range(500)}
        assert bool(drawn & held_out) == is_allowed


def test_reading_practice_answers_with_the_bare_text() -> None:
    for index in range(20):
        sample = world.draw_lines(index)
        assert sample.id == f"lines-train-{index}"
        printed = "".join(glyph.char for glyph in sample.glyphs)
        assert sample.turns[0].answer.replace(" / ", "").replace(" ", "") == printed
        assert not world.draw_tower(index).turns
