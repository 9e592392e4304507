"""What cannot be exact, or cannot be read, is refused before anything is decoded: by name."""

import json
import shutil
from types import SimpleNamespace

import pytest
import tiny
import torch
from checkpoints import built

from varifocal.cache import KVCache, check_cacheable
from varifocal.errors import BadRequest, UnsupportedTarget
from varifocal.request import ask
from varifocal.targets import load_target


@pytest.fixture
def changed(tmp_path):
    """A copy of a checkpoint: keys of config.json set (None: left out), files removed."""

    def make(name, *, config=None, without=(), generation=None):
        folder = tmp_path / name
        shutil.copytree(built(name), folder)
        for file, keys in (("config.json", config), ("generation_config.json", generation)):
            if keys:
                content = json.loads((folder / file).read_text())
                for path, value in keys.items():
                    *above, last = path.split(".")
                    place = content
                    for key in above:
                        place = place[key]
                    if value is None:
                        del place[last]
                    else:
                        place[last] = value
                (folder / file).write_text(json.dumps(content))
        for pattern in without:
            for file in folder.glob(pattern):
                file.unlink()
        return folder

    return make


def refusal(folder, **options):
    with pytest.raises(UnsupportedTarget) as caught:
        load_target(str(folder), dtype=torch.float32, **options)
    return str(caught.value)


# -- models ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("text-mistral", {"sliding_window": 16}),
        ("text-phi3", {"sliding_window": 16}),
        (
            "text-qwen2",
            {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
        ),
        ("llava-mistral", {"text_config.sliding_window": 16}),
    ],
)
def test_sliding_windows_are_refused_by_name_before_weights_are_read(changed, name, config):
    folder = changed(name, config=config, without=["model.safetensors"])
    said = refusal(folder)
    assert "sliding_attention" in said and "full attention" in said and "choose" in said


def test_a_window_as_wide_as_the_context_never_closes_and_is_taken(changed):
    folder = changed("text-mistral", config={"sliding_window": 4096})
    assert load_target(str(folder), dtype=torch.float32).num_layers == 3


@pytest.mark.parametrize(
    "kind", ["sliding_attention", "chunked_attention", "linear_attention", "recurrent", "mamba"]
)
def test_every_kind_of_layer_but_full_attention_is_refused_by_name(kind):
    config = SimpleNamespace(layer_types=["full_attention", kind])
    with pytest.raises(UnsupportedTarget, match=kind):
        check_cacheable(config, "some model")


@pytest.mark.parametrize("kind", ["mamba2", "qwen3_next", "recurrent_gemma", "no_such_model"])
def test_unknown_model_types_are_refused_by_name(changed, kind):
    said = refusal(changed("text-llama", config={"model_type": kind}))
    assert kind in said and "llava_next" in said and "CONTRIBUTING.md" in said


def test_a_folder_whose_config_names_no_model_type_is_no_checkpoint(changed):
    assert "names no model_type" in refusal(changed("text-llama", config={"model_type": None}))


@pytest.mark.parametrize("name", ["llava", "llava_next", "llava_onevision"])
@pytest.mark.parametrize(("part", "kind"), [("text_config", "gpt2"), ("vision_config", "dinov2")])
def test_language_models_and_towers_that_are_not_tested_are_refused(changed, name, part, kind):
    folder = changed(name, config={part: {"model_type": kind}}, without=["model.safetensors"])
    said = refusal(folder)
    assert kind in said and "tested with" in said


def test_rotary_positions_that_change_with_the_length_are_refused(changed):
    rope = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    rope["original_max_position_embeddings"] = 2048
    said = refusal(changed("text-phi3", config={"rope_scaling": rope}))
    assert "'longrope'" in said and "llama3" in said


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention", "paged|sdpa"])
def test_attention_that_takes_no_tree_mask_is_refused(attention):
    said = refusal(built("text-llama"), attention=attention)
    assert attention in said and '"sdpa" or "eager"' in said


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_a_model_loaded_elsewhere_with_such_attention_is_refused(attention):
    target = load_target(str(built("text-llama")), dtype=torch.float32)
    target.model.config._attn_implementation_internal = attention
    with pytest.raises(UnsupportedTarget, match=attention):
        type(target)(target.model, target.processor, "mine")


