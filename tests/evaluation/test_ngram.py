from types import SimpleNamespace

import pytest

from varifocal.evaluation.ngram import NgramTable, Walk, ngram_walks, walk
from varifocal.evaluation.suites import Case
from varifocal.request import ask


def table(*texts, order=5):
    made = NgramTable(order)
    for text in texts:
        made.add(text)
    return made


def test_longest_known_context_decides():
    made = table([1, 2, 3], [1, 2, 3], [9, 2, 4])
    assert made.guess([1, 2]) == 3
    assert made.guess([9, 2]) == 4
    assert made.guess([8, 2]) == 3  # only `2` is known
    assert made.guess([]) == 1  # most answers start so


def test_of_equals_the_smallest_is_guessed():
    assert table([5, 2], [5, 1]).guess([5]) == 1


def test_unknown_context_backs_off_to_the_commonest_token():
    assert table([3, 3, 3]).guess([77]) == 3
    assert table().guess([1]) is None


def test_a_text_can_be_taken_out_again():
    made = table([1, 2], [1, 3])
    made.add([1, 2], times=-1)
    assert made.guess([1]) == 3


def test_perfect_table_reaches_depth_plus_one():
    text = list(range(29))  # 28 after the first: 4 rounds of 7
    assert walk(table(text), text) == Walk(28, 4)


def test_empty_table_is_plain_decoding():
    assert walk(table(), [1, 2, 3, 4]) == Walk(3, 3)
    assert Walk(3, 3).tau == 1.0


def test_what_lies_behind_the_end_does_not_count():
    longer = list(range(20))
    assert walk(table(longer), longer[:5]) == Walk(4, 1)


def test_text_of_one_token_has_no_rounds():
    assert walk(table([1]), [1]) == Walk(0, 0)
    assert Walk(0, 0).tau == 1.0


@pytest.fixture
def target():
    """Letters are tokens; 0 ends."""
    tokenizer = lambda text, add_special_tokens: {"input_ids": [ord(c) for c in text]}  # noqa: E731
    return SimpleNamespace(tokenizer=tokenizer, eos_ids=frozenset({0}))


def case(reference):
    return Case(id="x", family="f", request=ask("?"), reference=reference)


def test_suite_teaches_each_case_only_the_others(target, monkeypatch):
    answers = [[*map(ord, "abcdefg"), 0], [*map(ord, "abcdefg"), 0], [*map(ord, "xyz"), 0]]
    cases = [case("abcdefg"), case(None), case("xyz")]
    walks = unhooked(target, cases, answers)
    assert walks[0] == walks[1] == Walk(7, 1)  # each learns it from the other
    assert walks[2].rounds == 3  # nobody else says xyz, but all end


def unhooked(target, cases, answers):
    """Past the type check: the fake is no HFTarget."""
    plain = ngram_walks
    while hasattr(plain, "__wrapped__"):
        plain = plain.__wrapped__
    return plain(target, cases, answers)
