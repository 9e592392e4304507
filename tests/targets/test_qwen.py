"""Qwen-VL: positions belong to the request, pictures have any size, what is refused."""

import json
import shutil
from functools import cache

import pytest
import tiny
import torch
from checkpoints import built, families
from checkpoints.qwen2_vl import MAX_PIXELS, MIN_PIXELS, build
from safetensors import safe_open

from varifocal.decode import Generation, generate
from varifocal.drafters import load_drafter
from varifocal.errors import BadImage, UnsupportedTarget
from varifocal.request import Message, Request, ask
from varifocal.target import Want
from varifocal.targets import load_target
from varifocal.targets._hf import HFTarget, Seen
from varifocal.tree import DraftTree

NAMES = ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
WIDE, TALL, SQUARE = (tiny.picture(k, s) for k, s in enumerate([(150, 40), (30, 90), (80, 80)]))
REQUESTS = [
    ask("what is it? what is it?", [WIDE], max_new_tokens=16),
    ask("only text, only text", max_new_tokens=16),
    ask("compare and compare", [TALL, SQUARE], max_new_tokens=16),
    ask("text once more, once more", max_new_tokens=16),
]
TREE = DraftTree(torch.tensor([10, 11, 12, 13, 14, 15]), torch.tensor([-1, 0, 0, 1, 1, 2]))


@cache
def loaded(name: str) -> HFTarget:
    return load_target(str(built(name)), dtype=torch.float32)


@cache
def fresh_ids(name: str, number: int) -> list[int]:
    """Of a request that is alone on a model of its own."""
    target = load_target(str(built(name)), dtype=torch.float32)
    return generate(target, plain(target), REQUESTS[number]).token_ids


def own_inputs(name, request):
    """What transformers' own processor makes of a request, as keywords of the model."""
    messages = [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part}
                if isinstance(part, str)
                else {"type": "image", "image": part}
                for part in message.parts
            ],
        }
        for message in request.messages
    ]
    settings = {"tokenize": True, "return_dict": True, "return_tensors": "pt"}
    own = families()[name].reference(built(name))
    return dict(own.apply_chat_template(messages, add_generation_prompt=True, **settings))


def plain(target):
    return load_drafter("plain", target)


def lookup(target):
    return load_drafter("lookup", target)


# -- positions (rotary, three axes) ------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_positions_are_the_models_own_for_pictures_between_turns(name):
    target = loaded(name)
    request = Request(
        messages=(
            Message("user", ("before", WIDE, "between", TALL, SQUARE)),
            Message("assistant", ("an answer",)),
            Message("user", (SQUARE, "after")),
        )
    )
    inputs = own_inputs(name, request)
    wanted, delta = target.model.model.get_rope_index(
        inputs["input_ids"], inputs["mm_token_type_ids"], inputs["image_grid_thw"]
    )
    prompt = target.encode(request)
    assert torch.equal(target.positions(prompt), wanted[:, 0])
    cache, _ = target.prefill(prompt, Want())
    assert cache.offset == int(delta) < 0


@pytest.mark.parametrize("name", NAMES)
def test_a_request_in_a_row_of_others_reads_as_it_would_alone(name):
    target = loaded(name)
    for number in (0, 1, 0, 1, 2, 3, 2):
        ids = generate(target, lookup(target), REQUESTS[number]).token_ids
        assert ids == fresh_ids(name, number)


@pytest.mark.parametrize("name", NAMES)
def test_interleaved_rounds_of_two_requests_give_the_texts_of_each_alone(name):
    target = loaded(name)
    runs = [Generation(target, lookup(target), request) for request in REQUESTS]
    waiting = [iter(run) for run in runs]
    while waiting:
        waiting = [rounds for rounds in waiting if next(rounds, None) is not None]
    for number, run in enumerate(runs):
        assert run.result().token_ids == fresh_ids(name, number)


