import pytest
from scripted import Scripted, saying

from varifocal.drafters import drafter_class, drafter_names
from varifocal.errors import BadOption
from varifocal.evaluation.entries import everything, expand_all, parse_drafters


def texts(entries):
    return [e.text for e in entries]


def test_entries_keep_their_order_and_text():
    entries = parse_drafters("plain, lookup ,lookup:ngram=2,hf-generate")
    assert texts(entries) == ["plain", "lookup", "lookup:ngram=2", "hf-generate"]
    assert entries[2].name == "lookup" and entries[2].options == {"ngram": 2}
    assert entries[3].is_outside and not entries[2].is_outside


def test_plain_is_added_in_front():
    assert texts(parse_drafters("lookup")) == ["plain", "lookup"]


def test_fast_entries_bring_their_own_baseline():
    entries = parse_drafters("lookup:fast=true,lookup")
    assert texts(entries) == ["plain", "plain:fast=true", "lookup:fast=true", "lookup"]
    plain, packed, fast, stock = entries
    assert fast.is_fast and "fast" not in fast.options
    assert fast.baseline_of(entries) is packed
    assert stock.baseline_of(entries) is plain
    assert packed.baseline_of(entries) is plain and plain.baseline_of(entries) is plain


def test_options_are_typed_by_the_drafter():
    (_, entry) = parse_drafters("lookup:nodes=auto:ngram=2:depth=4")
    assert entry.options == {"nodes": "auto", "ngram": 2, "depth": 4}
    (_, entry) = parse_drafters("lookup:nodes=12")
    assert entry.options == {"nodes": 12}


def test_options_may_follow_a_comma():
    entries = parse_drafters("lookup:nodes=4,depth=3,hf-prompt-lookup:tokens=5,ngram=3")
    assert texts(entries)[1:] == ["lookup:nodes=4,depth=3", "hf-prompt-lookup:tokens=5,ngram=3"]
    assert entries[1].options == {"nodes": 4, "depth": 3}
    assert entries[2].options == {"tokens": 5, "ngram": 3}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no drafter is named"),
        ("nonesuch", "nonesuch"),
        ("lookup:speed=9", "speed"),
        ("lookup:ngram=many", "ngram"),
        ("lookup:40", "name:option=value"),
        ("lookup:ngram=2:ngram=3", "given twice"),
        ("lookup,lookup", "named twice"),
        ("lookup:fast=maybe", "fast"),
        ("hf-magic", "hf-generate"),
        ("hf-generate:tokens=4", "has none"),
        ("hf-generate:fast=true", "has none"),
        ("hf-prompt-lookup:tokens=0", "positive"),
        (":ngram=2", "name:option=value"),
    ],
)
def test_what_is_wrong_is_named(text, said):
    with pytest.raises(BadOption, match=said):
        parse_drafters(text)


def test_all_is_every_drafter_that_can_run_as_it_is_and_two_from_outside(monkeypatch):
    shipped = []
    monkeypatch.setattr(
        "varifocal.evaluation.entries.shipped_weights",
        lambda name, target: shipped.append(name) or ("folder" if name == "fovea" else None),
    )
    target = Scripted(saying([]))
    own = everything(target)
    assert own[0] == "plain" and "fovea" in own and "lookup" in own
    weightless = [n for n in drafter_names() if drafter_class(n).needs.startswith("nothing")]
    assert sorted(own) == sorted([*weightless, "fovea"])
    assert sorted(shipped) == sorted(set(drafter_names()) - set(weightless))
    assert expand_all("all", target) == ",".join([*own, "hf-generate", "hf-prompt-lookup"])
    assert "fovea" not in everything()  # whether it is shipped depends on the target


def test_all_may_stand_among_others_which_come_once():
    made = expand_all("hf-generate,all,lookup:ngram=2,lookup").split(",")
    assert made[:2] == ["hf-generate", "plain"] and made[-2:] == ["lookup:ngram=2", "lookup"]
    assert len(set(made)) == len(made)
    assert expand_all("plain,lookup") == "plain,lookup"
    parse_drafters(",".join(made))
