"""Members of auto as one text: names, folders and their options, however it is given."""

import pytest
import tiny
from checkpoints import built
from relatives import request, target_of

from varifocal.cli._config import read_config
from varifocal.cli._inputs import pairs
from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters.auto import AutoDrafter
from varifocal.engine import parse_options
from varifocal.errors import BadOption
from varifocal.evaluation.entries import parse_drafters

TEXT = "ensemble@model=me@here/x:y@views=T+lookup@ngram=2+lookahead"
HINTS = {"drafting": {"set": list[str]}}


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target()


def test_one_text_means_the_same_on_the_command_line_in_yaml_and_in_a_benchmark(tmp_path):
    wanted = {"members": TEXT, "mix": "mtcp"}
    assert parse_options("auto", pairs([f"members={TEXT}", "mix=mtcp"])) == wanted
    file = tmp_path / "config.yaml"
    file.write_text(f"drafting:\n  set:\n    members: {TEXT}\n    mix: mtcp\n")
    read = read_config(file, [], HINTS).defaults["set"]
    assert parse_options("auto", pairs(read)) == wanted
    entry = parse_drafters(f"plain,auto:members={TEXT}:mix=mtcp,lookup:ngram=2")[1]
    assert (entry.name, entry.options) == ("auto", wanted)


def test_options_of_a_member_are_read_as_its_own_and_come_before_the_limits_of_all(target):
    text = "lookup@ngram=2@depth=4+lookahead@nodes=7@output_weight=0.5+lookup"
    auto = load_drafter("auto", target, members=text, nodes=12)
    lookup, lookahead, other = auto.members
    assert (lookup.config.ngram, lookup.config.depth, lookup.config.nodes) == (2, 4, 12)
    assert (lookahead.config.nodes, lookahead.config.output_weight) == (7, 0.5)
    assert other.config.ngram == 3


def test_an_at_sign_in_a_path_begins_no_option(target, tmp_path):
    folder = tmp_path / "me@home"
    with pytest.raises(BadOption, match="me@home"):
        load_drafter("auto", target, members=f"lookup+{folder}@depth=3")


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ("lookup@ngrams=2", "no option ngrams"),
        ("lookup@ngram=two", "ngram wants int, got 'two'"),
        ("lookup@ngram=2@ngram=3", "each option once"),
        ("@ngram=2", "name@option=value"),
        ("lookup@ngram=2+lookup@ngram=2", "twice"),
        ("plain@depth=0", "plain cannot be a member"),
    ],
)
def test_options_that_are_wrong_are_named(members, said, target):
    with pytest.raises(BadOption, match=said):
        load_drafter("auto", target, members=members)


def test_mixes_that_are_unknown_or_have_no_effect_are_named():
    config = AutoDrafter.Config()
    object.__setattr__(config, "mix", "true")  # as where types are not checked
    with pytest.raises(BadOption, match=r"mix must be one of none, mt, .*got 'true'"):
        config.__post_init__()
    with pytest.raises(BadOption, match="graft=false has no effect"):
        AutoDrafter.Config(mix="mt", graft=False)


def test_the_draft_model_of_a_member_is_named_beside_it():
    target = target_of("llava_next")
    members = f"lookup+ensemble@model={built('llava')}@views=MT@depth=3"
    auto = load_drafter("auto", target, members=members, mix="mtcp")
    ensemble = auto.members[1]
    assert (ensemble.config.views, ensemble.config.depth, ensemble.is_free) == ("MT", 3, False)
    asked = request(tokens=12)
    plain = generate(target, load_drafter("plain", target), asked)
    assert generate(target, auto, asked).token_ids == plain.token_ids
