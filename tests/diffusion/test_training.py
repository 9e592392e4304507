"""The tiny models' training: what is masked, what counts, what a resume keeps, what came out."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import varifocal.diffusion
from varifocal.diffusion import tasks
from varifocal.diffusion._begin import moved
from varifocal.diffusion._lessons import Batches, draw_masks, encode
from varifocal.diffusion._reference import aligned_logits, decode, laid
from varifocal.diffusion._scoring import decode_accuracy, decoded, fitting
from varifocal.diffusion._tokenizer import train_tokenizer
from varifocal.diffusion.loading import SHIPPED, load_denoiser
from varifocal.diffusion.model import rotate, rotation
from varifocal.diffusion.training import SHARES, Plan, causal_loss_of, loss_of, new_model, train
from varifocal.errors import BadOption


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(60)


@pytest.fixture(scope="module")
def shipped():
    return {name: load_denoiser(name, dtype=torch.float32) for name in SHIPPED}


def batches(tokenizer, number, *, seed=0):
    return list(islice(Batches(tokenizer, SHARES, seed=seed, batch_tokens=768), number))


def test_masks_stand_on_the_canvas_alone_and_every_row_has_one_that_counts(tokenizer):
    for batch in batches(tokenizer, 20):
        is_prompt = batch.weight.cummax(1).values == 0
        counted = batch.is_masked & (batch.weight > 0)
        assert is_prompt.any(1).all()
        assert not (batch.is_masked & is_prompt).any()
        assert counted.any(1).all()


def test_batches_are_a_function_of_their_seed(tokenizer):
    first, again, other = (batches(tokenizer, 3, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(first, again, strict=True):
        assert a.truth.equal(b.truth)
        assert a.is_masked.equal(b.is_masked)
    assert any(a.truth.shape != b.truth.shape or not a.truth.equal(b.truth)
               for a, b in zip(first, other, strict=True))  # fmt: skip


def test_half_of_the_masks_are_those_that_decoding_by_blocks_meets():
    noise, as_blocks = np.random.default_rng(0), 0
    for _ in range(400):
        is_masked, counts = draw_masks(noise, 96, 60)
        if not counts.all():
            as_blocks += 1
            behind = int(np.flatnonzero(~counts)[0])
            assert is_masked[behind:].all()
            assert not is_masked[: behind - 32].any()
    assert 140 < as_blocks < 220


@pytest.mark.parametrize("name", SHIPPED)
def test_the_loss_is_the_weighted_mean_over_masked_tokens(name, tokenizer):
    model, mask = new_model(name, len(tokenizer)), tokenizer.mask_token_id
    (batch,) = batches(tokenizer, 1)
    shown = batch.truth.clone()
    shown[batch.is_masked] = mask
    positions = torch.arange(shown.shape[1]).expand(shown.shape)
    logits, total, weights = model(shown, positions), 0.0, 0.0
    for row, place in batch.is_masked.nonzero().tolist():
        about = logits[row, place - 1 if name == "dream-tiny" else place]
        weight = float(batch.weight[row, place])
        total += weight * F.cross_entropy(about, batch.truth[row, place]).item()
        weights += weight
    assert loss_of(model, batch, mask).item() == pytest.approx(total / weights, rel=1e-4)


def test_the_causal_loss_sees_no_token_that_comes_later(tokenizer):
    model, (batch,) = new_model("dream-tiny", len(tokenizer)), batches(tokenizer, 1)
    first = int((batch.weight > 0).nonzero()[:, 1].min())
    weight = torch.zeros_like(batch.weight)
    weight[:, first] = 1.0
    changed = batch.truth.clone()
    changed[:, first + 1 :] = 7
    before, after = (
        causal_loss_of(model, replace(batch, truth=truth, weight=weight)).item()
        for truth in (batch.truth, changed)
    )
    assert before == pytest.approx(after, abs=1e-6)


def test_heads_of_the_first_layer_begin_with_one_neighbour_each(tokenizer):
    model = new_model("dream-tiny", len(tokenizer))
    config, layer = model.config, model.layers[0]
    tokens = torch.randint(len(tokenizer), (32, 40), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(40).expand(32, 40)
    normed = layer.attention_norm(model.embed(tokens))
    turn = rotation(positions, config, torch.float32)
    heads = (linear(normed).unflatten(-1, (-1, config.head_width)).transpose(1, 2)
             for linear in (layer.query, layer.key))  # fmt: skip
    query, key = (rotate(x, turn) for x in heads)
    scores = query @ key.repeat_interleave(config.heads // config.kv_heads, 1).mT
    found = scores.mean(0)[:, 20].argmax(-1) - 20  # whatever the tokens are
    assert found.tolist() == [-1, -2, -3, 1]


def test_a_moved_model_says_in_place_what_the_shifted_one_says(tokenizer):
    shifted = new_model("dream-tiny", len(tokenizer), seed=3)
    model = moved(shifted)
    tokens = torch.randint(len(tokenizer), (4, 60), generator=torch.Generator().manual_seed(0))
    positions = torch.arange(60).expand(4, 60)
    wanted = aligned_logits(shifted, tokens, positions)[:, 1:]
    told = aligned_logits(model, tokens, positions)[:, 1:]
    assert vars(model.config) == vars(new_model("llada-tiny", len(tokenizer)).config)
    assert ((told - wanted).abs().mean() / wanted.abs().mean()).item() < 0.02


def test_a_training_goes_on_where_it_was_cut_off(tokenizer, tmp_path):
    plan = Plan(model="dream-tiny", cpu_seconds=0.6, batch_tokens=256, shares={"compare": 1.0})
    model, at = train(plan, tokenizer, tmp_path)
    steps, weight = at.step, model.embed.weight.detach().clone()
    same, _ = train(plan, tokenizer, tmp_path)
    assert same.embed.weight.equal(weight)  # the budget is spent
    _, at = train(replace(plan, cpu_seconds=1.2), tokenizer, tmp_path)
    assert at.step > steps > 0
    assert at.resumes == 1
    assert at.spent >= 1.2


def test_an_unknown_model_or_an_empty_budget_is_refused():
    with pytest.raises(BadOption, match="llada-tiny, dream-tiny"):
        Plan(model="llada", cpu_seconds=10.0)
    with pytest.raises(BadOption, match="more than 0"):
        Plan(model="llada-tiny", cpu_seconds=0.0)


@pytest.mark.parametrize("name", SHIPPED)
def test_leaving_a_row_at_its_end_changes_no_text(name, shipped):
    denoiser = shipped[name]
    items = [tasks.find(task).draw(0, "test") for task in ("lookup", "compare")]
    prompts = [encode(denoiser.tokenizer, item)[0] for item in items]
    end = denoiser.vocabulary.pad
    full, left = (
        decode(denoiser.model, prompts, 64, mask=denoiser.vocabulary.mask, end=end, only_text=only)
        for only in (False, True)
    )
    assert not (full == denoiser.vocabulary.mask).any()
    for row, other in zip(full.tolist(), left.tolist(), strict=True):
        assert row[: row.index(end)] == other[: other.index(end)]


def test_rows_decoded_together_are_padded_on_the_left():
    tokens, positions, is_real = laid([[5, 6, 7], [8]], 2, 1, 0)
    assert tokens.tolist() == [[5, 6, 7, 1, 1], [0, 0, 8, 1, 1]]
    assert positions.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]
    assert is_real.tolist() == [[True] * 5, [False, False, True, True, True]]


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_models_answer_unseen_items(name, shipped):
    denoiser = shipped[name]
    for task in ("lookup", "choice", "search"):
        items = fitting(denoiser.tokenizer, task, "test", 2, 64)
        told = decoded(denoiser.model, denoiser.tokenizer, items, 64)
        assert told == [item.answer for item in items]


@pytest.mark.slow
@pytest.mark.parametrize("canvas", [64, 128])
@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_models_reach_the_accuracy_that_gates_need(name, canvas, shipped):
    denoiser = shipped[name]
    found = decode_accuracy(denoiser.model, denoiser.tokenizer, "test", 40, canvas)
    assert all(of["answer"] >= 0.9 for of in found.values() if "answer" in of), found


@pytest.mark.parametrize("name", SHIPPED)
def test_recipes_tell_an_accuracy_of_95_percent_or_more(name):
    folder = Path(varifocal.diffusion.__file__).parent / "weights" / name
    recipe = json.loads((folder / "RECIPE.json").read_text())
    assert recipe["test_items"] >= 200
    for of_tasks in recipe["accuracy"].values():
        scored = {task: of["answer"] for task, of in of_tasks.items() if "answer" in of}
        assert set(scored) == {task for task in tasks.names() if tasks.find(task).is_scored}
        assert min(scored.values()) >= 0.95
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4 * 2**20
