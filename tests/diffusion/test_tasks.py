"""The synthetic tasks: true references, disjoint splits, one draw on every machine."""

import json
import re

import pytest

from varifocal.diffusion import formats, tasks
from varifocal.diffusion._tokenizer import train_tokenizer
from varifocal.diffusion.tasks import Item
from varifocal.errors import BadOption

SCORED = [name for name in tasks.names() if tasks.find(name).is_scored]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(60)


def items(name: str, number: int = 100) -> list[Item]:
    return [tasks.find(name).draw(index, "test") for index in range(number)]


def test_a_draw_is_the_same_on_every_machine():
    chain, lookup = tasks.find("chain"), tasks.find("lookup")
    assert chain.draw(3, "test").prompt == "chain: a7 b1 c2 d8 e1 f8\n"
    assert lookup.draw(3, "valid").prompt == "lookup: x419 t060 b700 g646 ;g\n"


@pytest.mark.parametrize("name", tasks.names())
def test_splits_share_no_prompt(name):
    task = tasks.find(name)
    drawn = {
        split: {task.draw(index, split).prompt for index in range(150)}
        for split in ("train", "valid", "test")
    }
    assert not drawn["train"] & drawn["test"]
    assert not drawn["train"] & drawn["valid"]
    assert not drawn["valid"] & drawn["test"]
    assert len(drawn["test"]) > 140


@pytest.mark.parametrize("name", SCORED)
def test_the_right_text_scores_and_another_items_does_not(name):
    score = formats.find(tasks.find(name).format).score
    for item in items(name):
        assert score(item.answer, item.reference)
    texts = [(a, b) for a, b in zip(items(name), items(name)[1:], strict=False)]
    wrong = [score(a.answer, b.reference) for a, b in texts if a.reference != b.reference]
    assert wrong
    assert not any(wrong)


@pytest.mark.parametrize("name", tasks.names())
def test_a_text_fits_its_canvas_and_the_prompt_is_short(name, tokenizer):
    task = tasks.find(name)
    for item in items(name):
        assert len(tokenizer(item.answer)["input_ids"]) < task.canvas
        assert len(tokenizer(item.prompt)["input_ids"]) <= 60


def test_between_them_the_tasks_use_seven_formats():
    wanted = {"tag", "mc_letter", "yes_no", "number_hash", "number_phrase", "boxed", "json"}
    assert {tasks.find(name).format for name in SCORED} == wanted


def test_lookups_tell_the_value_of_the_key():
    for item in items("lookup"):
        asked, key = item.prompt.removeprefix("lookup: ").strip().split(" ;")
        assert dict((pair[0], pair[1:]) for pair in asked.split())[key] == item.reference


def test_choices_are_the_commonest_symbol_or_the_parity():
    kinds = set()
    for item in items("choice"):
        question, options = item.prompt.removeprefix("choice: ").split(" ? ")
        *drawn, kind = question.split()
        named = dict(zip(*[iter(options.split())] * 2, strict=True))
        wanted = (
            max("xyz", key=drawn.count) if kind == "most" else ("even", "odd")[int(drawn[0]) % 2]
        )
        assert named[item.reference] == wanted
        kinds.add(kind)
    assert kinds == {"most", "is"}


def test_comparisons_say_yes_when_the_first_is_larger():
    for item in items("compare"):
        first, second = map(int, re.findall(r"\d+", item.prompt))
        assert item.reference == ("yes" if first > second else "no")


def test_chains_are_running_sums_of_random_length():
    lengths = set()
    for item in items("chain"):
        summands = [int(digit) for digit in re.findall(r"[a-z](\d)", item.prompt)]
        steps = re.findall(r" ([a-z])(\d)=(\d\d)", item.answer)
        sums = [sum(summands[: n + 1]) for n in range(len(summands))]
        assert [int(step[2]) for step in steps] == sums
        assert int(item.reference) == sums[-1]
        lengths.add(len(summands))
    assert len(lengths) > 8


def test_additions_are_right_in_every_place():
    for item in items("addition"):
        pairs = re.findall(r"[a-z](\d)\+(\d)", item.prompt)
        first, second = ("".join(digits) for digits in zip(*pairs, strict=True))
        assert int(item.reference) == int(first) + int(second)
        results = re.findall(r"=\d(\d)", item.answer)
        assert "".join(reversed(results)) == item.reference


def test_searches_find_the_only_way():
    for item in items("search"):
        edges = re.findall(r"(\w)<(\w)", item.prompt)
        parents = dict(edges)
        assert len(parents) == len(edges)
        ends = re.search(r"\((\w),(\w)\)", item.prompt)
        assert ends is not None
        start, goal = ends.groups()
        assert parents[start] == "0"
        way = [goal]
        while way[-1] != start:
            way.append(parents[way[-1]])
        assert json.loads(item.reference) == {"first": way[-2], "steps": len(way) - 1}
        assert len(edges) > len(way)  # it branches


def test_a_first_match_of_a_distractor_misleads():
    misled = 0
    for item in items("distractor"):
        values = re.findall(r"[a-z](\d\d)", item.prompt)
        assert item.reference == max(values)
        first = re.search(r"boxed\{(\d+)\}", item.answer)
        assert first is not None
        misled += first[1] != item.reference
    assert misled > 60


def test_no_parser_finds_an_answer_in_a_broken_text():
    parser = formats.find(tasks.find("broken").format)
    assert not any(parser.extract(item.answer) for item in items("broken"))


def test_an_unknown_task_is_refused_with_those_that_exist():
    with pytest.raises(BadOption, match=r"'chains'.*chain, choice"):
        tasks.find("chains")
