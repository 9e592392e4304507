"""All predictors judged by one run: the counts are those of PRR itself, and texts are read once."""

import json

import pytest
import torch
from checkpoints import built
from transformers import DynamicCache

from varifocal.errors import BadOption, BadRequest
from varifocal.evaluation.hit_rates import png, tables
from varifocal.sparse.contest import OWN, Sample
from varifocal.sparse.decoding import Decoder, dense_twin, open_model
from varifocal.sparse.huggingface import SparseCache
from varifocal.sparse.measured import nearest, read_rates
from varifocal.sparse.panel import TRIED
from varifocal.sparse.predictors import PREDICTORS
from varifocal.sparse.profiles import paper_profiles
from varifocal.sparse.rates import RatesConfig, RatesResult, run_rates
from varifocal.sparse.selection import Reach
from varifocal.sparse.speculation import FixedSpeculation
from varifocal.sparse.texts import nested

REACH = Reach(budget=16, first=4, recent=8)
CONFIG = RatesConfig(
    selectors=("quest", "infllm"),
    predictors=(*PREDICTORS, "ema:beta=0.2"),
    contexts=(60, 90),
    budgets=(16, 32),
    reach=REACH,
    block_size=4,
    tokens=6,
)
TEXT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture(scope="module")
def target():
    return open_model(str(built("text-llama")), dtype=torch.float32)


@pytest.fixture(scope="module")
def result(target) -> RatesResult:
    def draw(contexts, given):
        return nested(target, [("fox", TEXT)], contexts, given, 2)

    return run_rates(CONFIG, target, draw)


def row_of(result, selector="quest", budget=16, context=90):
    key = (selector, budget, context)
    (row,) = (r for r in result.rows if (r.selector, r.budget, r.context) == key)
    return row


def decoded(target, sample: Sample, **options) -> SparseCache:
    """The cache behind a text that went on with guesses."""
    full = Decoder(dense_twin(target), DynamicCache())
    full.read(sample.prompt[:-OWN])
    cache = SparseCache(target.model, REACH, block_size=4, **options)
    cache.take(full.cache)
    decoder = Decoder(target, cache, full.length)
    decoder.read(sample.prompt[-OWN:-1])
    for token in (sample.prompt[-1], *sample.given[: CONFIG.tokens - 1]):
        decoder.read(token[None])
    return cache


@pytest.mark.parametrize(
    "selector,predictor,share",
    [
        *(("quest", name, 1.0) for name in CONFIG.all_predictors if name != "none"),
        ("quest", "ema_score", 1.5),
        ("infllm", "ema", 0.5),
    ],
)
def test_a_panel_counts_what_prr_with_this_predictor_counts(
    target, result, selector, predictor, share
):
    row, at = row_of(result, selector), TRIED.index(share)
    place = row.places[0]
    options = {"selector": selector, "predictor": predictor}
    cache = decoded(target, place.sample, speculation=FixedSpeculation(share), **options)
    own = [rate for rate in cache.rates() if rate.predictor == predictor]
    judged = [tally for tally in place.tallies if tally.predictor == predictor]
    assert own[0].guessed > 0
    assert [(r.layer, r.chosen, r.guessed, r.hits) for r in own] == [
        (t.layer, t.chosen, t.guessed[at], t.hits[at]) for t in judged
    ]


def test_bounds_hold_and_more_guesses_are_right_no_less_often(result):
    for row in result.rows:
        rates = {name: row.tallies(name)[0].hit_rates for name in CONFIG.all_predictors}
        assert not any(rates["none"]) and rates["oracle"][TRIED.index(1.0)] == 1
        for curve in rates.values():
            assert curve[0] == 0 and [*curve] == sorted(curve)
        assert 0 < row.tallies("last")[0].chance < 1


def test_a_text_that_is_read_through_all_contexts_counts_as_read_alone(target, result):
    def alone(contexts, given):
        return [[samples[-1]] for samples in nested(target, [("fox", TEXT)], (60, 90), given, 2)]

    small = dict(selectors=("quest",), predictors=("ema",), contexts=(90,), budgets=(16,))
    fresh = run_rates(RatesConfig(**vars(CONFIG) | small), target, alone)
    assert row_of(fresh).agreement == row_of(result).agreement
    assert row_of(fresh).tallies("ema") == row_of(result).tallies("ema")


