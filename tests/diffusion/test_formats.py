"""What each task format reads in a text, by hand-written texts in the style of public scorers."""

import subprocess
import sys
import time
from dataclasses import replace

import pytest

from varifocal.diffusion import formats
from varifocal.diffusion.formats import Ending
from varifocal.diffusion.formats._arithmetic import evaluate
from varifocal.diffusion.formats.number import NumberAfter
from varifocal.errors import BadOption

CLOSED, OPEN, BROKEN = Ending.CLOSED, Ending.OPEN, Ending.BROKEN

# format, text, value, what the span covers, ending
FOUND = [
    # A letter: the last box, else the last statement, else the letter that the text begins with.
    ("mc_letter", "B", "B", "B", OPEN),
    ("mc_letter", "B.", "B", "B.", CLOSED),
    ("mc_letter", "(C) because", "C", "(C)", CLOSED),
    ("mc_letter", "**D**", "D", "**D*", CLOSED),
    ("mc_letter", "\n A) x", "A", "\n A)", CLOSED),
    ("mc_letter", "The answer is (B).", "B", "answer is (B)", CLOSED),
    ("mc_letter", "the answer is: B", "B", "answer is: B", OPEN),
    ("mc_letter", "Answer:\n**A**", "A", "Answer:\n**A*", CLOSED),
    ("mc_letter", "A is tempting. The answer is (B).", "B", "answer is (B)", CLOSED),
    ("mc_letter", "The answer is (A). No, the answer is (C).", "C", "answer is (C)", CLOSED),
    ("mc_letter", r"The answer is (A), \boxed{\text{D}}", "D", r"\boxed{\text{D}}", CLOSED),
    ("mc_letter", r"B, from \boxed{42}", "B", "B,", CLOSED),
    ("mc_letter", "A ", "A", "A ", OPEN),  # the article, if a word follows
    ("mc_letter", "A \n", "A", "A \n", CLOSED),
    ("mc_letter", "I (the first)", "I", "I (", CLOSED),
    ("yes_no", "Yes", "yes", "Yes", OPEN),
    ("yes_no", "NO.", "no", "NO.", CLOSED),
    ("yes_no", " no, never", "no", " no,", CLOSED),
    ("yes_no", "Hard. The answer is Yes!", "yes", "answer is Yes!", CLOSED),
    ("yes_no", r"\boxed{No}", "no", r"\boxed{No}", CLOSED),
    # A number: the first marker that a number follows.
    ("number_hash", "2+2 #### 4\n", "4", "#### 4\n", CLOSED),
    ("number_hash", "#### 18", "18", "#### 18", OPEN),
    ("number_hash", "#### $1,234.50 in all", "1234.5", "#### $1,234.50 ", CLOSED),
    ("number_hash", "#### -0\n", "0", "#### -0\n", CLOSED),
    ("number_hash", "#### −5 #### 6", "-5", "#### −5 ", CLOSED),
    ("number_hash", "#### .5\n", "0.5", "#### .5\n", CLOSED),
    ("number_hash", "#### x #### 007\n", "7", "#### 007\n", CLOSED),
    ("number_hash", "#### 5%", "5", "#### 5%", CLOSED),
    ("number_phrase", "The answer is 3.14.", "3.14", "The answer is 3.14.", OPEN),
    ("number_phrase", "The answer is 3.14. ", "3.14", "The answer is 3.14. ", CLOSED),
    ("number_phrase", "The answer is 3.", "3", "The answer is 3.", OPEN),  # perhaps 3.1
    ("number_phrase", "The answer is 1,234,", "1234", "The answer is 1,234,", OPEN),
    ("number_phrase", "The answer is $5$", "5", "The answer is $5$", CLOSED),
    ("number_phrase", r"the answer is \$5 ", "5", r"the answer is \$5 ", CLOSED),
    ("number_phrase", "The answer is 7. The answer is 8.", "7", "The answer is 7. ", CLOSED),
    ("number_phrase", "The answer is 3.14.15 ", "3.14.15", "The answer is 3.14.15 ", CLOSED),
    # A box: the last one, by counting braces.
    ("boxed", r"\boxed{5}", "5", r"\boxed{5}", CLOSED),
    ("boxed", r"so \boxed{\frac{1}{2}}.", r"\frac{1}{2}", r"\boxed{\frac{1}{2}}", CLOSED),
    ("boxed", r"\boxed{1} no \boxed{2}", "2", r"\boxed{2}", CLOSED),
    ("boxed", r"\boxed {x = 1,234}", "1234", r"\boxed {x = 1,234}", CLOSED),
    ("boxed", r"\fbox{3}", "3", r"\fbox{3}", CLOSED),
    ("boxed", r"$\boxed 7$ ok", "7", r"\boxed 7$", CLOSED),
    ("boxed", r"\boxed 7", "7", r"\boxed 7", OPEN),
    ("boxed", r"\boxed{12\text{ cm}^2}", "12", r"\boxed{12\text{ cm}^2}", CLOSED),
    ("boxed", r"\boxed{\{1, 2\}}", r"\{1,2\}", r"\boxed{\{1, 2\}}", CLOSED),
    ("boxed", r"\boxed{1,2}", "1,2", r"\boxed{1,2}", CLOSED),  # a pair, not 12
    # A tag: the last opening one.
    ("tag", "<answer>5</answer>", "5", "<answer>5</answer>", CLOSED),
    ("tag", "<answer> two\nwords", "two words", "<answer> two\nwords", OPEN),
    ("tag", "<answer>1</answer> <answer>2</answer>", "2", "<answer>2</answer>", CLOSED),
    ("tag", r"<answer>\boxed{1,234}</answer>", "1234", r"<answer>\boxed{1,234}</answer>", CLOSED),
    ("tag", "<answer>1,2</answer>", "1,2", "<answer>1,2</answer>", CLOSED),
    # A line, from the beginning of the canvas on.
    ("short_span", "Paris", "paris", "Paris", OPEN),
    ("short_span", "\n The  River.\nIt is", "the river", "\n The  River.\n", CLOSED),
    ("short_span", 'The answer is: "Bonn"\n', "bonn", 'The answer is: "Bonn"\n', CLOSED),
    ("short_span", "Answer: .5", "0.5", "Answer: .5", OPEN),
    ("short_span", "1,2\n", "1,2", "1,2\n", CLOSED),
    ("short_span", "a\n", "a", "a\n", CLOSED),
    ("short_span", "...", "...", "...", OPEN),
    # Sixteen digits and what is around them.
    ("grid16", "1234 3412\n2143 4321", "1234341221434321", "1234 3412\n2143 4321", OPEN),
    ("grid16", "x: 1234341221434321 .", "1234341221434321", ": 1234341221434321 .", CLOSED),
    ("grid16", "12. 1234341221434321\n", "1234341221434321", ". 1234341221434321\n", OPEN),
    # An expression in a box.
    ("expr", r"\boxed{6 \times (5 - 1) = 24}", "6*(5-1)", None, CLOSED),
    ("expr", r"\boxed{\frac{48}{1 + 1}}", "((48)/(1+1))", None, CLOSED),
    # An object, braces in strings aside.
    ("json", '{"b": 1.0, "a": "}"} x', '{"a":"}","b":1}', '{"b": 1.0, "a": "}"}', CLOSED),
    ("json", 'the set {1, 2} is {"a": [{}]}', '{"a":[{}]}', '{"a": [{}]}', CLOSED),
    ("json", r'{"a": "\"{"}', r'{"a":"\"{"}', r'{"a": "\"{"}', CLOSED),
    ("json", '{"a": {"b": 1}, "c', '{"a": {"b": 1}, "c', '{"a": {"b": 1}, "c', BROKEN),
    ("json", '{"a": "open}', '{"a": "open}', '{"a": "open}', BROKEN),
    ("json", '{"a": {"b": 1}, c} {"d": 2}', '{"d":2}', '{"d": 2}', CLOSED),
    # A program: the fence, or lines that go on with definitions.
    ("code", "x\n```python\na = 1\n```\n", "a = 1", "```python\na = 1\n```", CLOSED),
    ("code", "```\na = 1\n", "a = 1", "```\na = 1\n", OPEN),
    ("code", "```text\nno\n```\n```py\na = 1\n```", "a = 1", "```py\na = 1\n```", CLOSED),
    ("code", "```python\na = (\n```", "a = (", "```python\na = (\n```", BROKEN),
    ("code", "def f():\n    return 1\n", "def f():\n    return 1", None, OPEN),
    ("code", "def f():\n    return 1\nIt", "def f():\n    return 1", None, OPEN),  # It = 3
    ("code", "def f():\n    pass\nIt is", "def f():\n    pass", "def f():\n    pass\nIt i", CLOSED),
    ("code", "def f():\n    pass\nX = 3\n", "def f():\n    pass\nX = 3", None, OPEN),
    ("code", "So:\n@g\ndef f(\n):\n    return", "@g\ndef f(\n):\n    return", None, OPEN),
    ("code", "def f():\n", "def f():", "def f():\n", BROKEN),
    ("code", "def f():\n    return '", "def f():\n    return '", None, BROKEN),
    ("free", " any text ", "any text", " any text ", OPEN),
]

