"""Every token gets one label of each division, whatever the tokenizer cuts."""

import pytest
from scripted import EOS, Scripted, ids_of, saying, text_of
from tiny import tokenizer

from varifocal.decode import generate
from varifocal.demo.world import FAMILIES, draw
from varifocal.drafters import load_drafter
from varifocal.evaluation.kinds import (
    KINDS,
    Breakdown,
    Source,
    break_down,
    labels_of,
    needs_picture,
    pooled,
    stage_of,
)
from varifocal.evaluation.suites import Case, demo_case
from varifocal.request import Message, Request, ask
from varifocal.result import GenerationResult, Round

WORDS = ["<unk>", "<end>", "The", " total", " is", " 12", ".", "50", ",", " not", " Total", "\n"]
PROMPT = ask("What is the total?")


def text_of_words(ids):
    return "".join(WORDS[i] for i in ids if i > 1)


def kinds(text, prompt="What is the total?"):
    """Of each byte of a text, and of the end token."""
    made = labels_of(ask(prompt), [*ids_of(text), EOS], text_of, frozenset({EOS}))
    return list(made.kinds)


def kinds_of_words(ids):
    made = labels_of(PROMPT, ids, text_of_words, frozenset({1}))
    return list(made.kinds)


def test_a_token_has_the_kind_of_the_word_that_it_begins_in():
    ids = [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1]  # The total is 12.50, not Total\n
    assert kinds_of_words(ids) == [
        "function", "copied", "function", "number", "number", "number", "punctuation", "function",
        "copied", "space", "end",
    ]  # fmt: skip


def test_all_tokens_of_a_long_word_are_of_one_kind():
    assert kinds("KITE 7") == ["other"] * 4 + ["space", "number", "end"]
    assert kinds("12:05") == ["number"] * 5 + ["end"]
    assert kinds("AB-9") == ["number"] * 4 + ["end"]
    assert kinds("a.") == ["function", "punctuation", "end"]  # no full stop inside a word


def test_bytes_of_one_character_are_of_one_kind():
    assert kinds("né") == ["other"] * 3 + ["end"]
    assert kinds("é 🙂") == ["other"] * 2 + ["space"] + ["punctuation"] * 4 + ["end"]


def test_words_are_copied_from_the_request_or_from_what_was_said():
    assert kinds("cat cat")[:3] == ["other"] * 3 and kinds("cat cat")[4:7] == ["copied"] * 3
    assert kinds("TOTAL") == ["copied"] * 5 + ["end"]  # the request's, in other letters
    assert kinds("7 7") == ["number", "space", "copied", "end"]
    assert kinds("the the")[:3] == ["function"] * 3  # of two kinds that fit, the first


def test_the_chat_template_and_pictures_are_no_text_of_the_request():
    turns = (Message("system", ("Be brief.",)), Message("user", ("Go.",)))
    request = Request(messages=turns)
    made = labels_of(request, ids_of("brief user"), text_of, frozenset({EOS}))
    assert made.kinds[:5] == ("copied",) * 5 and made.kinds[6:] == ("other",) * 4


def test_tokens_of_a_real_tokenizer_cover_words_that_it_cuts():
    core = tokenizer()
    ids = core("the red KITE is 39", add_special_tokens=False)["input_ids"]

    def decode(tokens):
        return core.decode(list(tokens), skip_special_tokens=True)

    labels = labels_of(ask("What?"), ids, decode, frozenset({core.eos_token_id})).kinds
    found = dict.fromkeys(KINDS, "")
    for token, kind in zip(ids, labels, strict=True):
        found[kind] += decode([token])
    assert found["number"].strip() == "39"
    assert found["other"].replace(" ", "") == "redKITE"
    assert found["function"].replace(" ", "") == "theis"


def test_an_answer_without_tokens_has_no_labels():
    assert labels_of(PROMPT, [], text_of, frozenset({EOS})).kinds == ()


def result(blocks):
    """Rounds of (tokens, accepted) after a first token."""
    rounds = [Round(tokens=t, text="", num_accepted=n) for t, n in blocks]
    first = Round(tokens=ids_of("T"), text="", is_prefill=True)
    return GenerationResult(
        text="", token_ids=[*first.tokens, *(t for r in rounds for t in r.tokens)],
        finish_reason="length", prompt_tokens=1, image_tokens=0, rounds=rounds, prefill=first,
        drafter="x", target="t",
    )  # fmt: skip


def test_accepted_tokens_were_drafted_and_the_last_of_a_round_was_not():
    made = result([(ids_of("he 7"), 3), (ids_of("."), 0)])
    labels = labels_of(ask("?"), made.token_ids, text_of, frozenset({EOS}))
    counts = break_down(made, labels)
    assert counts.kinds["function"] == {
        "tokens": 2,
        "drafted": 2,
    }  # the prefill's is not among them
    assert counts.kinds["space"] == {"tokens": 1, "drafted": 1}
    assert counts.kinds["number"] == {"tokens": 1, "drafted": 0}
    assert counts.kinds["punctuation"] == {"tokens": 1, "drafted": 0}
    assert counts.stages["2-8"] == {"rounds": 2, "tokens": 5, "drafted": 3}
    assert counts.sources == {}