def test_what_dense_attention_says_is_beside_and_agrees_where_everything_fits(target, result):
    place = row_of(result).places[1]
    decoder = Decoder(dense_twin(target), DynamicCache())
    logits = decoder.read_all(torch.cat([place.sample.prompt, place.sample.given[:5]]), 6)
    assert place.said_densely == logits.argmax(-1).tolist()
    wide = RatesConfig(**vars(CONFIG) | {"budgets": (400,), "contexts": (60,)})
    made = run_rates(wide, target, lambda c, g: nested(target, [("fox", TEXT)], c, g, 1))
    assert all(row.agreement == 1 for row in made.rows)


def test_answers_count_by_kind(result):
    place = row_of(result).places[0]
    sample, is_answer = place.sample, torch.tensor([True, False] * 3)
    object.__setattr__(sample, "is_answer", is_answer)
    wanted = [int(t) for t in sample.given]
    found = row_of(result).accuracy()
    object.__setattr__(sample, "is_answer", None)
    right = sum(place.said[n] == wanted[n] for n in (0, 2, 4))
    assert found == {
        "fox, place 1": {
            "words": 3,
            "sparse": right / 3,
            "dense": sum(place.said_densely[n] == wanted[n] for n in (0, 2, 4)) / 3,
        }
    }


def test_json_tables_and_picture_have_last_beside_the_others(result, tmp_path):
    made = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert made["settings"]["guesses"] == [*TRIED] and len(made["rows"]) == 8
    for row in made["rows"]:
        assert next(iter(row["predictors"])) == "last"
        assert all(len(p["layers"]) == 3 for p in row["predictors"].values())
        assert all(len(p["by_text"]) == 2 for p in row["predictors"].values())
    told = tables(result)
    heads = [line for line in told.splitlines() if line.startswith("| layer")]
    assert heads and all(line.startswith("| layer | last | ema |") for line in heads)
    assert "| last | never |" in told  # 90 %, on so short a text
    assert png(result, "llama").startswith(b"\x89PNG")
    path = tmp_path / "rates.json"
    path.write_text(json.dumps(made))
    profile = paper_profiles("quest")[0]  # chooses 64 blocks of a longer text
    (last, ema) = nearest(read_rates(path), profile, ["last", "ema"])
    assert (last.predictor, last.budget, last.context) == ("last", 32, 90)
    judged = row_of(result, budget=32).to_dict(["ema"])["predictors"]["ema"]
    assert ema.curve == tuple(judged["hit_rates"][:-1])  # but for two guesses a block


def test_rates_that_do_not_fit_a_profile_are_refused(tmp_path):
    path = tmp_path / "rates.json"
    for text, wrong in (("{", "cannot be read as JSON"), ('{"rows": [1]}', "are not those of")):
        path.write_text(text)
        with pytest.raises(BadRequest, match=wrong):
            read_rates(path)
    with pytest.raises(BadRequest, match="cannot be read"):
        read_rates(tmp_path / "none.json")
    with pytest.raises(BadOption, match="rates are of , and the profile is of quest"):
        nearest([], paper_profiles("quest")[0])


def test_what_cannot_be_measured_is_refused_before_anything_is_read(target):
    def draw(*_):
        raise AssertionError("a text was drawn")

    for changes, wrong in (
        ({"contexts": (4095,)}, "holds 4096 tokens, but a context of 4095.*up to 4090 fit"),
        ({"budgets": (3,)}, "does not hold one block"),
        ({"predictors": ("luck",)}, "no predictor 'luck'"),
        ({"contexts": (3,)}, "more than 3 tokens"),
        ({"budgets": ()}, "at least one of each"),
    ):
        with pytest.raises(BadOption, match=wrong):
            run_rates(RatesConfig(**vars(CONFIG) | changes), target, draw)
