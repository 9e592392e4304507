"""Published checkpoints: containers and damage, and strict accounts of their tensors."""

import json

import published_drafters as authors
import pytest
import torch
from published_drafters import FAMILY, deep_target, refused
from published_drafters import load_untried as load

from varifocal.drafter import Drafter
from varifocal.drafters import load_drafter
from varifocal.errors import BadArtifact, BadOption, DrafterMismatch


@pytest.fixture(scope="module")
def target():
    return deep_target()


def weights(drafter):
    return drafter.network.state_dict()


# -- containers --------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["bin", "safetensors-shards", "bin-shards"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_container_and_precision_holds_the_same_weights(target, tmp_path, container, dtype):
    made = authors.eagle3(target)
    whole = load(made.write(tmp_path / "a", dtype=dtype), target)
    other = load(made.write(tmp_path / "b", container, dtype), target)
    assert weights(whole).keys() == weights(other).keys()
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(other)[name]), name


def test_names_behind_a_prefix_of_an_engine_are_read(target, tmp_path):
    made = authors.eagle3(target)
    plain = load(made.write(tmp_path / "a"), target)
    outside = ("lm_head.weight", "d2t", "t2d")
    made.tensors = {
        name if name in outside else f"model.{name}": t for name, t in made.tensors.items()
    }
    prefixed = load(made.write(tmp_path / "b"), target)
    assert torch.equal(weights(prefixed)["fuse.weight"], weights(plain)["fuse.weight"])


def test_from_pretrained_reads_them_too(target, tmp_path):
    folder = authors.dream(target).write(tmp_path / "d", "bin")
    drafter = Drafter.from_pretrained(folder, target, check=False, nodes=4)
    assert (drafter.name, drafter.config.nodes) == ("dream", 4)
    model, processor = target.model, target.processor
    held = Drafter.from_pretrained(folder, model, tokenizer=processor, check=False)
    assert held.name == "dream"
    drafter.save_pretrained(tmp_path / "ours", notes="kept")
    assert load_drafter(str(tmp_path / "ours"), target).name == "dream"


@pytest.mark.parametrize("container", ["safetensors", "bin", "safetensors-shards", "bin-shards"])
def test_files_cut_short_are_named(target, tmp_path, container):
    folder = authors.eagle3(target).write(tmp_path / "e", container)
    last = max(p for p in folder.iterdir() if p.suffix in (".bin", ".safetensors"))
    last.write_bytes(last.read_bytes()[:-3000])
    with pytest.raises(BadArtifact, match=rf"{last.name} .*(cut short|damaged)"):
        load(folder, target)
    last.write_bytes(b"")
    with pytest.raises(BadArtifact, match=last.name):
        load(folder, target)


def test_a_missing_shard_and_an_index_of_other_shards_are_named(target, tmp_path):
    folder = authors.eagle3(target).write(tmp_path / "e", "safetensors-shards")
    first, second = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    moved = listed["weight_map"] | {"norm.weight": first.name, "fc.weight": second.name}
    index.write_text(json.dumps({"weight_map": moved}))
    with pytest.raises(BadArtifact, match=r"do not agree on where .*(fc|norm)\.weight"):
        load(folder, target)
    index.write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(BadArtifact, match="outside its folder"):
        load(folder, target)
    index.write_text(json.dumps(listed))
    second.unlink()
    with pytest.raises(BadArtifact, match=rf"names {second.name}, which is missing"):
        load(folder, target)
    index.write_text("[]")
    with pytest.raises(BadArtifact, match=index.name):
        load(folder, target)


def test_two_containers_are_not_chosen_between(target, tmp_path):
    made = authors.eagle3(target)
    made.write(made.write(tmp_path / "e"), "bin")
    with pytest.raises(BadArtifact, match=r"model\.safetensors and pytorch_model\.bin.*keep one"):
        load(tmp_path / "e", target)


def test_a_folder_without_weights_says_which_files_it_lacks(target, tmp_path):
    folder = authors.eagle3(target).write(tmp_path / "e")
    (folder / "model.safetensors").unlink()
    with pytest.raises(BadArtifact, match=r"none of model\.safetensors, .*pytorch_model\.bin"):
        load(folder, target)


class Payload:
    """Runs when it is unpickled, if anything lets it."""

    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_pickle_is_run(target, tmp_path, capsys):
    folder = authors.eagle3(target).write(tmp_path / "e", "bin")
    torch.save({"fc.weight": Payload()}, folder / "pytorch_model.bin")
    with pytest.raises(BadArtifact, match=r"pytorch_model\.bin"):
        load(folder, target)
    assert "executed" not in capsys.readouterr().out


