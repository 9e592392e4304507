"""Conversations to record: drawn, or from the same files that suites are read from."""

import json
from functools import cache

import pytest
from tiny import picture, tiny_target

from varifocal.demo.world import FAMILIES
from varifocal.errors import BadArtifact, BadOption, BadRequest
from varifocal.evaluation.suites import load_suite
from varifocal.request import Message, Request
from varifocal.training.examples import demo_examples, read_examples
from varifocal.training.recorder import record


@cache
def target():
    return tiny_target()


def test_demo_examples_have_all_turns_and_their_own_ids():
    count = len(FAMILIES)
    drawn = demo_examples("valid", 3, count)
    assert [e.family for e in drawn] == [FAMILIES[n % len(FAMILIES)] for n in range(3, 3 + count)]
    assert drawn[0].id == f"{drawn[0].family}-valid-3"
    messages = next(e for e in drawn if e.family == "text").read()
    assert len(messages) >= 4 and messages[-1].role == "assistant"
    assert len(Request(messages=messages[:-1]).images) == 1


def line(**changes):
    entry = {
        "id": "1",
        "family": "chart",
        "messages": [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}
        ],
        "images": ["a.png"],
        "reference": "A star.",
    }
    entry |= changes
    return json.dumps({k: v for k, v in entry.items() if v is not None})


def test_demo_examples_of_chosen_families_take_turns():
    made = demo_examples("train", 0, 4, ["chart", "text"])
    assert [example.family for example in made] == ["chart", "text", "chart", "text"]
    with pytest.raises(BadOption, match="no family charts"):
        demo_examples("train", 0, 4, ["charts"])


def test_a_jsonl_file_gives_conversations_with_pictures_beside_it(tmp_path):
    picture(1).save(tmp_path / "a.png")
    (tmp_path / "d.jsonl").write_text(line() + "\n\n" + line(id="2", reference=None))
    first, second = read_examples(tmp_path / "d.jsonl")
    assert first.family == "chart"
    user, answer = first.read()
    assert user.parts[0].size == (192, 96) and user.parts[1] == "What?"
    assert answer == Message("assistant", ("A star.",))
    assert len(second.read()) == 1


PLAIN = [{"role": "user", "content": "What?"}]


def shown(source, kind="image_url"):
    """A user's message whose picture part names its picture."""
    part = {"type": "image_url", "image_url": {"url": source}}
    part = part if kind == "image_url" else {"type": "image", "path": source}
    return [{"role": "user", "content": [part, {"type": "text", "text": "What?"}]}]


def read_lines(folder, *lines):
    (folder / "d.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return read_examples(folder / "d.jsonl")


@pytest.mark.parametrize("kind", ["image_url", "image"])
def test_a_part_that_names_its_picture_gets_that_one_and_no_other(tmp_path, kind):
    picture(1, (192, 96)).save(tmp_path / "a.png")
    picture(1, (96, 96)).save(tmp_path / "b.png")
    (example,) = read_lines(tmp_path, line(messages=shown("b.png", kind), images=None))
    assert example.read()[0].parts[0].size == (96, 96)
    with pytest.raises(BadRequest, match="0 picture parts without a path for 1 pictures"):
        read_lines(tmp_path, line(messages=shown("b.png", kind), images=["a.png"]))


def test_what_a_suite_reads_is_recorded_alike(tmp_path):
    picture(1).save(tmp_path / "a.png")
    lines = [
        line(id=None, family=None),
        line(messages=PLAIN),
        line(id="2", messages=shown("a.png"), images=None, max_new_tokens=5),
        line(id="", family="", reference=None, messages=[{"role": "user", "content": "a\u2028b"}]),
        line(id="3", messages=[*PLAIN, *PLAIN]),
    ]
    (tmp_path / "d.jsonl").write_bytes(b"\xef\xbb\xbf" + "\n".join(lines).encode())
    examples = read_examples(tmp_path / "d.jsonl")
    cases = {case.id: case for case in load_suite(tmp_path / "d.jsonl")}
    assert [e.id for e in examples] == ["line-1", "1", "2", "line-4", "3"]
    for example in examples:
        case = cases[example.id]
        answer = (Message("assistant", (case.reference,)),) if case.reference else ()
        assert example.read() == (*case.request.messages, *answer)
        assert example.family == case.family
    for bad in (line(fields=["x"], extra=1), line(max_new_tokens="5"), line(images="a.png")):
        (tmp_path / "bad.jsonl").write_text(bad)
        with pytest.raises(BadRequest):
            read_examples(tmp_path / "bad.jsonl")
        with pytest.raises(BadArtifact):
            load_suite(tmp_path / "bad.jsonl")


def test_the_reference_answers_the_last_question_and_no_answer(tmp_path):
    answered = [*PLAIN, {"role": "assistant", "content": "A star."}]
    (example,) = read_lines(tmp_path, line(messages=[*answered, *PLAIN], images=None))
    store = record(target(), [example], tmp_path / "out", answers="reference")
    said = store[0].tokens[store[0].supervised].tolist()
    assert target().decode(said) == "A star." * 2
    (open_end,) = read_lines(tmp_path, line(messages=PLAIN, images=None, reference=None))
    assert [m.role for m in open_end.read()] == ["user"]
    store = record(target(), [open_end], tmp_path / "says", answers="target", max_new_tokens=4)
    assert store.manifest.num_supervised > 0
    with pytest.raises(BadRequest, match="leave one of them out"):
        read_lines(tmp_path, line(messages=answered, images=None))


def test_pictures_are_decoded_when_an_example_is_read(tmp_path):
    picture(1, (192, 96)).save(tmp_path / "a.png")
    (example,) = read_lines(tmp_path, line())
    picture(1, (96, 96)).save(tmp_path / "a.png")
    assert example.read()[0].parts[0].size == (96, 96)


def test_all_bad_lines_are_listed_with_their_numbers(tmp_path):
    picture(1).save(tmp_path / "a.png")
    (tmp_path / "empty.png").write_bytes(b"")
    (tmp_path / "cut.png").write_bytes((tmp_path / "a.png").read_bytes()[:300])
    bad = [
        line(id="2", images=["no.png"]),
        line(id="3", images=["empty.png"]),
        line(id="4", images=["cut.png"]),
        "{",
        line(),
        line(id="5", extra=1),
        line(id="6", images=[]),
        line(id="7", images=["a.png", "a.png"]),
        line(id="8", messages=[{"role": "robot", "content": "x"}], images=None),
        line(id="9", family=7),
        line(id="10", messages=[{"role": "assistant", "content": "x"}], images=None),
        "[" * 100_000,
        line(id="11", messages=[{"role": "user", "content": " "}], images=None),
        line(id="12", messages=None),
    ]
    (tmp_path / "d.jsonl").write_text("\n".join([line(), *bad]))
    with pytest.raises(BadRequest) as caught:
        read_examples(tmp_path / "d.jsonl")
    text = str(caught.value)
    assert "14 of 15 lines" in text
    for number in range(2, 16):
        assert f"line {number}:" in text
    assert "no.png" in text and "used in line 1" in text and "extra" in text


def test_a_missing_file_says_what_its_format_is(tmp_path):
    with pytest.raises(BadRequest, match="JSONL"):
        read_examples(tmp_path / "none.jsonl")
