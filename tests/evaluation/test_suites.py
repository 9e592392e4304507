"""Suites: the drawn pictures and JSONL files, with every bad line named."""

import json

import pytest
from tiny import picture

from varifocal.errors import BadArtifact, BadOption
from varifocal.evaluation.suites import load_suite


def test_demo_suite_has_so_many_cases_of_each_chosen_family():
    cases = load_suite("demo", limit=2, families=["chart", "text"])
    assert [case.family for case in cases] == ["chart", "chart", "text", "text"]
    assert len({case.id for case in cases}) == 4
    for case in cases:
        assert case.request.images
        assert case.reference
        assert all(field in case.reference for field in case.fields)


def _file(folder, *lines):
    path = folder / "suite.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n")
    return path


def _line(**more):
    return {"messages": [{"role": "user", "content": "What is it?"}], **more}


def test_file_gives_its_cases_family_by_family_up_to_the_limit(tmp_path):
    picture().save(tmp_path / "a.png")
    lines = [
        _line(id="1", family="x", images=["a.png"], reference="noise"),
        _line(id="2", family="y"),
        "",
        _line(id="3", family="x", max_new_tokens=5),
        _line(id="4", family="x"),
    ]
    cases = load_suite(_file(tmp_path, *lines), limit=2)
    assert [case.id for case in cases] == ["1", "3", "2"]
    assert cases[0].request.images[0].size == picture().size
    assert cases[0].reference == "noise"
    assert cases[1].request.max_new_tokens == 5
    assert [c.id for c in load_suite(_file(tmp_path, *lines), families=["y"])] == ["2"]


def test_picture_parts_take_the_listed_pictures_in_order(tmp_path):
    for n in (1, 2):
        picture(size=(32 * n, 32)).save(tmp_path / f"{n}.png")
    content = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
    line = {"messages": [{"role": "user", "content": content}], "images": ["1.png", "2.png"]}
    (case,) = load_suite(_file(tmp_path, line))
    assert [image.width for image in case.request.images] == [32, 64]


def test_all_bad_lines_are_listed_at_once(tmp_path):
    lines = [
        _line(id="1"),
        "{",
        _line(id="1"),
        _line(colour="red"),
        {"id": "7"},
        _line(images=["missing.png"]),
        _line(max_new_tokens="many"),
        [1],
        _line(max_new_tokens=0),
        {"messages": [{"role": "judge", "content": "x"}]},
    ]
    with pytest.raises(BadArtifact) as caught:
        load_suite(_file(tmp_path, *lines))
    said = str(caught.value)
    assert "9 of 10 lines" in said
    for number, named in [(2, "not JSON"), (3, "was used in line 1"), (4, "colour"), (5, "missing"),
                          (6, "missing.png"), (7, "max_new_tokens"), (8, "object"),
                          (9, "max_new_tokens"), (10, "messages[0].role")]:  # fmt: skip
        assert f"line {number}: " in said
        assert named in said


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("nowhere.jsonl", {}, BadArtifact),
        ("demo", {"families": ["cats"]}, BadOption),
        ("demo", {"limit": 0}, BadOption),
    ],
)
def test_unknown_suites_and_families_are_refused(name, options, error):
    with pytest.raises(error):
        load_suite(name, **options)


def test_empty_file_is_refused(tmp_path):
    with pytest.raises(BadArtifact, match="is empty"):
        load_suite(_file(tmp_path, " "))