NOTHING = [
    *((name, "") for name in formats.names()),
    *((name, " \n\t ") for name in formats.names()),
    ("mc_letter", "Apples"),
    ("mc_letter", "A common mistake"),
    ("mc_letter", "I think"),
    ("mc_letter", "K"),
    ("mc_letter", r"A, so \boxed{B"),
    ("mc_letter", "It's a B"),
    ("yes_no", "Nothing"),
    ("yes_no", "yes-man's".replace("-", "")),
    ("number_hash", "### 5"),
    ("number_hash", "#### five"),
    ("number_hash", "#### ."),
    ("number_phrase", "The answer is NaN."),
    ("boxed", r"\boxed{1} and \boxed{2"),
    ("boxed", r"\boxed{}"),
    ("boxed", r"\boxed"),
    ("tag", "<answer></answer>"),
    ("tag", "<answer>1</answer> <answer>"),
    ("tag", "answer: 5"),
    ("short_span", "The answer is"),
    ("short_span", "Answer:\n"),
    ("grid16", "123434122143432"),
    ("grid16", "12343412214343211"),
    ("grid16", "1234341221434325"),
    ("expr", "6*4"),
    ("json", "no object {at all}"),
    ("json", '{"a": NaN}'),
    ("json", "{" * 300 + "}" * 300),
    ("code", "just words, def not code"),
    ("code", "```json\n{}\n```"),
]


