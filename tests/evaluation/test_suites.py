"""Suites: the drawn pictures and JSONL files, with every bad line named."""

import json
import random

import pytest
from tiny import picture

from varifocal.errors import BadArtifact, BadOption, VarifocalError
from varifocal.evaluation import suites
from varifocal.evaluation.suites import examine, load_suite


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


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", "\r\n \t\r\n"])
def test_a_file_without_lines_is_refused_by_every_reader(tmp_path, text):
    path = tmp_path / "suite.jsonl"
    path.write_bytes(text.encode())
    for read in (load_suite, examine):
        with pytest.raises(BadArtifact, match="is empty; it needs one JSON object a line"):
            read(path)


def test_a_byte_order_mark_and_dos_line_ends_change_nothing(tmp_path):
    lines = [_line(id="1", family="x"), _line(id="2", reference="ja \u2028 nein")]
    plain = load_suite(_file(tmp_path, *lines))
    texts = (json.dumps(line, ensure_ascii=False) for line in lines)
    path = tmp_path / "dos.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(texts).encode() + b"\r\n")
    assert load_suite(path) == plain
    assert [case.id for case in plain] == ["1", "2"]


def test_families_in_turn_are_grouped_and_keep_their_order(tmp_path):
    order = [("b", 1), ("a", 2), ("b", 3), ("c", 4), ("a", 5), ("b", 6)]
    path = _file(tmp_path, *(_line(id=str(n), family=family) for family, n in order))
    assert [case.id for case in load_suite(path)] == ["1", "3", "6", "2", "5", "4"]
    assert examine(path).families == {"b": 3, "a": 2, "c": 1}
    assert [case.id for case in load_suite(path, limit=1, families=["c", "a"])] == ["2", "4"]
    with pytest.raises(BadOption, match="no family d; it has b, a, c"):
        load_suite(path, families=["a", "d"])


EMPTY = [
    (_line(reference=""), "reference is empty"),
    (_line(reference=" \n"), "reference is empty"),
    ({"messages": [*_line()["messages"], {"role": "assistant", "content": ""},
                   *_line()["messages"]]}, "messages[1] is an empty answer"),
    ({"messages": [*_line()["messages"], {"role": "assistant", "content": [
        {"type": "text", "text": " "}]}, *_line()["messages"]]}, "messages[1] is an empty answer"),
    ({"messages": [{"role": "user", "content": " "}]}, "the prompt is empty"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "named"), EMPTY)
def test_an_empty_reference_answer_or_question_is_a_bad_line(tmp_path, line, named):
    with pytest.raises(BadArtifact) as refused:
        load_suite(_file(tmp_path, _line(id="good"), line))
    assert f"1 of 2 lines of {tmp_path / 'suite.jsonl'} are bad:\n  line 2: {named}" in (
        str(refused.value)
    )


def test_what_is_not_known_may_be_null(tmp_path):
    (case,) = load_suite(_file(tmp_path, _line(id=None, family=None, reference=None)))
    assert (case.id, case.family, case.reference) == ("line-1", "all", None)