@pytest.mark.parametrize("name", NAMES)
def test_pictures_and_texts_share_one_forward_call_as_if_each_were_alone(name):
    target = loaded(name)
    prompts = [target.encode(request) for request in REQUESTS]
    caches = [target.prefill(prompt, Want())[0] for prompt in prompts]
    together = target.forward([TREE] * len(prompts), caches, Want())
    for prompt, seen in zip(prompts, together, strict=True):
        cache, _ = target.prefill(prompt, Want())
        (alone,) = target.forward([TREE], [cache], Want())
        assert torch.equal(seen.logits, alone.logits)


@pytest.mark.parametrize("stale", [0, -37, 11])
@pytest.mark.parametrize("name", NAMES)
def test_what_another_call_left_on_the_module_is_neither_read_nor_written(name, stale):
    target = load_target(str(built(name)), dtype=torch.float32)
    target.model.model.rope_deltas = left = torch.tensor([[stale]])
    for number in (0, 1):
        ids = generate(target, lookup(target), REQUESTS[number]).token_ids
        assert ids == fresh_ids(name, number)
    assert target.model.model.rope_deltas is left
    assert left.tolist() == [[stale]]


@pytest.mark.parametrize("name", NAMES)
def test_transformers_own_generate_in_the_middle_of_a_request_changes_nothing(name):
    target = loaded(name)
    run = Generation(target, plain(target), REQUESTS[0])
    rounds = iter(run)
    next(rounds)
    target.model.generate(**own_inputs(name, REQUESTS[1]), max_new_tokens=2, do_sample=False)
    for _ in rounds:
        target.model.generate(**own_inputs(name, REQUESTS[2]), max_new_tokens=1)
    assert run.result().token_ids == fresh_ids(name, 0)


def test_deepstack_features_enter_where_the_tower_took_them():
    target = loaded("qwen3_vl")
    prompt = target.encode(REQUESTS[0])
    extra = target.see(prompt).extra
    assert len(extra["deepstack_visual_embeds"]) == 2
    assert extra["visual_pos_masks"].tolist() == [prompt.is_image.tolist()]
    _, seen = target.prefill(prompt, Want())
    target.see = lambda _: Seen(features)  # without what is at stake
    features = type(target).see(target, prompt).features
    _, without = target.prefill(prompt, Want())
    del target.see
    assert not torch.allclose(seen.logits, without.logits, atol=1e-2)


# -- pictures of any size ----------------------------------------------------------------------

SIZES = [(1, 1), (20, 30), (300, 25), (1, 200), (200, 1), (27, 28), (29, 28), (13, 1400)]
SIZES += [(w, h) for w in (25, 75, 336, 672, 1008) for h in (30, 98, 325)]


@pytest.mark.parametrize("name", NAMES)
def test_slots_equal_features_for_every_size_and_keep_to_the_pixel_limits(name):
    target = loaded(name)
    made = target.processor.image_processor
    square = made.patch_size * made.merge_size
    scale = (square / 28) ** 2
    for width, height in SIZES:
        image = tiny.picture(0, (width, height))
        pixels = made(images=[image], return_tensors="pt")
        grid = pixels["image_grid_thw"][0].tolist()
        count = target.num_image_tokens(height, width)
        assert count == grid[1] * grid[2] // made.merge_size**2, (width, height)
        assert MIN_PIXELS * scale <= count * square**2
        # A side that is a single token long cannot shrink, however long the other is.
        assert count * square**2 <= MAX_PIXELS * scale or 1 in target._grid(height, width)
        prompt = target.encode(ask("x", [image]))
        assert len(target.see(prompt).features) == count == len(target.regions(prompt))


def test_limits_of_a_preprocessor_config_are_obeyed(tmp_path):
    shutil.copytree(built("qwen2_5_vl"), tmp_path, dirs_exist_ok=True)
    file = tmp_path / "preprocessor_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"min_pixels": 40 * 28**2, "max_pixels": 60 * 28**2}))
    target = load_target(str(tmp_path), dtype=torch.float32)
    for size in ((10, 10), (90, 200), (900, 700)):
        prompt = target.encode(ask("x", [tiny.picture(0, size)]))
        assert 40 <= int(prompt.is_image.sum()) <= 60
        target.prefill(prompt, Want())