@pytest.mark.parametrize(("name", "text", "value", "covered", "ending"), FOUND)
def test_a_format_finds_the_answer_as_its_scorer_does(name, text, value, covered, ending):
    match = formats.find(name).extract(text)
    assert match is not None
    assert (match.value, match.ending) == (value, ending)
    if covered is not None:
        assert text[match.begin : match.end] == covered
    begin, end = match.answer
    assert match.begin <= begin < end <= match.end


@pytest.mark.parametrize(("name", "text"), NOTHING)
def test_a_format_finds_nothing_in_a_text_without_an_answer(name, text):
    assert formats.find(name).extract(text) is None
    assert not formats.find(name).score(text, "1")


RIGHT = [
    ("mc_letter", "The answer is (B).", "B"),
    ("mc_letter", "B", "(B)"),
    ("yes_no", "Yes.", "yes"),
    ("number_hash", "#### 1,234\n", "1234.000001"),
    ("number_hash", "#### -0", "0"),
    ("number_hash", f"#### {'9' * 5000}", "9" * 5000),
    ("number_phrase", "The answer is $3.50.", "3.5"),
    ("boxed", r"\boxed{\frac12}", r"\dfrac{1}{2}"),
    ("boxed", r"\boxed{0.5}", r"\frac{1}{2}"),
    ("boxed", r"\boxed{1/2}", "0.5"),
    ("boxed", r"\boxed{-\frac{1}{2}}", r"\frac{-1}{2}"),
    ("boxed", r"\boxed{x=5}", "5"),
    ("boxed", r"\boxed{50\%}", "50"),
    ("boxed", r"\boxed{\left( 1, \sqrt2 \right)}", r"(1,\sqrt{2})"),
    ("boxed", r"\boxed{90^\circ}", "90"),
    ("boxed", r"\boxed{\text{odd}}", "odd"),
    ("tag", "<answer>\n red  car </answer>", "red car"),
    ("tag", r"<answer>\boxed{2.0}</answer>", "2"),
    ("short_span", "Answer: The Rhine.", "the rhine"),
    ("short_span", "NYC", ["New York", "NYC"]),
    ("grid16", "1234 3412 2143 4321", "1234341221434321"),
    ("grid16", "1234 3412 2143 4321", "0000341221434321 1234341221434321"),
    ("expr", r"\boxed{8/(3-8/3)}", "24: 3 3 8 8"),
    ("expr", r"\boxed{(1+2)\cdot 8 = 24}", "24: 8 2 1"),
    ("json", 'so {"a": 1, "b": [true, null]}', '{"b": [true, null], "a": 1.0}'),
    ("code", "```python\ndef f(x):\n    return x + 1\n```", "assert f(1) == 2"),
    ("free", " as is", "as is\n"),
]

