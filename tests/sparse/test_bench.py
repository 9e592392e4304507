"""All ways of decoding a long text, in turn: equal bits, honest figures, `last` always there."""

import json

import pytest
import torch
from checkpoints import built
from transformers import DynamicCache

from varifocal.errors import BadOption, BadRequest, UnsupportedTarget
from varifocal.sparse.bench import PRR, BenchConfig, BenchResult, run_bench
from varifocal.sparse.contest import DENSE, GUARDED, PLAIN
from varifocal.sparse.decoding import Decoder, dense_twin, open_model, text_ids
from varifocal.sparse.huggingface import SparseCache
from varifocal.sparse.kernels import BlockKernel
from varifocal.sparse.queues import TwoThreads
from varifocal.sparse.selection import Reach
from varifocal.sparse.texts import documentation, windows

REACH = Reach(budget=16, first=4, recent=8)
SMALL = {
    "selectors": ("quest",),
    "predictors": ("ema",),
    "contexts": (90,),
    "reach": REACH,
    "block_size": 4,
    "tokens": 3,
    "warm_up": 1,
}
TEXT = "The quick brown fox jumps over the lazy dog. " * 40


@pytest.fixture(scope="module")
def target():
    return open_model(str(built("text-llama")), dtype=torch.float32)


def benched(target, **changes) -> BenchResult:
    def draw(context, given):
        return windows(target, [("fox", TEXT)], context, given, 1)

    with TwoThreads() as queues:
        return run_bench(BenchConfig(**SMALL | changes), target, draw, queues=queues)


@pytest.fixture(scope="module")
def result(target) -> BenchResult:
    return benched(target)


def test_every_way_of_prr_says_what_plain_sparse_attention_says_to_the_bit(result):
    assert result.is_good and len(result.rows) == 2
    for row in result.rows:
        assert (row.identical, row.different) == (3 * 4, 0)  # three ways, four tokens
        (plain,) = row.tracks(PLAIN)
        assert all(track.said == plain.said for way in PRR for track in row.tracks(way))


def test_a_difference_is_counted(target, monkeypatch):
    honest = BlockKernel.combine

    def union(self, cache, layer, queries, helpings, chosen):
        early, late = helpings
        return honest(self, cache, layer, queries, helpings, early.is_computed | late.is_computed)

    monkeypatch.setattr(BlockKernel, "combine", union)
    spoilt = benched(target, predictors=("last",), tokens=2, warm_up=0)
    assert not spoilt.is_good and spoilt.rows[0].different > 0


def test_a_row_has_its_figures_and_last_stands_beside_any_predictor(result):
    made = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert {row["predictor"] for row in made["rows"]} == {"last", "ema"}
    for row in made["rows"]:
        assert set(row["tokens_per_second"]) == {DENSE, PLAIN, *PRR}
        for speed in row["tokens_per_second"].values():
            assert 0 < speed["p10"] <= speed["median"] <= speed["p90"]
        assert set(row["saved"]) == {*PRR}
        assert all(set(saved) == {"window", "token"} for saved in row["saved"].values())
        assert [layer["layer"] for layer in row["layers"]] == [0, 1, 2]
        blocks = sum(layer["repaired_blocks"] for layer in row["layers"])
        assert row["repaired_blocks"] == blocks
        assert 0 <= row["hit_rate"] <= 1 and 0 <= row["hit_rate_last"] <= 1
        assert row["accuracy"] is None  # this text asks nothing
        assert row["timeline"][PLAIN]["t_speculate"] == 0 < row["timeline"][PLAIN]["t_select"]
        if row["predictor"] == "last":
            assert row["hit_rate"] == row["hit_rate_last"]
    assert set(made["means"]) == {"quest/last", "quest/ema"}


def test_sparse_attention_agrees_with_dense_when_everything_fits(target):
    wide = benched(target, reach=Reach(budget=400), tokens=2, predictors=("last",))
    assert wide.rows[0].agreement == 1
    assert wide.rows[0].rates("last")[0].chosen >= 0


def test_answers_that_a_text_has_are_marked_right_or_wrong(result):
    row = result.rows[0]
    (contest,) = row.contests
    (plain,) = row.tracks(PLAIN)
    sample = contest.sample
    is_right = sample.given[: len(plain.said)] == torch.tensor(plain.said)
    object.__setattr__(sample, "is_answer", torch.ones(len(sample.given), dtype=torch.bool))
    assert row.accuracy(GUARDED) == row.accuracy(PLAIN) == float(is_right.float().mean())
    object.__setattr__(sample, "is_answer", None)


