"""Folders of trained drafters: what was saved is loaded, and everything else is refused by name."""

import json
import os
from functools import cache

import pytest
import torch
from fake_learner import LinearDrafter, Weights
from tiny import SHAPE, tiny_target

from varifocal.drafters import drafter_class, load_drafter
from varifocal.drafters._weights import (
    CONFIG,
    WEIGHTS,
    Card,
    load_trained,
    save_trained,
    shipped_weights,
)
from varifocal.drafters.plain import PlainDrafter
from varifocal.errors import BadArtifact, BadOption, DrafterMismatch

CARD = Card(seed=1, steps=10, command="varifocal train", data="demo", scores={"tau": 1.5})


@pytest.fixture(autouse=True)
def _findable(monkeypatch):
    find = lambda name: LinearDrafter if name == "fake_learner" else drafter_class(name)  # noqa: E731
    monkeypatch.setattr("varifocal.drafters._weights.drafter_class", find)


@cache
def target():
    return tiny_target()


def trained():
    drafter = LinearDrafter(
        target(), LinearDrafter.Config(nodes=7, sizes=(3, 4), objective=Weights(2.0))
    )
    with torch.no_grad():
        drafter.network[0].weight.mul_(3)
    return drafter


@pytest.fixture
def folder(tmp_path):
    save_trained(trained(), tmp_path / "d", card=CARD)
    return tmp_path / "d"


def test_a_saved_drafter_comes_back(folder):
    loaded = load_drafter(str(folder), target())
    assert loaded.config == trained().config
    assert torch.equal(loaded.network[0].weight, trained().network[0].weight)
    assert not loaded.network.training
    assert {p.name for p in folder.iterdir()} == {CONFIG, WEIGHTS, "README.md"}
    card = (folder / "README.md").read_text()
    assert "varifocal train" in card and "| tau | 1.5 |" in card


def test_half_precision_is_loaded_into_the_networks_own(tmp_path):
    save_trained(trained(), tmp_path / "d", card=CARD, dtype=torch.float16)
    loaded = load_trained(tmp_path / "d", target(), {})
    assert loaded.network[0].weight.dtype == torch.float32
    torch.testing.assert_close(
        loaded.network[0].weight, trained().network[0].weight, atol=1e-3, rtol=1e-3
    )


def test_how_it_drafts_may_be_changed_when_loading(folder):
    assert load_trained(folder, target(), {"nodes": 3, "depth": 2}).config.nodes == 3


def test_what_the_weights_were_trained_as_may_not(folder):
    with pytest.raises(BadOption, match=r"width is part of the trained weights .*\(8\)"):
        load_trained(folder, target(), {"width": 16})
    assert load_trained(folder, target(), {"width": 8}).config.width == 8


def test_an_unknown_option_is_refused(folder):
    with pytest.raises(BadOption, match="no option nods"):
        load_trained(folder, target(), {"nods": 3})


def test_another_target_is_refused_with_both_named(folder):
    other = tiny_target(seed=5)
    other.name = "other"
    with pytest.raises(DrafterMismatch, match=r"trained for 'tiny' .* the target is 'other'"):
        load_trained(folder, other, {})


def test_another_width_is_what_the_error_names_first(folder):
    other = tiny_target()
    other.hidden_size = 32
    with pytest.raises(DrafterMismatch, match=f"hidden_size {SHAPE.width}.*hidden_size 32"):
        load_trained(folder, other, {})


@pytest.mark.parametrize("damage", ["cut", "flipped", "missing", "empty"])
def test_damaged_weights_are_named(folder, damage):
    path = folder / WEIGHTS
    data = bytearray(path.read_bytes())
    data[-2] ^= 0x40
    whole = bytes(data)
    path.write_bytes({"cut": whole[:-20], "flipped": whole, "missing": b"", "empty": b""}[damage])
    if damage == "missing":
        path.unlink()
    with pytest.raises(BadArtifact, match=r"model\.safetensors"):
        load_trained(folder, target(), {})


@pytest.mark.parametrize("text", ["", "{", "{}", '{"format": "varifocal-drafter", "version": 9}'])
def test_a_damaged_config_is_named(folder, text):
    (folder / CONFIG).write_text(text)
    with pytest.raises(BadArtifact, match=r"config\.json"):
        load_trained(folder, target(), {})


