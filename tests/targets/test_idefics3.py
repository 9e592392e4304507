"""Idefics3, SmolVLM and SmolVLM2: tiles, what announces them, and what is refused."""

import json
import shutil

import pytest
import tiny
import torch
from checkpoints import built, families
from checkpoints.idefics3 import LONGEST, PATCH, SCALE, TILE, build
from safetensors import safe_open

from varifocal.errors import UnsupportedTarget
from varifocal.request import ask
from varifocal.target import Want
from varifocal.targets import load_target

NAMES = ["idefics3", "smolvlm"]
SIDE = TILE // PATCH // SCALE
SIZES = [(1, 1), (20, 30), (300, 25), (1, 200), (200, 1), (71, 72), (24, 25)]
SIZES += [(w, h) for w in (25, 75, 336, 672) for h in (30, 98, 325)]


@pytest.fixture(scope="module", params=NAMES)
def target(request):
    return load_target(str(built(request.param)), dtype=torch.float32)


def rewritten(name, folder, file, **changes):
    """A copy of a checkpoint with other settings in one of its files."""
    shutil.copytree(built(name), folder, dirs_exist_ok=True)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | changes))
    return str(folder)


def check_counts(target, longest=1000):
    for width, height in (size for size in SIZES if max(size) <= longest):
        image = tiny.picture(0, (width, height))
        made = target.processor.image_processor(
            images=[[image]], return_row_col_info=True, return_tensors="pt"
        )
        rows, columns = made["rows"][0][0], made["cols"][0][0]
        assert target._tiles(height, width) == (rows, columns), (width, height)
        count = target.num_image_tokens(height, width)
        assert count == made["pixel_values"].shape[1] * target._side**2
        prompt = target.encode(ask("x", [image]))
        assert len(target.see(prompt).features) == count == len(target.regions(prompt))
        assert count == int(prompt.is_image.sum())


def test_slots_equal_features_and_the_processors_own_rows_and_columns_for_every_size(target):
    check_counts(target)


@pytest.mark.parametrize(
    "changes",
    [
        {"do_image_splitting": False},
        {"size": {"longest_edge": TILE}},
        {"size": {"longest_edge": 2 * TILE + 5}},
    ],
)
def test_slots_follow_the_settings_of_the_checkpoints_image_processor(changes, tmp_path):
    folder = rewritten("idefics3", tmp_path, "preprocessor_config.json", **changes)
    check_counts(load_target(folder, dtype=torch.float32))


def test_slots_equal_features_where_pictures_keep_their_own_size(tmp_path):
    folder = rewritten("idefics3", tmp_path, "preprocessor_config.json", do_resize=False)
    check_counts(load_target(folder, dtype=torch.float32), longest=100)


def test_each_tile_is_announced_and_the_view_of_the_whole_comes_last(target):
    prompt = target.encode(ask("x", [tiny.picture(0, (LONGEST, LONGEST // 2))]))
    text = target.tokenizer.decode(prompt.tokens)
    slots = "<image>" * SIDE**2
    row = "".join(f"<fake_token_around_image><row_{{row}}_col_{k}>{slots}" for k in range(1, 4))
    tiles = row.format(row=1) + "\n" + row.format(row=2) + "\n\n"
    whole = f"<fake_token_around_image><global-img>{slots}<fake_token_around_image>x"
    assert text.startswith(f"<|im_start|>User:{tiles}{whole}<end_of_utterance>")
    boxes = [region.box for region in target.regions(prompt)]
    assert boxes[0] == pytest.approx((0, 0, 1 / 9, 1 / 6))
    assert boxes[SIDE**2] == pytest.approx((1 / 3, 0, 4 / 9, 1 / 6))
    assert boxes[-1] == pytest.approx((2 / 3, 2 / 3, 1, 1))


def test_pictures_of_many_and_of_no_tiles_stand_in_one_prompt(tmp_path):
    folder = rewritten("idefics3", tmp_path, "preprocessor_config.json", do_resize=False)
    target = load_target(folder, dtype=torch.float32)
    images = [tiny.picture(0, (90, 30)), tiny.picture(1, (20, 20))]
    own = families()["idefics3"].reference(tmp_path)
    text = "<|im_start|>User:<image><image>compare<end_of_utterance>"
    inputs = own(text=[f"{text}\nAssistant:"], images=images, return_tensors="pt")
    prompt = target.encode(ask("compare", images))
    assert prompt.tokens.tolist() == inputs["input_ids"][0].tolist()
    _, seen = target.prefill(prompt, Want())
    out = target.model(**inputs)
    torch.testing.assert_close(seen.logits[0], out.logits[0, -1], atol=2e-5, rtol=1e-5)


def test_a_language_model_that_is_not_tested_is_refused_by_name(tmp_path):
    build(tmp_path, decoder="mistral")
    with pytest.raises(UnsupportedTarget, match=r"'mistral'.*tested with llama"):
        load_target(str(tmp_path))


@pytest.mark.parametrize("name", NAMES)
def test_the_tiny_checkpoints_have_the_published_tensor_names(name):
    with safe_open(built(name) / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert names >= {
        "lm_head.weight",
        "model.connector.modality_projection.proj.weight",
        "model.text_model.layers.0.self_attn.q_proj.weight",
        "model.vision_model.embeddings.patch_embedding.weight",
        "model.vision_model.encoder.layers.0.self_attn.out_proj.weight",
    }
