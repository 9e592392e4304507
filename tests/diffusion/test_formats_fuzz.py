"""What must hold of formats for any text and any tokenisation of it."""

import time
from functools import partial
from random import Random

import pytest
from tokenizations import (
    MASK,
    OTHER,
    byte_level,
    sentence_piece,
    tokenized,
    vocabulary_of,
    word_piece,
)

from varifocal.diffusion import formats
from varifocal.diffusion.formats import Ending
from varifocal.diffusion.formats._text import (
    ByteDetokenizer,
    Detokenizer,
    PrefixDetokenizer,
    detokenizer,
)

TOKENIZERS = {"byte-level": byte_level, "sentence-piece": sentence_piece}
RULES_ONLY = [name for name in formats.names() if name != "code"]  # scored in no process

# What texts are made of: markers whole and in parts, answers, closers, and what misleads.
FRAGMENTS = [
    *(
        "The answer is ",
        "the answer is: ",
        "Answer: ",
        "####",
        "#### ",
        "# ",
        "\\boxed{",
        "\\boxed ",
    ),
    *("\\fbox{", "<answer>", "</answer>", "</ans", "```python\n", "```", "```\n", "\ndef f(x):\n"),
    *("    return x\n", '{"a": ', '"b"', "}", "{", "[", "]", "(", ")", "(B)", "A", "I ", "B.", "J"),
    *(
        "Yes",
        "no",
        "not",
        "1",
        "18",
        "3.14",
        ".",
        ",",
        "1,234",
        "$5",
        "-0",
        "−2",
        "e9",
        "\\frac{1}{2}",
    ),
    *("1234341221434321", "12 34", "6*4", " = 24", "+", "\\times", " ", "  ", "\n", "\t", "%", "$"),
    *("because ", "x", "né", "€", "日本", "🙂", "'", '"', "\\", "\\text{cm}", ";", "it's"),
]


# Whole answers, so that each format meets its own often enough.
ANSWERS = [
    *("The answer is (B).", "Answer: yes\n", "#### 1,234\n", "The answer is 3.5. ", "\\boxed{6*4}"),
    *("<answer>red</answer>", " 1234 3412 2143 4321 .", '{"a": [1, "}"]}', "\n```\nx = 1\n```\n"),
]


def text_of(rng: Random) -> str:
    parts = [rng.choice(FRAGMENTS) for _ in range(rng.randrange(1, 12))]
    if rng.random() < 0.6:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(ANSWERS))
    return "".join(parts)


def reader_of(name, tokenizer):
    return formats.find(name).reader(tokenizer, vocabulary_of(tokenizer))


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_tokenisation_gives_the_answer_of_the_text_and_a_span_that_covers_it(kind):
    tokenizer = TOKENIZERS[kind]()
    decode = partial(tokenizer.decode, skip_special_tokens=True)
    end = tokenizer.eos_token_id
    rng, splits = Random(1), Random(2)  # apart: the texts are the same whatever the merges
    readers = {name: reader_of(name, tokenizer) for name in formats.names()}
    met = dict.fromkeys(formats.names(), 0)
    for _ in range(120):
        text = text_of(rng)
        ids = tokenized(text, tokenizer, splits)
        is_stopped = rng.random() < 0.5
        canvas = [*ids, end, *ids[:3]] if is_stopped else ids
        for name, reader in readers.items():
            match = formats.find(name).extract(text)
            found = reader.extract(canvas)
            assert (match is None) == (found is None), (name, text)
            if match is None:
                continue
            met[name] += 1
            mends = match.ending is Ending.OPEN or match.is_last
            closes = is_stopped and mends and match.ending is not Ending.BROKEN
            assert found.value == match.value
            by_closer = match.ending is Ending.CLOSED and not match.is_last
            assert found.closed == (closes or by_closer)
            assert (len(ids) in found.span) == closes
            assert found.span == tuple(range(found.marker, found.span[-1] + 1))
            assert found.ids == tuple(canvas[i] for i in found.span)
            assert set(found.answer) <= set(found.span)
            if text.isascii():  # else a token may hold a part of the character before
                covered, answer = text[match.begin : match.end], text[slice(*match.answer)]
                assert covered.strip() in decode(list(found.ids))
                assert answer.strip() in decode([ids[i] for i in found.answer])
            # Nor is there a token too many: what is before the span ends before the match.
            assert len(decode(ids[: found.marker])) <= match.begin + 1
            # Nor is what is behind it needed to tell that it is closed, but for a box around it.
            is_boxed = name in ("mc_letter", "yes_no") and "box" in text
            if found.closed and not is_boxed:
                assert reader_of(name, tokenizer).extract(canvas[: found.span[-1] + 1]) == found
    assert min(met.values()) > 4, met


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_fast_way_to_text_agrees_with_decoding_prefixes(kind):
    tokenizer = TOKENIZERS[kind]()
    vocabulary = vocabulary_of(tokenizer)
    silent = tokenizer.convert_tokens_to_ids([MASK, OTHER])
    fast, slow = detokenizer(tokenizer, vocabulary), PrefixDetokenizer(tokenizer, vocabulary)
    assert isinstance(fast, ByteDetokenizer)
    rng = Random(2)
    for _ in range(60):
        text = text_of(rng)
        ids = tokenized(text, tokenizer, rng)
        for _ in range(rng.randrange(3)):
            ids.insert(rng.randrange(len(ids) + 1), rng.choice(silent))
        made, reference = fast.read(ids), slow.read(ids)
        assert made.string == reference.string == text
        assert list(made.begins) == list(reference.begins)
        assert list(made.ends) == list(reference.ends)