def edited(folder, change):
    """The folder with another config.json, its weights and their header untouched."""
    description = json.loads((folder / CONFIG).read_text())
    change(description)
    (folder / CONFIG).write_text(json.dumps(description))
    return folder


EDITS = {
    r"config\.nodes \(7, edited to 12\).*--set nodes=12": lambda d: d["config"].update(nodes=12),
    r"config\.objective\.hidden \(2\.0, edited to 3": lambda d: d["config"].update(
        objective={"hidden": 3}
    ),
    r"config\.depth \(6, edited to absent\)\. Undo the edit$": lambda d: d["config"].pop("depth"),
    r"config\.colour \(absent, edited to null\)": lambda d: d["config"].update(colour=None),
    r"target\.name \(\"tiny\", edited to \"other\"\)": lambda d: d["target"].update(name="other"),
    r"recipe\.seed .*\. Undo the edit$": lambda d: d["recipe"].update(seed=9),
    r"drafter \(.*edited to \"plain\"": lambda d: d.update(drafter="plain"),
}


@pytest.mark.parametrize("named", EDITS)
def test_an_edited_config_is_refused_with_what_differs_and_the_way_out(folder, named):
    with pytest.raises(BadArtifact, match=named):
        load_trained(edited(folder, EDITS[named]), target(), {})


def test_a_config_that_was_only_written_anew_is_no_edit(folder):
    text = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(text, sort_keys=True))
    assert load_trained(folder, target(), {}).config == trained().config


def test_a_config_of_a_save_that_was_cut_short_is_told_and_the_weights_count(folder, caplog):
    def of_newer_weights(description):
        description["config"]["nodes"] = 12
        description["weights_sha256"] = "0" * 64

    loaded = load_trained(edited(folder, of_newer_weights), target(), {})
    assert loaded.config == trained().config
    assert "other weights" in caplog.text and "cut short" in caplog.text


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    drafter = trained()
    with torch.no_grad():
        drafter.network[0].weight[0, 0] = torch.nan
    with pytest.raises(BadArtifact, match="not finite"):
        save_trained(drafter, tmp_path / "d", card=CARD)
    assert not (tmp_path / "d").exists()


def test_a_weight_too_many_or_too_few_is_named(tmp_path):
    drafter = trained()
    drafter.network = torch.nn.Sequential(drafter.network[0], torch.nn.LayerNorm(8))
    save_trained(drafter, tmp_path / "d", card=CARD)
    with pytest.raises(BadArtifact, match=r"1\.weight is \(8,\), wanted \(8, 8\)"):
        load_trained(tmp_path / "d", target(), {})
    drafter.network = torch.nn.Sequential(drafter.network[0])
    save_trained(drafter, tmp_path / "e", card=CARD)
    with pytest.raises(BadArtifact, match=r"1\.bias is missing"):
        load_trained(tmp_path / "e", target(), {})


@pytest.mark.parametrize("fits", [1, 2, 3])
def test_a_save_cut_short_leaves_the_old_drafter(folder, monkeypatch, fits):
    sync, calls = os.fsync, []

    def full(fd):
        calls.append(fd)
        if len(calls) >= fits:
            raise OSError(28, "No space left on device")
        sync(fd)

    newer = trained()
    with torch.no_grad():
        newer.network[0].weight.zero_()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(BadArtifact, match="No space left"):
            save_trained(newer, folder, card=CARD)
    loaded = load_trained(folder, target(), {})
    assert torch.equal(loaded.network[0].weight, trained().network[0].weight)
    assert not list(folder.glob("*.new"))


def test_other_files_in_the_folder_stay(folder):
    (folder / "log.jsonl").write_text("x")
    save_trained(trained(), folder, card=CARD)
    assert (folder / "log.jsonl").read_text() == "x"


def test_the_recipe_is_in_the_config(folder):
    text = json.loads((folder / CONFIG).read_text())
    assert text["recipe"]["seed"] == 1 and text["config"]["sizes"] == [3, 4]


def test_shipped_weights_are_found_only_for_their_own_target(folder):
    assert shipped_weights("d", target(), folder.parent) == folder
    assert shipped_weights("d", tiny_target(seed=5), folder.parent) is None
    assert shipped_weights("none", target(), folder.parent) is None


def test_a_drafter_without_weights_cannot_be_saved(tmp_path):
    with pytest.raises(BadOption, match="plain has no weights"):
        save_trained(PlainDrafter(target(), PlainDrafter.Config()), tmp_path / "d", card=CARD)