def test_missing_unreadable_and_malformed_lines_are_listed_in_one_error(tmp_path):
    picture().save(tmp_path / "good.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:300])
    (tmp_path / "folder.png").mkdir()
    lines = [
        *(_line(images=[name]) for name in
          ("good.png", "gone.png", "cut.png", "folder.png", "x" * 300 + ".png", "a\0.png")),
        "not json",
        '{"id": "1", "id": "2", "messages": []}',
        _line(reference="\ud800"),
    ]  # fmt: skip
    with pytest.raises(BadArtifact) as refused:
        load_suite(_file(tmp_path, *lines))
    said = str(refused.value)
    for number, named in [(2, "no such file"), (3, "a damaged or cut one"), (4, "no such file"),
                          (5, "x.png"), (6, "a"), (7, "not JSON"), (8, "id is given twice"),
                          (9, "half a character")]:  # fmt: skip
        (line,) = (text for text in said.split("\n") if f" line {number}: " in text)
        assert named in line
    assert "8 of 9 lines" in said


def test_a_line_that_is_not_utf_8_spoils_no_other(tmp_path):
    path = _file(tmp_path, _line(id="1"), _line(id="2"))
    path.write_bytes(path.read_bytes().replace(b"What", b"\xe4What", 1))
    with pytest.raises(BadArtifact, match=r"(?s)1 of 2 lines.*line 1: not UTF-8 text"):
        load_suite(path)


def test_of_many_bad_lines_twenty_are_shown_and_the_check_has_all(tmp_path):
    path = _file(tmp_path, *(["{"] * 25), _line(id="1"))
    with pytest.raises(BadArtifact) as refused:
        load_suite(path)
    said = str(refused.value).split("\n")
    assert said[0].startswith("25 of 26 lines") and len(said) == 22
    assert said[-1] == f"  and 5 more; `varifocal suite check {path}` lists them all"
    reading = examine(path)
    assert [number for number, _ in reading.bad] == list(range(1, 26))
    assert (reading.num_lines, reading.families) == (26, {"all": 1})


def test_a_pictures_file_is_checked_by_all_and_decoded_for_those_in_use(tmp_path, monkeypatch):
    picture().save(tmp_path / "a.png")
    decoded = []

    def counted(source, *, name):
        decoded.append(name)
        return picture()

    monkeypatch.setattr("varifocal.chat.load_image", counted)
    path = _file(
        tmp_path, *(_line(id=str(n), family=f"f{n % 2}", images=["a.png"]) for n in range(50))
    )
    assert len(load_suite(path, limit=2, families=["f1"])) == 2
    assert len(decoded) == 2
    examine(path)
    assert len(decoded) == 52


def test_a_file_is_read_line_by_line_and_an_endless_line_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "suite.jsonl"
    path.write_text("".join(json.dumps(_line(id=str(n))) + "\n" for n in range(300)))
    assert [case.id for case in load_suite(path, limit=2)] == ["0", "1"]
    monkeypatch.setattr(suites, "_MAX_LINE", 100)
    path.write_text(json.dumps(_line(id="1")) + "\n" + "x" * 1000)
    with pytest.raises(BadArtifact, match=r"line 2 of .* is longer than"):
        load_suite(path)


def test_a_folder_stands_for_the_suite_in_it(tmp_path):
    picture().save(tmp_path / "a.png")
    _file(tmp_path, _line(id="1", images=["a.png"]))
    for name in (tmp_path, str(tmp_path)):
        (case,) = load_suite(name)
        assert case.request.images[0].size == picture().size
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadArtifact, match=r"the folder .*empty holds no suite\.jsonl"):
        load_suite(tmp_path / "empty")


def _mutated(text: str, rng: random.Random) -> bytes:
    """A line with pieces changed, cut out or repeated."""
    data = bytearray(text.encode())
    pieces = [b"", b"\0", b'"', b"[", b"{}", b"null", b"-1", b"1e999", b"NaN", b"\\ud800", b"\xff",
              b"\n", b"[" * 2000, b'"messages"', b"data:,"]  # fmt: skip
    for _ in range(rng.randint(0, 2)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.randint(0, 12))
        data[start:end] = rng.choice([*pieces, bytes(data[start:end]) * 2])
    return bytes(data)


def test_whatever_a_line_holds_it_gives_a_case_or_is_named(tmp_path):
    picture(size=(8, 8)).save(tmp_path / "a.png")
    parts = [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "?"}]
    good = [
        json.dumps(_line(id="1", family="x", images=["a.png"], reference="y", max_new_tokens=5)),
        json.dumps({"messages": [{"role": "user", "content": parts}]}),
    ]
    rng, path = random.Random(0), tmp_path / "suite.jsonl"
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(120):
        path.write_bytes(_mutated(rng.choice(good), rng))
        try:
            reading = examine(path)
        except BadArtifact as error:
            assert "is empty" in str(error)
            continue
        assert len(reading.bad) + sum(reading.families.values()) == reading.num_lines
        try:
            cases = load_suite(path)
        except VarifocalError as error:
            outcomes["refused"] += 1
            assert reading.bad and all(
                f"line {number}: " in str(error) for number, _ in reading.bad
            )
        else:
            outcomes["loaded"] += 1
            assert len(cases) == reading.num_lines and not reading.bad
    assert min(outcomes.values()) > 20
