"""Published checkpoints that are refused by name: methods, targets, vocabularies, families."""

import shutil
from copy import copy
from fnmatch import fnmatch

import published_drafters as authors
import pytest
import torch
from published_drafters import FAMILY, deep_target, refused
from published_drafters import load_untried as load

from varifocal.drafters import load_drafter
from varifocal.drafters._published import FAMILIES
from varifocal.errors import BadArtifact, BadOption, DrafterMismatch


@pytest.fixture(scope="module")
def target():
    return deep_target()


# -- what ours cannot be -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "config", "named"),
    [
        ("eagle3", {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}}, "three axes"),
        ("eagle3", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, r"scaled \(llama3\)"),
        ("eagle", {"rope_scaling": {"type": "linear", "factor": 2.0}}, r"scaled \(linear\)"),
        ("eagle", {"partial_rotary_factor": 0.5}, "a part of each head"),
        ("eagle", {"hidden_act": "gelu"}, "'gelu'"),
        ("eagle3", {"target_hidden_size": 128}, "is 64 wide and its target 128"),
        ("eagle3", {"eagle_config": {"use_aux_hidden_state": False}}, "last state alone"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [2, 4, 8]}, "behind the last layer"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [0, 2, 4]}, "reads the embeddings"),
        ("eagle3", {"eagle_aux_hidden_state_layer_ids": [4, 2, 5]}, "do not ascend"),
        ("speculators", {"speculators_model_type": "peagle"}, "'peagle' in the layout of specul"),
        ("dflash", {"layer_types": ["sliding_attention"] * 2}, "sliding window"),
        ("dflash", {"final_logit_softcapping": 20.0}, "final_logit_softcapping=20"),
    ],
)
def test_what_cannot_be_drafted_exactly_is_refused_by_name(target, tmp_path, name, config, named):
    made = getattr(authors, name)(target)
    made.config |= config
    refused(made, target, tmp_path, BadArtifact, named)


def test_equal_positions_on_several_axes_are_one(target, tmp_path):
    scaling = {"rope_type": "default", "mrope_section": [2, 3, 3], "mrope_interleaved": True}
    for name in ("vispec", "dflash"):
        made = getattr(authors, name)(target)
        made.config |= {"rope_scaling": scaling, "rope_theta": 5e6}
        assert load(made.write(tmp_path / name), target).config.theta == 5e6


def test_the_base_of_the_positions_is_found_where_it_stands_now(target, tmp_path):
    made = authors.dflash(target)
    del made.config["rope_theta"]
    made.config["rope_parameters"] = {"rope_theta": 5e5, "rope_type": "default"}
    assert load(made.write(tmp_path / "f"), target).config.theta == 5e5


@pytest.mark.parametrize(
    ("name", "tensor", "shape", "named"),
    [
        ("eagle3", "midlayer.self_attn.q_norm.weight", (16,), "norms queries and keys"),
        ("speculators", "layers.0.self_attn.o_proj.bias", (64,), r"holds .*o_proj\.bias"),
        ("dflash", "prefix_gru.weight_ih_l0", (6, 6), r"holds prefix_gru\.weight_ih_l0"),
    ],
)
def test_parts_that_ours_lack_are_refused_by_name(target, tmp_path, name, tensor, shape, named):
    made = getattr(authors, name)(target)
    made.add(tensor, *shape)
    refused(made, target, tmp_path, BadArtifact, named)


def test_an_adaptor_of_another_shape_than_its_layer_is_refused(target, tmp_path):
    made = authors.vispec(target, qkv_bias=False)
    for kind in "kv":
        made.tensors[f"layers.0.self_attn.{kind}_proj.weight"] = torch.zeros(32, 64)
    refused(made, target, tmp_path, BadArtifact, "shares 2 heads of keys")
    made = authors.vispec(target)
    for kind in "kv":
        del made.tensors[f"imadpt.{kind}_proj.bias"]
    refused(made, target, tmp_path, BadArtifact, "biases where its layer has none")


# -- another target ----------------------------------------------------------------------------


