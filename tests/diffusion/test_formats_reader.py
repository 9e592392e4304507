"""How the answer of one canvas is followed from step to step, and which tokens it stands on."""

from random import Random

import numpy as np
import pytest
from tokenizations import MASK, byte_level, sentence_piece, tokenized, vocabulary_of

from varifocal.diffusion import formats
from varifocal.diffusion.formats import Ending, Format, Match


def ids_of(text: str, *, stopped: bool = False) -> list[int]:
    ids = tokenized(text, byte_level(), Random(text))
    return [*ids, byte_level().eos_token_id] if stopped else ids


def reader_of(format: str | Format):
    return formats.find(format).reader(byte_level(), vocabulary_of(byte_level()))


class Counted(Format):
    """A format of a user's own: the text in front of a bar. Counts how often it is asked."""

    located = 0
    judged = 0

    def locate(self, text):
        Counted.located += 1
        at = text.find("|")
        if at < 1:
            return None
        ending = Ending.CLOSED
        return Match(value=text[:at], begin=0, answer=(0, at), end=at + 1, ending=ending)

    def is_sound(self, value):
        Counted.judged += 1
        return value != "bad"

    def agrees(self, value, reference):
        return value == reference


def test_a_format_of_ones_own_is_passed_as_it_is():
    mine = Counted(name="mine", hint="")
    assert formats.find(mine) is mine
    assert reader_of(mine).extract(ids_of("yes|")).value == "yes"
    assert not reader_of(mine).extract(ids_of("bad|")).closed
    assert mine.score("yes|no", "yes")
    assert not mine.score("bad|", "bad")


def test_nothing_is_parsed_again_while_nothing_before_the_stop_has_changed():
    reader = reader_of(Counted(name="mine", hint=""))
    ids = ids_of("12|", stopped=True)
    Counted.located = Counted.judged = 0
    first = reader.extract([*ids, 7])
    assert reader.extract(np.array([*ids, 9])) is first
    assert (Counted.located, Counted.judged) == (1, 1)
    assert reader.extract(ids_of("12|4", stopped=True)).value == "12"
    assert (Counted.located, Counted.judged) == (2, 1)  # the value is known to be sound


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mc_letter", "The answer is (B"),
        ("number_hash", "#### 12"),
        ("number_phrase", "The answer is 3."),
        ("short_span", "Bonn"),
        ("free", "a b"),
        ("grid16", "1234341221434321 "),
        ("code", "def f():\n    return 1"),
        ("tag", "<answer>5"),
    ],
)
def test_an_answer_at_the_end_is_closed_only_by_a_stop_token_which_the_span_has(name, text):
    open_one = reader_of(name).extract(ids_of(text))
    closed_one = reader_of(name).extract(ids_of(text, stopped=True))
    assert not open_one.closed
    assert closed_one.closed
    assert closed_one.span == (*open_one.span, len(ids_of(text)))
    assert closed_one.ids[-1] == byte_level().eos_token_id


@pytest.mark.parametrize("text", ['{"a": 1', "def f():\n", "```python\nx = (\n```"])
def test_a_stop_token_does_not_mend_a_broken_answer(text):
    name = "json" if "{" in text else "code"
    assert not reader_of(name).extract(ids_of(text, stopped=True)).closed


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("boxed", "\\boxed{41} ?\nso"),
        ("tag", "<answer>41</answer> or"),
        ("expr", "\\boxed{4 + 1} ?"),
        ("mc_letter", "the answer is B. Or"),
    ],
)
def test_an_answer_that_a_later_one_would_replace_is_closed_by_the_end_of_the_text(name, text):
    ids = ids_of(text)
    assert not reader_of(name).extract(ids).closed
    candidate = reader_of(name).extract([*ids, byte_level().eos_token_id])
    assert candidate.closed and candidate.span[-1] == len(ids)
    assert set(candidate.answer) < set(candidate.span)


def test_a_silent_token_between_an_answer_and_its_stop_is_part_of_the_span():
    # It may yet become a digit.
    mask = byte_level().convert_tokens_to_ids(MASK)
    ids = ids_of("#### 1")
    candidate = reader_of("number_hash").extract([*ids, mask, byte_level().eos_token_id])
    assert candidate.span[-2:] == (len(ids), len(ids) + 1)
    assert candidate.closed


def test_what_is_first_in_the_text_has_all_before_it_in_its_span():
    mask = byte_level().convert_tokens_to_ids(MASK)
    candidate = reader_of("mc_letter").extract([mask, *ids_of("B.")])
    assert (candidate.value, candidate.marker, candidate.span[0]) == ("B", 0, 0)


def test_an_empty_canvas_holds_no_answer():
    end = byte_level().eos_token_id
    for name in formats.names():
        assert reader_of(name).extract([]) is None
        assert reader_of(name).extract([end] * 4) is None


def test_positions_of_the_answer_are_those_of_its_tokens():
    ids = ids_of("so #### 1,234\n")
    candidate = reader_of("number_hash").extract(ids)
    assert byte_level().decode([ids[i] for i in candidate.answer]).strip() == "1,234"
    assert set(candidate.answer) < set(candidate.span)
    assert candidate.ids == tuple(ids[i] for i in candidate.span)


def test_the_space_that_a_decoder_strips_is_no_part_of_the_text():
    tokenizer = sentence_piece()
    reader = formats.find("free").reader(tokenizer, vocabulary_of(tokenizer))
    space = tokenizer.convert_tokens_to_ids("▁")
    assert reader.extract([space, space]) is None
    assert reader.extract(tokenized("né €", tokenizer, Random(1))).value == "né €"