WRONG = [
    ("mc_letter", "The answer is (B).", "C"),
    ("yes_no", "Yes.", "no"),
    ("number_hash", "#### 5\n", "5.00002"),
    ("number_hash", f"#### {'9' * 5000}", "9" * 4999 + "8"),
    ("number_hash", "#### 3.14.15", "3.14"),
    ("boxed", r"\boxed{\frac{1}{0}}", "0"),
    ("boxed", r"\boxed{1,2}", "12"),
    ("tag", "<answer>-5</answer>", "5"),
    ("tag", "<answer>1 2</answer>", "12"),
    ("short_span", "-5", "5"),
    ("short_span", "1,2", "12"),
    ("short_span", "a b", "ab"),
    ("grid16", "1234 3412 2143 4321", "2134341221434321"),
    ("expr", r"\boxed{12+12}", "24: 3 3 8 8"),
    ("expr", r"\boxed{4*6}", "24: 4 6 6"),
    ("expr", r"\boxed{4*6*1}", "24: 4 6"),
    ("expr", r"\boxed{6*(4}", "24: 4 6"),
    ("expr", r"\boxed{2**3}", "8: 2 3"),
    ("expr", r"\boxed{1/(2-2)}", "24: 1 2 2"),
    ("expr", r"\boxed{__import__('os')}", "24: 4 6"),
    ("json", '{"a": 1}', '{"a": true}'),
    ("json", '{"a": 1}', '{"a": "1"}'),
    ("json", '{"a": 1', '{"a": 1}'),
    ("code", "def f(x):\n    return x", "assert f(1) == 2"),
    ("code", "def f(x):\n    return (", "pass"),
    ("free", "as is", "as it is"),
]


@pytest.mark.parametrize(("name", "text", "reference"), RIGHT)
def test_a_right_answer_is_right_however_it_is_spelt(name, text, reference):
    assert formats.find(name).score(text, reference)


@pytest.mark.parametrize(("name", "text", "reference"), WRONG)
def test_a_wrong_answer_is_wrong(name, text, reference):
    assert not formats.find(name).score(text, reference)


