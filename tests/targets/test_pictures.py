"""What holds for families whose checkpoints also read videos, of which only pictures are used."""

import re
from functools import cache

import pytest
import tiny
import torch
from checkpoints import built, families

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.request import ask
from varifocal.targets import load_target
from varifocal.targets._hf import HFTarget

OURS = {"qwen2_vl", "qwen3_vl", "idefics3", "internvl"}
MAIN = [n for n, f in families().items() if f.target in OURS and not f.is_variant]
A, B, C = (tiny.picture(k, size) for k, size in enumerate([(60, 40), (30, 90), (80, 80)]))


@cache
def loaded(name: str) -> HFTarget:
    return load_target(str(built(name)), dtype=torch.float32)


@pytest.mark.parametrize("name", MAIN)
def test_pixels_are_those_of_transformers_own_processor(name):
    target, images = loaded(name), [A, B, C]
    own = families()[name].reference(built(name))
    token = target.image_token
    inputs = own(text=[token * 3], images=images, return_tensors="pt")
    prompt = target.encode(ask("compare them", images))
    assert prompt.pixels
    for key, pixels in prompt.pixels.items():
        assert torch.equal(pixels, inputs[key])


@pytest.mark.parametrize("name", MAIN)
def test_pictures_pass_the_tower_once_however_many_rounds_follow(name):
    target = loaded(name)
    parts = target.model.model
    tower = next(
        getattr(parts, part)
        for part in ("visual", "vision_model", "vision_tower")
        if hasattr(parts, part)
    )
    calls = []
    handle = tower.register_forward_hook(lambda *_: calls.append(1))
    request = ask("compare them", [A, B, C], max_new_tokens=16)
    result = generate(target, load_drafter("lookup", target), request)
    handle.remove()
    assert len(result.rounds) > 2
    assert len(calls) == 1


@pytest.mark.parametrize("name", MAIN)
def test_what_no_drafter_may_propose_is_banned(name):
    target = loaded(name)
    special = {i for i, t in target.tokenizer.added_tokens_decoder.items() if t.special}
    assert target.banned_ids == special - target.eos_ids
    named = target.tokenizer(families()[name].typed)["input_ids"]
    assert target.banned_ids & set(named)
    assert target.model.config.image_token_id in target.banned_ids


@pytest.mark.parametrize("name", MAIN)
def test_each_visual_token_sees_what_its_region_shows_when_the_tower_does_not_mix_patches(name):
    target = load_target(str(built(name)), dtype=torch.float32)
    mixing = re.compile(r"attn\.proj\.|self_attn\.out_proj\.|attention\.projection_layer\.")
    silenced = [w for n, w in target.model.named_parameters() if ".vis" in n and mixing.search(n)]
    assert len(silenced) >= 4
    with torch.no_grad():
        for weight in silenced:
            weight.zero_()
    image = tiny.picture(0, (96, 64)).resize((384, 256), 0)
    prompt = target.encode(ask("x", [image]))
    regions, before = target.regions(prompt), target.see(prompt).features
    sizes = [round((r.box[2] - r.box[0]) * (r.box[3] - r.box[1]), 6) for r in regions]
    for number in range(0, len(regions), max(1, len(regions) // 6)):
        box = [round(v * side) for v, side in zip(regions[number].box, (384, 256) * 2, strict=True)]
        spot = image.copy()
        spot.paste((255, 0, 255), tuple(box))
        after = target.see(target.encode(ask("x", [spot]))).features
        moved = (after - before).norm(dim=-1).tolist()
        # Tiles and the view of the whole picture show the same place at different sizes.
        alike = [k for k, size in enumerate(sizes) if size == sizes[number]]
        assert max(alike, key=moved.__getitem__) == number
