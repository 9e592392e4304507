"""Distilling an indexer: what it learns from, that it learns, resumes, and how it is scored."""

import json

import pytest
import torch
from checkpoints import built

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse import Reach, train_indexer
from varifocal.sparse.decoding import open_model, text_ids
from varifocal.sparse.indexer import Indexer, IndexerConfig, load_indexer
from varifocal.sparse.indexer_recall import RecallConfig, mass_kept
from varifocal.sparse.indexer_teacher import Attention, show
from varifocal.sparse.indexer_texts import Windows, texts_for
from varifocal.sparse.train_indexer import IndexerPlan, divergence

TEXT = " ".join(f"the {n * 7 % 31}th fox jumps over {n * 5 % 17} lazy dogs." for n in range(120))
PLAN = IndexerPlan(heads=2, width=8, rotary=4, queries=16, budget=32)


@pytest.fixture(scope="module")
def target():
    return open_model(str(built("text-llama")), dtype=torch.float32)


@pytest.fixture(scope="module")
def texts(target):
    return Windows(target, [("foxes", TEXT)], (64, 96), 0)


def new_run(target, texts) -> train_indexer._Run:
    config = IndexerConfig(
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        heads=PLAN.heads,
        width=PLAN.width,
        rotary=PLAN.rotary,
    )
    torch.manual_seed(0)
    return train_indexer._Run(target, Indexer(config), texts, PLAN)


def attentions(target, tokens) -> list[Attention]:
    found: list[Attention] = []
    show(target, tokens, found.append)
    return found


def test_the_teacher_shows_what_eager_attention_computes(target):
    tokens = torch.tensor(text_ids(target, TEXT)[:40])
    places = torch.tensor([3, 39])
    target.model.set_attn_implementation("eager")
    try:
        theirs = target.model(tokens[None], output_attentions=True).attentions
    finally:
        target.model.set_attn_implementation("varifocal_sparse")
    for attention in attentions(target, tokens):
        ours = attention.probabilities(places).flatten(1, 2).transpose(0, 1)
        torch.testing.assert_close(ours, theirs[attention.layer][0][:, places])


def test_the_loss_is_the_divergence_of_the_mean_head_from_the_scores(target, texts):
    layer = new_run(target, texts).indexer.layer(1)
    attention = attentions(target, texts.train(0))[1]
    places = torch.tensor([5, 40])
    wanted = []
    for place, truth in zip(places, attention.probabilities(places), strict=True):
        p = truth.mean((0, 1))[: place + 1]
        keys = layer.keys(attention.entering)[0]
        said = layer.scores(attention.asking(place[None]), keys)[0, : place + 1].softmax(0)
        wanted.append((p * (p / said).log()).sum())
    ours = divergence(layer, attention, places)
    torch.testing.assert_close(ours, torch.stack(wanted).mean())
    assert ours > 0


def test_training_lowers_the_loss_and_leaves_the_target_alone(target, texts):
    before = {name: weight.clone() for name, weight in target.model.state_dict().items()}
    run = new_run(target, texts)
    run.spent = 0.1 * PLAN.seconds  # the rate has risen
    for _ in range(30):
        run.update()
    means = [sum(losses.values()) for losses in run.losses]
    assert sum(means[-4:]) < 0.95 * sum(means[:4])
    for name, weight in target.model.state_dict().items():
        assert torch.equal(weight, before[name])
    assert all(weight.grad is None for weight in target.model.parameters())


def test_a_resumed_run_goes_on_as_if_never_interrupted(target, texts, tmp_path):
    whole, broken = new_run(target, texts), new_run(target, texts)
    for run in (whole, broken):
        run.update()
    broken.save(tmp_path)
    whole.update()
    again = new_run(target, texts)
    again.resume(tmp_path)
    again.update()
    assert again.step == whole.step == 2
    pairs = zip(again.indexer.parameters(), whole.indexer.parameters(), strict=True)
    assert all(torch.equal(ours, theirs) for ours, theirs in pairs)


def test_the_best_blocks_keep_most_and_a_budget_for_all_keeps_everything(target, texts):
    indexer = new_run(target, texts).indexer
    held_out = texts.held_out()["96 tokens"]
    small = Reach(budget=8, first=4, recent=8)
    some = mass_kept(target, indexer, held_out, RecallConfig(reach=small, block_size=4))
    by_block = ("quest", "infllm", "lightning")
    assert some["kept"] < min(some[name] for name in by_block)
    assert max(some[name] for name in by_block) <= some["oracle"] < 1
    wide = RecallConfig(reach=Reach(budget=4096), block_size=4)
    every = mass_kept(target, indexer, held_out, wide)
    assert every.pop("kept") < 1 and set(every.values()) == {1.0}


def test_held_out_windows_are_in_no_window_to_train_on(target, texts):
    assert texts._train[0].tolist() + texts._rest[0].tolist() == text_ids(target, TEXT)
    for step in range(20):
        assert texts.train(step).tolist() in windows_of(texts._train[0].tolist(), (64, 96))
    with pytest.raises(BadRequest, match="too few for windows of 4000"):
        Windows(target, [("foxes", TEXT)], (4000,), 0)
    for lengths, wrong in (("1,x", "wants numbers"), ("9000", "within 2 and the 4096")):
        with pytest.raises(BadOption, match=wrong):
            texts_for(target, [], lengths, 0)


def windows_of(ids: list[int], lengths: tuple[int, ...]) -> list[list[int]]:
    return [ids[at : at + n] for n in lengths for at in range(len(ids) - n + 1)]


def test_the_command_leaves_an_indexer_that_tells_its_recipe_and_scores(target, tmp_path):
    (tmp_path / "foxes.txt").write_text(TEXT)
    words = ["--target", str(built("text-llama")), "--text", str(tmp_path / "foxes.txt")]
    words += ["--lengths", "64", "--seconds", "0.2", "--heads", "2", "--width", "8"]
    train_indexer.main([*words, "--rotary", "4", "--out", str(tmp_path / "made")])
    made = load_indexer(tmp_path / "made")
    made.check_origin("any", target.fingerprint)
    assert made.origin.recipe["steps"] > 0 and made.origin.recipe["lengths"] == [64]
    assert set(made.origin.scores) == {"64 tokens"}
    lines = (tmp_path / "made" / "run" / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == made.origin.recipe["steps"]
    with pytest.raises(SystemExit):
        train_indexer.main([*words, "--rotary", "3", "--out", str(tmp_path / "made")])