def test_the_task_formats_of_the_paper_and_more_are_there():
    wanted = "boxed code expr free grid16 json mc_letter number_hash number_phrase short_span tag"
    assert formats.names() == sorted([*wanted.split(), "yes_no"])
    assert all(formats.find(name).hint for name in formats.names())


def test_an_unknown_format_is_refused_with_the_nearest_name():
    with pytest.raises(BadOption, match=r"'numberhash'.* mean number_hash\?.*mc_letter"):
        formats.find("numberhash")
    with pytest.raises(BadOption, match=r"'zzz'\. There are boxed"):
        formats.find("zzz")


@pytest.mark.parametrize(
    ("name", "text", "reference"),
    [
        ("grid16", "1234341221434321", "12"),
        ("expr", r"\boxed{1}", "twenty-four"),
        ("json", "{}", "{a}"),
    ],
)
def test_a_malformed_reference_is_refused(name, text, reference):
    with pytest.raises(BadOption, match="reference"):
        formats.find(name).score(text, reference)


@pytest.mark.parametrize(
    ("expression", "value"),
    [("2+3*4", 14), ("(2+3)*4", 20), ("2-3-4", -5), ("-(2-5)*-2", -6), ("8/4/2", 1)],
)
def test_arithmetic_follows_precedence_from_the_left(expression, value):
    made, _ = evaluate(expression) or (None, None)
    assert made == value


@pytest.mark.parametrize("expression", ["", "1+", "+1", "(1", "1)", "1 2", "2(3)", "()", "1e3"])
def test_what_is_no_arithmetic_has_no_value(expression):
    assert evaluate(expression) is None


def test_a_number_may_have_another_marker_and_be_the_last():
    total = NumberAfter(name="total", hint="", marker="total[:=] ?", takes_last=True)
    assert total.extract("total: 3, no, total=4;").value == "4"
    with pytest.raises(BadOption, match=r"regular expression, got '\['"):
        NumberAfter(name="total", hint="", marker="[")


# --- programs ---


def scored(source: str, tests: str, **limits: float) -> bool:
    code = replace(formats.find("code"), **limits)
    return code.score(f"```python\n{source}```", tests)


def test_a_program_that_ends_itself_before_its_tests_has_not_passed():
    assert not scored("import os\nos._exit(0)\n", "assert False")
    assert not scored("import sys\nsys.exit(0)\n", "assert False")


def test_a_program_that_hangs_floods_or_eats_memory_is_ended():
    assert not scored("import time\ntime.sleep(60)\n", "", seconds=1.0)
    assert not scored("import os\nos.write(1, b'x' * 9**9)\n", "", memory_bytes=1 << 28)


def test_what_a_program_prints_or_reads_does_not_matter():
    source = "import sys\nprint('x' * 100)\nprint(sys.stdin.read(), file=sys.stderr)\n"
    assert scored(source, "pass")


@pytest.mark.skipif(sys.platform == "win32", reason="sessions and signals of POSIX")
def test_what_a_program_started_ends_with_it(tmp_path):
    place = tmp_path / "child"
    source = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(place)!r}, 'w').write(str(child.pid))\n"
    )
    assert scored(source, "pass")
    command = ["ps", "-o", "stat=", "-p", place.read_text()]
    for _ in range(100):  # a killed process takes a moment to go
        state = subprocess.run(command, capture_output=True, text=True).stdout.strip()
        if not state or state.startswith("Z"):  # gone, or dead and not yet collected
            return
        time.sleep(0.05)
    pytest.fail(f"the child of a program lives on, in state {state}")


def test_extracting_a_program_does_not_run_it(tmp_path):
    place = tmp_path / "ran"
    match = formats.find("code").extract(f"```python\nopen({str(place)!r}, 'w')\n```")
    assert match.ending is Ending.CLOSED
    assert not place.exists()