def test_a_quantised_cache_of_the_generation_config_is_refused(changed):
    said = refusal(changed("text-llama", generation={"cache_implementation": "quantized"}))
    assert "'quantized' cache" in said and "Remove cache_implementation" in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "4 bits (bitsandbytes)"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "8 bits (bitsandbytes)"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "4 bits (gptq)"),
        ({"quant_method": "fbgemm_fp8"}, "fbgemm_fp8"),
        ({"quant_method": "no_such_method"}, "no_such_method"),
    ],
)
def test_quantised_weights_that_nothing_here_reads_are_refused_with_their_kind(
    changed, settings, words
):
    said = refusal(changed("text-llama", config={"quantization_config": settings}))
    assert words in said and "unquantised" in said


# -- files -------------------------------------------------------------------------------------


def test_a_missing_processor_is_named(changed):
    said = refusal(changed("llava", without=["pre*config.json", "processor_config.json"]))
    assert "processor" in said and "preprocessor_config.json" in said


@pytest.mark.parametrize("name", ["llava", "llava_onevision", "text-qwen2"])
def test_a_missing_tokenizer_is_named(changed, name):
    said = refusal(changed(name, without=["token*.json", "vocab.json", "merges.txt", "spec*"]))
    assert "tokenizer" in said and "tokenizer.json" in said


@pytest.mark.parametrize("name", ["llava_next", "text-llama"])
def test_a_missing_chat_template_is_named_when_the_first_request_comes(changed, name):
    folder = changed(name, without=["chat_template*"])
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    target = load_target(str(folder), dtype=torch.float32)
    with pytest.raises(UnsupportedTarget, match=r"no chat template.*chat_template\.jinja"):
        target.encode(ask("hello"))


def test_a_hub_id_without_network_says_what_would_do():
    said = refusal("some-owner/some-model")
    assert "some-owner/some-model" in said and "Give a folder, a hub id" in said


def test_files_of_different_checkpoints_are_told_apart(changed):
    other_id = changed("llava", config={"image_token_index": 7})
    assert "as the id of a picture's placeholder" in refusal(other_id)


def test_a_processor_for_another_tower_is_told(changed):
    folder = changed("llava_next")
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings["crop_size"] = {"height": 28, "width": 28}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    assert "(28, 28) pixels" in refusal(folder)


def test_features_that_do_not_fill_the_tiles_are_told(changed):
    folder = changed("llava_next", config={"vision_feature_select_strategy": "full"})
    assert "must be 'default'" in refusal(folder)


# -- requests ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "count"), [("", 0), ("<image><image>", 2)])
def test_a_template_with_more_or_fewer_slots_than_pictures_is_refused(changed, written, count):
    folder = changed("llava_next")
    template = json.loads((folder / "chat_template.json").read_text())
    broken = template["chat_template"].replace("<image>\\n", written)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": broken}))
    target = load_target(str(folder), dtype=torch.float32)
    with pytest.raises(BadRequest, match=f"made {count} picture slots for 1 pictures"):
        target.encode(ask("what?", [tiny.picture()]))


def test_pictures_for_a_model_that_reads_text_only_are_refused():
    target = load_target(str(built("text-llama")), dtype=torch.float32)
    with pytest.raises(BadRequest, match="reads no pictures"):
        target.encode(ask("what?", [tiny.picture()]))


def test_no_memory_for_the_cache_is_told_with_the_bytes_it_wants():
    huge = torch.empty(1).expand(1, 1 << 10, 1 << 22, 1 << 12)
    with pytest.raises(BadRequest, match=r"wants 1\d\d,\d{3},\d{3},\d{3},\d{3} bytes on cpu"):
        KVCache(1).layers[0].update(huge, huge)
