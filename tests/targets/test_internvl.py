"""InternVL: tiles and thumbnail of any picture, the language models inside, what is refused."""

import json
import shutil

import pytest
import tiny
import torch
from checkpoints import built
from checkpoints.internvl import SLOTS, TILE, build
from safetensors import safe_open

from varifocal.errors import UnsupportedTarget
from varifocal.request import ask
from varifocal.target import Want
from varifocal.targets import load_target

SIZES = [(1, 1), (20, 30), (300, 25), (1, 200), (200, 1), (TILE, TILE), (40, 41)]
SIZES += [(w, h) for w in (25, 75, 336, 672) for h in (30, 98, 325)]


@pytest.fixture(scope="module")
def target():
    return load_target(str(built("internvl")), dtype=torch.float32)


def rewritten(folder, file, **changes):
    """A copy of the checkpoint with other settings in one of its files."""
    shutil.copytree(built("internvl"), folder, dirs_exist_ok=True)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | changes))
    return str(folder)


def check_counts(target):
    for width, height in SIZES:
        image = tiny.picture(0, (width, height))
        made = target.processor.image_processor(
            images=[image], crop_to_patches=True, return_tensors="pt"
        )
        count = target.num_image_tokens(height, width)
        assert count == len(made["pixel_values"]) * SLOTS, (width, height)
        prompt = target.encode(ask("x", [image]))
        assert len(target.see(prompt).features) == count == len(target.regions(prompt))
        assert count == int(prompt.is_image.sum())


def test_slots_equal_features_and_the_processors_own_tiles_for_every_size(target):
    check_counts(target)


@pytest.mark.parametrize(
    "changes",
    [{"max_patches": 1}, {"max_patches": 12}, {"min_patches": 3}, {"crop_to_patches": True}],
)
def test_slots_follow_the_settings_of_the_checkpoints_image_processor(changes, tmp_path):
    folder = rewritten(tmp_path, "preprocessor_config.json", **changes)
    check_counts(load_target(folder, dtype=torch.float32))


def test_regions_are_those_of_the_tiles_row_by_row_and_then_of_the_thumbnail(target):
    prompt = target.encode(ask("x", [tiny.picture(0, (3 * TILE, 2 * TILE))]))
    boxes = [region.box for region in target.regions(prompt)]
    assert len(boxes) == 7 * SLOTS
    assert boxes[0] == pytest.approx((0, 0, 1 / 6, 1 / 4))
    assert boxes[SLOTS] == pytest.approx((1 / 3, 0, 1 / 2, 1 / 4))
    assert boxes[3 * SLOTS] == pytest.approx((0, 1 / 2, 1 / 6, 3 / 4))
    assert boxes[-1] == pytest.approx((1 / 2, 1 / 2, 1, 1))


def test_frames_of_pictures_are_written_once_and_are_no_slots(target):
    prompt = target.encode(ask("x", [tiny.picture(0), tiny.picture(1)]))
    ids = prompt.tokens.tolist()
    for name in ("<img>", "</img>"):
        places = [k for k, i in enumerate(ids) if i == target.tokenizer.convert_tokens_to_ids(name)]
        assert len(places) == 2
        assert not prompt.is_image[places].any()


def test_dynamic_rotary_positions_stay_as_they_are_up_to_the_end_of_the_context(tmp_path):
    config = json.loads((built("internvl") / "config.json").read_text())
    text = config["text_config"] | {"max_position_embeddings": 128}
    target = load_target(rewritten(tmp_path, "config.json", text_config=text), dtype=torch.float32)
    rotary = target.model.model.language_model.rotary_emb
    assert rotary.rope_type == "dynamic"
    before = rotary.inv_freq.clone()
    prompt = target.encode(ask("x" * 100, max_new_tokens=1))
    assert target.context_length - len(prompt.tokens) < 16
    target.prefill(prompt, Want())
    assert torch.equal(rotary.inv_freq, before)
    assert rotary.max_seq_len_cached == 128


def test_a_language_model_that_is_not_tested_is_refused_by_name(tmp_path):
    build(tmp_path, decoder="mistral")
    with pytest.raises(UnsupportedTarget, match=r"'mistral'.*tested with llama, qwen2, qwen3"):
        load_target(str(tmp_path))


def test_the_tiny_checkpoint_has_the_published_tensor_names():
    with safe_open(built("internvl") / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert names >= {
        "language_model.lm_head.weight",
        "language_model.model.layers.0.self_attn.q_proj.bias",
        "multi_modal_projector.linear_1.weight",
        "vision_tower.embeddings.cls_token",
        "vision_tower.encoder.layer.0.lambda_1",
    }