def test_another_width_vocabulary_or_depth_is_named(target, tmp_path):
    narrow = copy(target)
    narrow.hidden_size, narrow.name = 32, "narrow"
    for name, family in FAMILY.items():
        folder = getattr(authors, name)(target).write(tmp_path / name)
        with pytest.raises(DrafterMismatch, match=r"width 64, but 'narrow' has width 32"):
            load(folder, narrow, family=family)
    made = authors.dream(target)
    made.config["vocab_size"] = 32_000
    refused(made, target, tmp_path, DrafterMismatch, "a target of 32000 tokens")
    made = authors.eagle3(target)
    made.config["eagle_aux_hidden_state_layer_ids"] = [2, 16, 29]
    refused(made, target, tmp_path, DrafterMismatch, r"reads the layers \[2, 16, 29\]")
    made = authors.dflash(target)
    made.config["num_target_layers"] = 36
    refused(made, target, tmp_path, DrafterMismatch, "a target of 36 layers")
    made = authors.dflash(target)
    made.config["dflash_config"]["mask_token_id"] = 151_669
    refused(made, target, tmp_path, DrafterMismatch, "masks with the token 151669")


def test_embeddings_of_another_model_are_refused_and_rounded_ones_are_not(target, tmp_path):
    made = authors.eagle(target)
    made.tensors["embed_tokens.weight"] = authors.embeddings(target).half()[:-30]
    made.config["vocab_size"] -= 30  # padded otherwise
    assert load(made.write(tmp_path / "EAGLE-a"), target).name == "text_only"
    made.tensors["embed_tokens.weight"] = authors.embeddings(deep_target(1))[:-30]
    refused(made, target, tmp_path, DrafterMismatch, r"embed_tokens\.weight .* is not that of")
    made = authors.dflash(target, rank=4)
    made.tensors["lm_head.weight"] = torch.randn(target.vocab_size, 64)
    refused(made, target, tmp_path, DrafterMismatch, r"lm_head\.weight .* is not that of")


# -- vocabularies ------------------------------------------------------------------------------


def spoiled(target, change):
    made = authors.eagle3(target)
    change(made.tensors)
    return made


@pytest.mark.parametrize(
    ("change", "kind", "named"),
    [
        (lambda t: t["d2t"].add_(10_000), DrafterMismatch, "outside the"),
        (lambda t: t["d2t"][1:2].copy_(t["d2t"][:1] - 1), BadArtifact, "some ids twice"),
        (lambda t: t["t2d"].logical_not_(), BadArtifact, "t2d of .* marks"),
        (lambda t: t["t2d"][:1].logical_not_(), BadArtifact, "t2d of .* marks"),
        (lambda t: t.update(d2t=t["d2t"][:-1]), BadArtifact, r"d2t of .* is \(49,\)"),
        (lambda t: t.update(d2t=t["d2t"].float()), BadArtifact, "wanted one offset"),
        (lambda t: t.update(t2d=torch.ones(5000).bool()), DrafterMismatch, r"t2d .* \(5000,\)"),
        (lambda t: t.pop("d2t"), BadArtifact, "t2d without d2t"),
        (lambda t: (t.pop("d2t"), t.pop("t2d")), DrafterMismatch, "a head of 50 tokens and no d2t"),
    ],
    ids="range twice membership sum length kind size lost both".split(),
)  # fmt: skip
def test_a_map_that_does_not_lead_into_the_vocabulary_is_refused(
    target, tmp_path, change, kind, named
):
    refused(spoiled(target, change), target, tmp_path, kind, named)


def test_maps_may_be_padded_narrow_or_told_by_offsets_alone(target, tmp_path):
    want = load(authors.eagle3(target).write(tmp_path / "e"), target).vocabulary
    forms = {
        "padded": lambda t: t.update(t2d=torch.cat([t["t2d"], torch.zeros(64).bool()])),
        "narrow": lambda t: t.update(d2t=t["d2t"].int(), t2d=t["t2d"].to(torch.uint8)),
        "alone": lambda t: t.pop("t2d"),
    }
    for name, change in forms.items():
        drafter = load(spoiled(target, change).write(tmp_path / name), target)
        assert torch.equal(drafter.vocabulary, want), name