def test_a_free_text_goes_on_with_its_own_words(target):
    free = benched(target, follows=False, predictors=("last",), tokens=2)
    (track,) = free.rows[0].tracks(DENSE)
    decoder = Decoder(dense_twin(target), DynamicCache())
    (sample,) = windows(target, [("fox", TEXT)], 90, 3, 1)
    said, logits = [], decoder.read(sample.prompt)
    for _ in range(3):
        said.append(int(logits.argmax()))
        logits = decoder.read(torch.tensor(said[-1:]))
    assert track.said == said


def test_a_twin_shares_the_weights_and_attends_densely(target):
    twin = dense_twin(target)
    assert twin.model.lm_head.weight is target.model.lm_head.weight
    assert target.model.config._attn_implementation == "varifocal_sparse"
    assert twin.model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_the_language_part_of_a_vision_language_model_says_what_transformers_lets_it_say(family):
    target = open_model(str(built(family)), dtype=torch.float32)
    tokens = torch.tensor(text_ids(target, TEXT))[:50]
    decoder = Decoder(target, SparseCache(target.model, Reach(budget=400), block_size=4))
    said, logits = [], decoder.read(tokens)
    for _ in range(4):
        said.append(int(logits.argmax()))
        logits = decoder.read(torch.tensor(said[-1:]))
    theirs = dense_twin(target).model.generate(
        input_ids=tokens[None],
        attention_mask=torch.ones(1, 50, dtype=torch.int64),
        do_sample=False,
        max_new_tokens=4,
        min_new_tokens=4,
        pad_token_id=0,
    )
    assert said == theirs[0, 50:].tolist()


def test_a_branch_goes_on_from_the_same_tokens_and_neither_disturbs_the_other(target):
    tokens = torch.tensor(text_ids(target, TEXT))[:60]
    root = Decoder(target, SparseCache(target.model, REACH, block_size=4))
    root.read(tokens)
    twin = root.branch(root.cache.branch(predictor="last"))
    alone = Decoder(target, SparseCache(target.model, REACH, block_size=4, predictor="last"))
    alone.read(tokens)
    root.read(tokens[:1])
    assert (root.length, twin.length) == (61, 60)
    assert torch.equal(twin.read(tokens[3:4]), alone.read(tokens[3:4]))
    assert twin.cache.rates() == alone.cache.rates()


def test_measured_guesses_change_no_logit(target):
    tokens = torch.tensor(text_ids(target, TEXT))[:60]
    logits = []
    for is_measured in (False, True):
        cache = SparseCache(target.model, REACH, block_size=4, is_measured=is_measured)
        decoder = Decoder(target, cache)
        decoder.read(tokens)
        logits.append(torch.stack([decoder.read(tokens[n : n + 1]) for n in range(3)]))
    assert torch.equal(*logits)
    short = SparseCache(target.model, REACH, block_size=4, is_measured=True)
    Decoder(target, short).read(tokens[:9])
    assert short.calibrate() is None  # fewer blocks than can be measured
    with pytest.raises(BadRequest, match="let the model read a prompt"):
        SparseCache(target.model, REACH, block_size=4).calibrate()


def test_windows_are_spread_over_the_text(target):
    made = windows(target, [("fox", TEXT)], 50, 10, 3)
    assert [len(s.prompt) for s in made] == [50] * 3 and [len(s.given) for s in made] == [10] * 3
    ids = text_ids(target, TEXT)
    assert all(int(s.prompt[0]) == ids[0] for s in made)  # every window begins like a text
    assert made[-1].given.tolist() == ids[-10:]
    with pytest.raises(BadRequest, match=r"fox has \d+ tokens, too few for a context of 9000"):
        windows(target, [("fox", TEXT)], 9000, 10, 1)
    assert len(documentation()) > 300_000


def test_what_does_not_fit_is_refused_before_anything_is_read(target):
    def draw(*_):
        raise AssertionError("a text was drawn")

    for changes, wrong in {
        ("contexts", (90, 4095)): "holds 4096 tokens, but a context of 4095.*up to 4092 fit",
        ("block_size", 32): "does not hold one block of 32",
        ("selectors", ("quast",)): "no selector 'quast'",
        ("selectors", ("lightning",)): "index keys of a model with an indexer",
    }.items():
        with pytest.raises(BadOption, match=wrong):
            run_bench(BenchConfig(**SMALL | dict([changes])), target, draw)
    with pytest.raises(BadOption, match="no predictor 'luck'"):
        BenchConfig(predictors=("luck",))
    with pytest.raises(BadOption, match="at least 2 timed tokens"):
        BenchConfig(tokens=1)
    with pytest.raises(BadRequest, match="context of more than 3 tokens"):
        benched(target, contexts=(3,))


def test_the_tiny_model_says_what_is_missing(monkeypatch, tmp_path):
    monkeypatch.setattr("varifocal.sparse.decoding._TINY_FOLDER", tmp_path)
    with pytest.raises(UnsupportedTarget, match="tiny long-context model is missing from"):
        open_model("tiny")
