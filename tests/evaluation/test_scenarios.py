"""Scenarios are drawn alike everywhere, and later turns follow on what the target itself said."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tiny import picture, tiny_target

from varifocal.demo.world import FAMILIES
from varifocal.drafters import load_drafter
from varifocal.engine import Engine
from varifocal.errors import BadOption, VarifocalError
from varifocal.evaluation.bench import BenchConfig, run_bench
from varifocal.evaluation.identity import request_digest
from varifocal.evaluation.scenarios import GROUPS, MAX_NEW_TOKENS, cases, names
from varifocal.evaluation.suites import Case, load_suite, read_line
from varifocal.evaluation.turns import answered, followed
from varifocal.request import Message, Request


@pytest.fixture(scope="module")
def drawn():
    """Two of each family, by family."""
    made = cases(names(), 2)
    return {family: [case for case in made if case.family == family] for family in names()}


def digests(made):
    return [request_digest(followed(case, lambda request: "said").request) for case in made]


def test_the_same_numbers_give_the_same_requests_whatever_else_is_drawn(drawn):
    for family in ("poster", "two-changes", "second-unrelated", "five-story"):
        again = cases([family], 2)
        assert digests(again) == digests(drawn[family])
        assert digests(cases([family], 1)) == digests(again)[:1]


def test_no_two_requests_are_the_same(drawn):
    every = [digest for made in drawn.values() for digest in digests(made)]
    assert len(set(every)) == len(every) == 2 * len(names())


def test_each_family_has_its_pictures_and_turns(drawn):
    for group, families in GROUPS.items():
        for family in families:
            for case in drawn[family]:
                shown = len(case.request.images)
                assert shown == {"two pictures": 2, "five pictures": 5}.get(
                    group, 5 if family == "second-of-five" else 1
                )
                assert bool(case.later) == (group == "second turn")
                assert case.request.max_new_tokens == MAX_NEW_TOKENS
    (turn,) = drawn["second-picture"][0].later
    assert sum(not isinstance(part, str) for part in turn.parts) == 1
    for family in ("second-related", "second-unrelated", "second-of-five"):
        assert all(isinstance(part, str) for c in drawn[family] for part in c.later[0].parts)


def test_families_as_trained_are_those_of_the_demo_suite(drawn):
    demo = load_suite("demo", limit=2)
    ours = [case for family in FAMILIES for case in drawn[family]]
    for case, same in zip(ours, demo, strict=True):
        assert case.request.messages == same.request.messages
        assert (case.reference, case.fields) == (same.reference, same.fields)


def test_a_changed_picture_lacks_one_shape_of_the_other(drawn):
    for case in drawn["two-changes"]:
        before, after = case.request.images
        differs = (np.asarray(before) != np.asarray(after)).any(-1)
        assert before.size == after.size and 0.005 < differs.mean() < 0.2


def test_the_suite_has_its_families_and_second_turns_where_they_can_be_asked():
    made = load_suite("scenarios", limit=1, families=["turned", "second-related"], with_later=True)
    assert [case.family for case in made] == ["turned", "second-related"]
    without = load_suite("scenarios", limit=1)
    assert not any(case.later for case in without)
    assert {case.family for case in without} == set(names(with_later=False))
    with pytest.raises(BadOption, match="no family second-related"):
        load_suite("scenarios", families=["second-related"])


# -- turns -------------------------------------------------------------------------------------


def talk(**more):
    """Three turns, the second with a picture."""
    later = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "and this?"}]},
        {"role": "user", "content": "why?"},
    ]
    return {"id": "a", "family": "chat", "messages": [{"role": "user", "content": "what?"}],
            "later": later, "images": ["a.png"], "reference": "a dog", **more}  # fmt: skip


@pytest.fixture
def file(tmp_path):
    picture(size=(48, 32)).save(tmp_path / "a.png")
    path = tmp_path / "suite.jsonl"
    lines = [talk(), talk(id="b", family="other", later=[], images=[]), talk(id="c")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_every_turn_of_a_file_is_a_request_of_a_family_of_its_own(file):
    made = load_suite(file, with_later=True)
    assert [case.id for case in made] == ["a", "c", "a/2", "c/2", "a/3", "c/3", "b"]
    assert [case.family for case in made[::2]] == ["chat", "chat/2", "chat/3", "other"]
    assert [len(case.later) for case in made] == [0, 0, 1, 1, 2, 2, 0]
    assert made[2].later[0].parts[0].size == (48, 32)
    assert made[0].reference == "a dog" and made[2].reference is None
    assert [case.id for case in load_suite(file, limit=1, with_later=True)] == [
        "a", "a/2", "a/3", "b",
    ]  # fmt: skip
    assert [case.id for case in load_suite(file)] == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("later", "said"),
    [
        ("why?", "later must be a list"),
        ([{"role": "assistant", "content": "a dog"}], "messages of the user"),
        ([{"role": "user", "content": " "}], "prompt is empty"),
        ([{"role": "user", "content": [{"type": "image"}]}], "picture part without a path"),
    ],
)
def test_later_turns_that_cannot_be_asked_are_refused(tmp_path, later, said):
    picture().save(tmp_path / "a.png")
    with pytest.raises(VarifocalError, match=said):
        read_line(talk(later=later, images=[]), tmp_path)


def test_each_answer_before_a_turn_is_the_targets_own_and_asked_for_once(monkeypatch):
    target = tiny_target()
    asked = []
    generate = Engine.generate
    monkeypatch.setattr(
        Engine, "generate", lambda self, request: asked.append(request) or generate(self, request)
    )
    first = Request(messages=(Message("user", (picture(), "what?")),), max_new_tokens=30)
    turns = tuple(Message("user", (text,)) for text in ("and?", "why?"))
    case = Case(id="a", family="f", request=first, later=turns)
    whole, other = answered([case, replace(case, later=turns[:1])], target, max_new_tokens=4)
    assert [len(request.messages) for request in asked] == [1, 3]
    assert {request.max_new_tokens for request in asked} == {4}
    said = [message.parts[0] for message in whole.request.messages if message.role == "assistant"]
    engine = Engine(target, load_drafter("plain", target))
    plain = generate(engine, replace(first, max_new_tokens=4)).text
    assert said[0] == plain and len(said) == 2
    assert other.request.messages == whole.request.messages[:3]
    assert not whole.later and whole.request.max_new_tokens == 30


def test_a_bench_of_conversations_compares_texts_turn_by_turn(file):
    target = tiny_target()
    config = BenchConfig(
        drafters="lookup:nodes=4", suite="file", repeats=1, warm_up=0, draws=10, max_new_tokens=6
    )
    result = run_bench(config, load_suite(file, limit=1, with_later=True), target)
    assert {row.family for row in result.rows} == {"chat", "chat/2", "chat/3", "other"}
    assert result.means["lookup:nodes=4"].identical == 4