@pytest.mark.parametrize("size", [(201, 1), (2, 500)])
def test_a_picture_that_is_too_elongated_is_refused_with_the_rule_and_harms_nothing(size):
    target = loaded("qwen2_5_vl")
    thin = Request(messages=(Message("user", (tiny.picture(0, size), "what?")),))
    with pytest.raises(BadImage, match=rf"200 times the other; this one has {size[0]}x{size[1]}"):
        target.encode(thin)
    ids = generate(target, plain(target), REQUESTS[0]).token_ids
    assert ids == fresh_ids("qwen2_5_vl", 0)


# -- checkpoints -------------------------------------------------------------------------------


def test_sliding_windows_are_refused_by_name(tmp_path):
    build(tmp_path, use_sliding_window=True, sliding_window=16)
    with pytest.raises(UnsupportedTarget, match="sliding_attention"):
        load_target(str(tmp_path))


def test_mixtures_of_experts_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_vl_moe"}))
    with pytest.raises(UnsupportedTarget, match="qwen3_vl_moe"):
        load_target(str(tmp_path))


def test_a_placeholder_of_another_checkpoint_is_refused(tmp_path):
    shutil.copytree(built("qwen2_5_vl"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["image_token_id"] -= 1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedTarget, match="do not belong together"):
        load_target(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("qwen2_vl", {"model.embed_tokens.weight", "visual.blocks.0.mlp.fc1.weight"}),
        ("qwen2_5_vl", {"model.layers.0.self_attn.q_proj.bias", "visual.merger.ln_q.weight"}),
        ("qwen2_5_vl", {"lm_head.weight", "visual.blocks.0.mlp.gate_proj.weight"}),
        ("qwen3_vl", {"model.language_model.layers.0.self_attn.q_norm.weight", "lm_head.weight"}),
        ("qwen3_vl", {"model.visual.deepstack_merger_list.0.linear_fc1.weight"}),
    ],
)
def test_the_tiny_checkpoints_have_the_published_tensor_names(name, parts):
    with safe_open(built(name) / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert parts <= names
    assert ("lm_head.weight" in names) == (name != "qwen2_vl")  # which ties it


def _template_in(layout: str, folder) -> None:
    """Move the template from chat_template.json to another place where templates are published."""
    template = json.loads((folder / "chat_template.json").read_text())["chat_template"]
    (folder / "chat_template.json").unlink()
    if layout == "jinja":
        (folder / "chat_template.jinja").write_text(template)
        return
    file = folder / ("processor_config.json" if layout == "nested" else "tokenizer_config.json")
    content = json.loads(file.read_text()) if file.exists() else {}
    content["chat_template"] = template
    if layout == "nested":  # as transformers 5 saves a processor
        pictures = folder / "preprocessor_config.json"
        content["image_processor"] = json.loads(pictures.read_text())
        content["video_processor"] = {"video_processor_type": "Qwen3VLVideoProcessor"}
        content["processor_class"] = "Qwen3VLProcessor"
        pictures.unlink()
    file.write_text(json.dumps(content))


@pytest.mark.parametrize("layout", ["jinja", "nested", "tokenizer"])
def test_a_checkpoint_reads_the_same_whatever_layout_its_processor_is_published_in(
    layout, tmp_path
):
    shutil.copytree(built("qwen3_vl"), tmp_path, dirs_exist_ok=True)
    _template_in(layout, tmp_path)
    target = load_target(str(tmp_path), dtype=torch.float32)
    made, wanted = (t.encode(REQUESTS[2]) for t in (target, loaded("qwen3_vl")))
    assert torch.equal(made.tokens, wanted.tokens)
    assert torch.equal(made.pixels["pixel_values"], wanted.pixels["pixel_values"])