def test_a_round_belongs_to_the_stage_in_which_it_begins():
    assert [stage_of(p) for p in (2, 8, 9, 32, 33, 128, 129, 4000)] == [
        "2-8", "2-8", "9-32", "9-32", "33-128", "33-128", "129+", "129+",
    ]  # fmt: skip
    made = result([(ids_of("abcdef"), 5), (ids_of("ghi"), 2), (ids_of("j"), 0)])
    labels = labels_of(ask("?"), made.token_ids, text_of, frozenset({EOS}))
    stages = break_down(made, labels).stages
    assert stages["2-8"] == {"rounds": 2, "tokens": 9, "drafted": 7}  # tokens 8 to 10 begin there
    assert stages["9-32"] == {"rounds": 1, "tokens": 1, "drafted": 0}


def test_counts_of_several_answers_add_up():
    made = result([(ids_of("he 7"), 3)])
    one = break_down(made, labels_of(ask("?"), made.token_ids, text_of, frozenset({EOS})))
    both = pooled([one, one, Breakdown()])
    assert both.kinds["function"] == {"tokens": 4, "drafted": 4}
    assert both.stages["2-8"]["rounds"] == 2 and one.stages["2-8"]["rounds"] == 1


def case(name, answer, fields, question="Read the sign."):
    return Case(id=name, family="signs", request=ask(question), reference=answer, fields=fields)


KITE = case("a", "The sign says KITE on line 2.", ("KITE", "2"))
SUN = case("b", "The sign shows SUN on line 1, at noon.", ("SUN", "1"))


def sources(answer, own=KITE, family=(KITE, SUN)):
    source = Source.known(own, family)
    made = labels_of(own.request, ids_of(answer), text_of, frozenset({EOS}), source)
    words = {}
    for letter, label in zip(answer, made.sources, strict=True):
        if letter != " ":
            words.setdefault(label, []).append(letter)
    return {label: "".join(letters) for label, letters in words.items()}


def test_words_in_marked_parts_of_the_right_answer_need_the_picture():
    assert sources("The sign says KITE on line 2.") == {
        "template": "Thesignsaysonline.", "picture": "KITE2",
    }  # fmt: skip


def test_a_word_read_wrongly_needs_the_picture_as_well():
    made = sources("The sign says KITS on line 2.")
    assert made["picture"] == "KITS2"


def test_a_word_of_the_familys_template_does_not_although_the_right_answer_lacks_it():
    assert sources("The sign shows KITE at noon.") == {
        "template": "Thesignshowsatnoon.", "picture": "KITE",
    }  # fmt: skip
    assert "shows" in sources("The sign shows KITE.", family=(KITE,))["picture"]


def test_the_second_of_equal_words_is_the_one_that_is_marked():
    assert needs_picture("2 rows, row 2", ("2",)) == [True, False, False, False, False]
    assert needs_picture("row 2 has 2", ("2", "2")) == [False, True, False, True]
    assert needs_picture("notes: no", ("no",)) == [False, False, True]
    with pytest.raises(ValueError, match="'3' is not in"):
        needs_picture("row 2", ("3",))


def test_without_marks_there_is_no_source():
    bare = Case(id="c", family="signs", request=ask("?"), reference="A sign.")
    assert Source.known(bare, [bare]) is None
    assert labels_of(bare.request, ids_of("A"), text_of, frozenset({EOS})).sources == ()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_marked_part_of_the_demo_is_found_and_aligns_with_itself(family):
    own = [demo_case(draw(family, index, "test")) for index in range(3)]
    for number, one in enumerate(own):
        source = Source.known(one, own)
        tokens = ids_of(one.reference)
        made = labels_of(one.request, tokens, text_of, frozenset({EOS}), source)
        marked = sum(len(part.replace(" ", "").encode()) for part in one.fields)
        assert made.sources.count("picture") == marked, number


def test_labels_fit_the_tokens_that_decoding_delivers():
    answer = "The total is 12.50, not 7."
    target = Scripted(saying(ids_of(answer)))
    made = generate(target, load_drafter("lookup", target, nodes=4), PROMPT)
    labels = labels_of(PROMPT, made.token_ids, target.decode, target.eos_ids)
    counts = break_down(made, labels)
    assert made.text == answer
    assert sum(c["tokens"] for c in counts.kinds.values()) == len(made.token_ids) - 1
    drafted = sum(r.num_accepted for r in made.rounds)
    assert sum(c["drafted"] for c in counts.kinds.values()) == drafted
    assert counts.kinds["end"]["tokens"] == 1