def test_a_training_state_is_no_checkpoint(target, tmp_path):
    folder = authors.eagle3(target).write(tmp_path / "e", "bin")
    torch.save({"module": {"fc.weight": torch.ones(2)}, "step": 3}, folder / "pytorch_model.bin")
    with pytest.raises(BadArtifact, match="no plain dict of tensors"):
        load(folder, target)


def test_quantized_weights_and_nan_are_named(target, tmp_path):
    made = authors.eagle3(target)
    made.config["quantization_config"] = {"bits": 4}
    refused(made, target, tmp_path, BadArtifact, "is quantized")
    del made.config["quantization_config"]
    made.tensors["fc.weight"] = made.tensors["fc.weight"].to(torch.int8)
    refused(made, target, tmp_path, BadArtifact, r"fc\.weight .* is int8")
    made.tensors["fc.weight"] = torch.full((64, 192), torch.nan)
    refused(made, target, tmp_path, BadArtifact, r"fc\.weight .* NaN")


# -- accounts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILY)
def test_every_tensor_is_needed_and_no_other_is_taken(target, tmp_path, name):
    whole = getattr(authors, name)(target)
    spare = ("embed_tokens.weight", "rotary_emb", "t2d", "confidence_head")
    family = FAMILY[name]
    for n, lost in enumerate(name for name in whole.tensors if not any(s in name for s in spare)):
        made = getattr(authors, name)(target)
        del made.tensors[lost]
        with pytest.raises((BadArtifact, BadOption, DrafterMismatch)):
            load(made.write(tmp_path / f"{n}"), target, family=family)
    whole.add("layers.0.self_attn.strange.weight", 3)
    whole.add("extra.weight", 3)
    named = r"holds extra\.weight, layers\.0\.self_attn\.strange\.weight"
    refused(whole, target, tmp_path, BadArtifact, named, family=family)


def test_missing_tensors_are_all_listed(target, tmp_path):
    made = authors.vispec(target)
    for kind in "kv":
        del made.tensors[f"imadpt.{kind}_proj.weight"]
    named = r"lacks imadpt\.k_proj\.weight, imadpt\.v_proj\.weight"
    refused(made, target, tmp_path, BadArtifact, named)


def test_a_tensor_of_another_size_is_named(target, tmp_path):
    made = authors.eagle(target)
    made.tensors["fc.bias"] = torch.zeros(60)
    refused(made, target, tmp_path, BadArtifact, r"join\.bias is \(60,\), wanted \(64,\)")
    made = authors.eagle(target)
    made.tensors["layers.0.self_attn.k_proj.weight"] = torch.zeros(64, 60)
    refused(made, target, tmp_path, BadArtifact, "do not fit together")


def test_buffers_and_copies_that_the_authors_leave_are_dropped(target, tmp_path):
    made = authors.speculators(target)
    made.add("verifier_lm_head.weight", 9, 64)
    made.add("verifier_norm.weight", 64)
    made.add("rotary_emb.inv_freq", 8)
    made.tensors["embed_tokens.weight"] = authors.embeddings(target).half()
    assert load(made.write(tmp_path / "s"), target).name == "eagle3"


@pytest.mark.parametrize(
    ("name", "config", "named"),
    [
        ("eagle", {"hidden_size": 32}, "hidden_size=32"),
        ("eagle", {"intermediate_size": 41}, "intermediate_size=41"),
        ("eagle", {"num_hidden_layers": 2}, "num_hidden_layers=2"),
        ("eagle", {"bias": False}, r"bias=False, but fc\.bias is there"),
        ("eagle", {"vocab_size": 7}, "vocab_size=7"),
        ("eagle", {"num_attention_heads": 3}, "do not divide into heads"),
        ("msd_qwen", {"num_key_value_heads": 4}, "num_key_value_heads=4"),
        ("msd_qwen", {"head_dim": 8}, "head_dim=8"),
        ("vispec", {"qkv_bias": False}, "qkv_bias=False"),
        ("dream", {"num_attention_heads": 2}, "num_attention_heads=2"),
        ("eagle3", {"draft_vocab_size": 7}, "draft_vocab_size=7"),
        ("speculators", {"norm_before_fc": True}, r"norm_before_fc=True.*input_norm\.weight"),
        ("dflash", {"markov_rank": 4}, "markov_rank=4"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(target, tmp_path, name, config, named):
    made = getattr(authors, name)(target)
    made.config |= config
    refused(made, target, tmp_path, BadArtifact, named)


def test_the_setting_that_no_tensor_tells_is_asked_for(target, tmp_path):
    made = authors.eagle(target)
    del made.config["num_attention_heads"]
    refused(made, target, tmp_path, BadArtifact, "lacks num_attention_heads")