def test_a_map_of_all_that_may_be_said_needs_none(target, tmp_path):
    made = authors.eagle3(target)
    ids = torch.tensor([i for i in range(target.vocab_size) if i not in target.banned_ids])
    made.config["draft_vocab_size"] = len(ids)
    made.tensors["lm_head.weight"] = torch.randn(len(ids), 64)
    made.tensors["d2t"] = ids - torch.arange(len(ids))
    made.tensors["t2d"] = torch.zeros(target.vocab_size).bool().index_fill(0, ids, True)
    drafter = load(made.write(tmp_path / "e"), target)
    assert drafter.vocabulary is None
    head = drafter.network.lm_head.weight
    assert torch.equal(head[ids], made.tensors["lm_head.weight"])


# -- which family ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_is_seen_by_tensors_and_name(target, tmp_path, name):
    folder = getattr(authors, name)(target).write(tmp_path / f"{FAMILY[name]}-tiny")
    seen = load(folder, target)
    told = load(folder, target, family=FAMILY[name])
    assert seen.name == told.name and seen.config == told.config


def test_eagle_and_msd_are_told_apart_by_name_or_by_the_user_alone(target, tmp_path):
    made = authors.eagle(target)
    with pytest.raises(BadOption, match=r"may be EAGLE-1/2 or MSD.*family='eagle'"):
        load(made.write(tmp_path / "draft"), target)
    assert load(tmp_path / "draft", target, family="msd").name == "msd"
    assert load(tmp_path / "draft", target, family="eagle").name == "text_only"
    cached = tmp_path / "models--lucylyn--MSD-LLaVA1.5-7B" / "snapshots" / "0a"
    assert load(made.write(cached), target).name == "msd"
    assert "lucylyn/MSD-LLaVA1.5-7B" in load(cached, target).recipe["notes"]


def test_unknown_families_and_checkpoints_are_refused_with_the_known_ones(target, tmp_path):
    made = authors.eagle(target)
    folder = made.write(tmp_path / "EAGLE")
    with pytest.raises(BadOption, match=f"'eagel'; there are {', '.join(FAMILIES)}"):
        load(folder, target, family="eagel")
    made.tensors = {"language_model.x.weight": torch.ones(3)}
    refused(made, target, tmp_path, BadArtifact, "no drafter that is known here")


def test_what_is_part_of_published_weights_is_no_option(target, tmp_path):
    folder = authors.eagle3(target).write(tmp_path / "e")
    with pytest.raises(BadOption, match="heads is part of the weights"):
        load(folder, target, heads=2)
    with pytest.raises(BadOption, match="no option nods"):
        load(folder, target, nods=2)


def test_options_of_published_layouts_are_refused_elsewhere(target, tmp_path):
    drafter = load(authors.dream(target).write(tmp_path / "d"), target)
    drafter.save_pretrained(tmp_path / "ours")
    for given in ({"check": False}, {"family": "dream"}):
        with pytest.raises(BadOption, match="for checkpoints in a published layout"):
            load_drafter(str(tmp_path / "ours"), target, **given)
        with pytest.raises(BadOption, match=f"lookup has no option {next(iter(given))}"):
            load_drafter("lookup", target, **given)


def test_a_hub_id_that_was_never_fetched_is_clear_about_the_network(target):
    with pytest.raises(BadArtifact, match=r"yuhuili/EAGLE3-x is no folder here.*Go online once"):
        load_drafter("yuhuili/EAGLE3-x", target)


@pytest.mark.parametrize("container", ["safetensors", "bin-shards"])
def test_of_a_hub_id_only_what_is_needed_is_fetched(target, tmp_path, monkeypatch, container):
    there = authors.eagle(target).write(tmp_path / "hub", container)
    (there / "optimizer.bin").write_bytes(b"x" * 9)
    here = tmp_path / "models--lucylyn--MSD-x" / "snapshots" / "0a"
    here.mkdir(parents=True)

    def fetch(name, allow_patterns):
        assert name == "lucylyn/MSD-x"
        for path in there.iterdir():
            if any(fnmatch(path.name, pattern) for pattern in allow_patterns):
                shutil.copy(path, here)
        return str(here)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    assert load("lucylyn/MSD-x", target).name == "msd"
    assert {p.name for p in there.iterdir()} - {p.name for p in here.iterdir()} == {"optimizer.bin"}
