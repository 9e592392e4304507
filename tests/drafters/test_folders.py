"""Folders of trained drafters: saved, found, and refused by the name of what differs."""

import json
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from scripted import Scripted, saying
from tiny import tiny_target

import varifocal
from varifocal.drafter import Drafter
from varifocal.drafters import _belongs
from varifocal.drafters._weights import CONFIG, WEIGHTS
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.errors import BadArtifact, BadOption, DrafterMismatch
from varifocal.target import Want

SIZES = {"nodes": 8, "depth": 3, "inner": 32, "memory_width": 16, "bottleneck": 8}


@cache
def target():
    return tiny_target()


@pytest.fixture
def folder(tmp_path):
    FoveaDrafter(target(), FoveaDrafter.Config(**SIZES)).save_pretrained(
        tmp_path / "d", seed=3, steps=7, data="drawn", scores={"tau": 2.5}
    )
    return tmp_path / "d"


def rewritten(folder, change):
    """The folder with another description, in the config and in the header of the weights."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(folder / WEIGHTS, framework="pt") as file:
        description = json.loads(file.metadata()["varifocal"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(description)
    (folder / CONFIG).write_text(json.dumps(description))
    save_file(tensors, folder / WEIGHTS, metadata={"varifocal": json.dumps(description)})
    return folder


def test_a_drafter_is_saved_and_found_again_with_its_recipe(folder, tmp_path):
    model, processor = target().model, target().processor
    for owner, given in ((target(), {}), (model, {"tokenizer": processor})):
        drafter = Drafter.from_pretrained(folder, owner, nodes=4, **given)
        assert drafter.config.nodes == 4 and drafter.recipe["steps"] == 7
        assert drafter.target.model is model
    drafter.save_pretrained(tmp_path / "e", notes="again")
    recipe = json.loads((tmp_path / "e" / CONFIG).read_text())["recipe"]
    assert recipe["seed"] == 3 and recipe["data"] == "drawn" and recipe["notes"] == "again"
    again = varifocal.Drafter.from_pretrained(str(tmp_path / "e"), target())
    saved = FoveaDrafter.from_pretrained(folder, target()).network.state_dict()
    for name, weight in again.network.state_dict().items():
        assert torch.equal(weight, saved[name]), name


def test_the_card_says_how_it_is_used_and_what_it_reads(folder):
    card = (folder / "README.md").read_text()
    assert "Drafter.from_pretrained" in card and "| tau | 2.5 |" in card
    assert "the last state (after the last norm), input embeddings" in card


def test_a_recipe_must_say_how_the_weights_were_made(tmp_path):
    drafter = FoveaDrafter(target(), FoveaDrafter.Config(**SIZES))
    with pytest.raises(BadOption, match="give seed="):
        drafter.save_pretrained(tmp_path / "d", steps=1)
    with pytest.raises(BadOption, match="no 'stepz'"):
        drafter.save_pretrained(tmp_path / "d", seed=1, steps=1, stepz=1)


def test_a_model_without_its_tokenizer_is_asked_for_it(folder):
    with pytest.raises(BadOption, match="tokenizer="):
        Drafter.from_pretrained(folder, target().model)


def test_other_weights_are_named(folder):
    other = tiny_target(seed=9)
    with pytest.raises(DrafterMismatch, match=r"fingerprint.*the weights differ.*its own target"):
        Drafter.from_pretrained(folder, other)


def test_another_tokenizer_is_named(folder, monkeypatch):
    words = target().tokenizer.get_vocab()
    first, second = sorted(words, key=words.get)[100:102]
    swapped = {**words, first: words[second], second: words[first]}
    other = tiny_target()
    other.tokenizer = SimpleNamespace(
        get_vocab=lambda: swapped, added_tokens_decoder=target().tokenizer.added_tokens_decoder
    )
    with pytest.raises(DrafterMismatch, match=r"the tokenizer of the target 'tiny' differs"):
        Drafter.from_pretrained(folder, other)
    other.tokenizer = SimpleNamespace(get_vocab=lambda: words, added_tokens_decoder={})
    with pytest.raises(DrafterMismatch, match=r"vocabulary or special tokens"):
        Drafter.from_pretrained(folder, other)


@pytest.mark.parametrize(
    ("want", "named"),
    [
        (Want(final=False, embeddings=True), "final was 'post-norm'"),
        (Want(final=True, embeddings=True, layers=(2,)), r"layers was \[1, 2, 3\]"),
        (Want(final=True), "embeddings was True"),
    ],
)
def test_other_features_are_named(folder, monkeypatch, want, named):
    monkeypatch.setattr(FoveaDrafter, "want", want)
    layers = want.layers or (1, 2, 3)
    monkeypatch.setattr("varifocal.drafters.fovea.layers_of", lambda target, taps: layers)
    with pytest.raises(DrafterMismatch, match=f"other features of the target: {named}"):
        Drafter.from_pretrained(folder, target())


def test_folders_of_the_first_format_are_still_read(folder):
    def older(description):
        description["version"] = 1
        del description["target"]["tokenizer"], description["target"]["features"]

    assert Drafter.from_pretrained(rewritten(folder, older), target()).config.depth == 3


def test_edits_of_folders_of_the_first_format_are_refused_too(folder):
    def older(description):
        description["version"] = 1
        del description["target"]["tokenizer"], description["target"]["features"]

    config = rewritten(folder, older) / CONFIG
    config.write_text(config.read_text().replace('"depth": 3', '"depth": 4'))
    with pytest.raises(BadArtifact, match=r"config\.depth \(3, edited to 4\).*--set depth=4"):
        Drafter.from_pretrained(folder, target())


@pytest.mark.parametrize("key", ["tokenizer", "features"])
def test_folders_of_the_second_format_lack_nothing(folder, key):
    with pytest.raises(BadArtifact, match=f"lacks target.{key}"):
        Drafter.from_pretrained(rewritten(folder, lambda d: d["target"].pop(key)), target())


def test_the_shipped_drafter_is_read():
    from varifocal.drafters._weights import shipped_weights
    from varifocal.targets import load_target

    demo = load_target("demo", dtype=torch.float32)
    assert Drafter.from_pretrained(shipped_weights("fovea", demo), demo).name == "fovea"


def test_what_is_neither_folder_nor_hub_id_says_so(tmp_path):
    for name in (str(tmp_path / "none"), "a/b/c", "../x", "none"):
        with pytest.raises(BadArtifact, match="no hub id either"):
            Drafter.from_pretrained(name, target())


def test_a_hub_id_that_was_never_fetched_is_clear_about_the_network():
    with pytest.raises(BadArtifact, match=r"me/drafter is no folder here.*Go online once"):
        Drafter.from_pretrained("me/drafter", target())


def test_a_hub_id_is_fetched_and_read(folder, monkeypatch):
    asked = {}

    def fetch(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    inputs = {"input_ids": torch.tensor([[5, 6, 7]]), "attention_mask": torch.ones(1, 3).long()}
    seen = []
    varifocal.generate(
        target().model,
        **inputs,
        drafter="me/drafter",
        tokenizer=target().processor,
        do_sample=False,
        max_new_tokens=4,
        on_result=seen.append,
    )
    assert asked["name"] == "me/drafter" and WEIGHTS in asked["allow_patterns"]
    assert seen[0].drafter == "fovea"


def test_the_digest_of_a_tokenizer_is_of_its_words_and_special_tokens_alone():
    other = tiny_target(seed=9)
    assert _belongs.tokenizer_digest(other) == _belongs.tokenizer_digest(target())
    assert _belongs.tokenizer_digest(Scripted(saying([2]))) is None