def test_bytes_that_are_no_text_are_written_as_the_tokenizer_writes_them():
    tokenizer = byte_level()
    fast = detokenizer(tokenizer, vocabulary_of(tokenizer))
    rng = Random(3)
    for _ in range(100):
        ids = [rng.randrange(len(tokenizer)) for _ in range(rng.randrange(40))]
        made = fast.read(ids)
        assert made.string == tokenizer.decode(ids, skip_special_tokens=True)
        assert max(made.ends, default=0) == len(made.string)
        for at in range(len(made.string)):
            tokens = made.tokens(at, at + 1)
            assert made.string[at] in tokenizer.decode([ids[i] for i in tokens])


def test_a_tokenizer_whose_tokens_are_no_bytes_is_read_by_prefixes():
    tokenizer = word_piece()
    reader = reader_of("yes_no", tokenizer)
    end = tokenizer.eos_token
    ids = tokenizer.convert_tokens_to_ids(["the", "answer", "is", MASK, "yes", ".", end])
    assert isinstance(detokenizer(tokenizer, vocabulary_of(tokenizer)), PrefixDetokenizer)
    found = reader.extract(ids)
    assert (found.value, found.closed, found.answer) == ("yes", True, (4,))
    assert found.span == (1, 2, 3, 4, 5, 6)
    ids[4] = tokenizer.convert_tokens_to_ids("no")  # goes on from the prefix that is the same
    assert reader.extract(ids).value == "no"


@pytest.mark.parametrize("name", formats.names())
def test_a_reader_that_has_seen_other_texts_reads_as_a_new_one(name):
    tokenizer = byte_level()
    vocabulary = vocabulary_of(tokenizer)
    rng = Random(4)
    old = reader_of(name, tokenizer)
    ids = [rng.randrange(vocabulary.size) for _ in range(60)]
    for _ in range(25):
        written = tokenized(text_of(rng), tokenizer, rng)
        at = rng.randrange(len(ids))
        ids[at : at + len(written)] = written[: len(ids) - at]
        assert old.extract(ids) == reader_of(name, tokenizer).extract(ids)


@pytest.mark.parametrize("name", RULES_ONLY)
def test_the_scorer_agrees_with_the_parser(name):
    format = formats.find(name)
    rng = Random(5)
    other = {"grid16": "1" * 16, "expr": "24: 4 6", "json": "{}"}.get(name, "something else")
    for _ in range(200):
        text = text_of(rng)
        match = format.extract(text)
        if match is None or match.ending is Ending.BROKEN:
            assert not format.score(text, other)
        elif name != "expr":  # its reference is no answer
            assert format.score(text, match.value), text
            assert format.score(text, [other, match.value])


HOSTILE = [
    lambda n: "(" * n,
    lambda n: "{" * n,
    lambda n: '{"a":' * (n // 5),
    lambda n: '{"' * (n // 2),
    lambda n: "{}" * (n // 2),
    lambda n: '{"a": "' + "\\" * n,
    lambda n: '{"a": ' + "9" * n + "}",
    lambda n: "[" * n + "]" * n,
    lambda n: "\\boxed{" * (n // 7),
    lambda n: "\\boxed{" + "\\frac{" * (n // 6) + "}" * n,
    lambda n: "\\boxed{" + "\\frac1" * (n // 6) + "}",
    lambda n: "\\boxed{" + "-" * n + "1}",
    lambda n: "\\boxed{" + "9" * n + "/" + "7" * n + "}",
    lambda n: "\\boxed{\\text{" + " " * n + "}}",
    lambda n: "\\boxed{x" + " " * n + "\\text",
    lambda n: "#### " + "9" * n,
    lambda n: "#### " + "1," * (n // 2),
    lambda n: "#### 1" * (n // 6),
    lambda n: "The answer is " + "." * n,
    lambda n: "answer is" + " " * n,
    lambda n: "answer " * (n // 7),
    lambda n: "answer:" + "(" * n,
    lambda n: " " * n + "x",
    lambda n: "\n" * n + "1",
    lambda n: "1 " * (n // 2),
    lambda n: "1 " * (n // 2) + "\x00",
    lambda n: "<answer>" * (n // 8),
    lambda n: "def f():\n" + " x\n" * (n // 3),
    lambda n: "def f():\n return " + "-" * n + "1",
    lambda n: "def f():\n return " + "1+" * (n // 2) + "1",
    lambda n: "def f():\n" + "x" * n + " ",
    lambda n: "```\n" * (n // 4),
    lambda n: "```x\n" * (n // 5),
    lambda n: "def f():\n return '\x00\ud800'",
    lambda n: "NaN Infinity -Infinity nan 1e999 \x00 \ud800 \u202e" * (n // 40),
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_text_raises_or_takes_long(number):
    text = HOSTILE[number](20_000)
    references = {"grid16": "1234341221434321", "expr": "24: 4 6", "json": "{}"}
    for name in formats.names():
        format = formats.find(name)
        began = time.process_time()
        match = format.extract(text)
        if name != "code" and match is not None:
            assert format.score(text, references.get(name, "1")) in (True, False)
        assert time.process_time() - began < 0.5, name


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_no_tokens_raise(kind):
    tokenizer = TOKENIZERS[kind]()
    vocabulary = vocabulary_of(tokenizer)
    rng = Random(6)
    readers: list[formats.Reader] = [reader_of(name, tokenizer) for name in formats.names()]
    for _ in range(30):
        # Ids beyond the tokenizer's too: a model's vocabulary is often the longer one.
        ids = [rng.randrange(vocabulary.size) for _ in range(rng.randrange(80))]
        for reader in readers:
            reader.extract(ids)
    assert isinstance(detokenizer(tokenizer, vocabulary), Detokenizer)
