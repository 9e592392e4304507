"""`varifocal convert`: published drafters become ours, and an EAGLE-3 of ours speculators'."""

import json
import re
import shlex
from pathlib import Path

import published_drafters as authors
import pytest
import torch
from safetensors.torch import load_file

from varifocal.drafters import load_drafter
from varifocal.drafters._published.converting import convert
from varifocal.drafters._weights import Card, save_trained
from varifocal.drafters.eagle3 import Eagle3Drafter
from varifocal.errors import BadOption
from varifocal.targets import load_target

FLAGS = {
    "plain": {},
    "reduced": {"draft_vocab": 30, "kv_heads": 2, "theta": 5e5, "eps": 1e-5},
    "speculators": {"norm_before_residual": True, "norm_before_fc": True, "draft_vocab": 40},
    "3.1": {"fc_norm": True, "norm_output": True, "blocks": 2, "head_width": 8},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A target of which each token tells the next."""
    return authors.save(authors.forgetful_target(), tmp_path_factory.mktemp("t") / "forgetful")


@pytest.fixture(scope="module")
def target(folder):
    return load_target(str(folder), dtype=torch.float32)


def trained(target, folder, *, dtype=torch.float32, **settings):
    torch.manual_seed(1)
    settings = {"inner": 24, "norms": "rms", "taps": (1, 3, 6), **settings}
    drafter = Eagle3Drafter(target, Eagle3Drafter.Config(**settings))
    with torch.no_grad():
        for weight in drafter.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    save_trained(drafter, folder, card=Card(seed=1, steps=2), dtype=dtype)
    return folder


def test_a_published_drafter_becomes_a_folder_of_the_target(run, folder, target, tmp_path):
    source = authors.obvious(target).write(tmp_path / "EAGLE-tiny", "bin", torch.float16)
    base = ("convert", "--from", source, "--target", folder, "--dtype", "float32")
    result = run(*base, "--to", tmp_path / "ours", "--json", "-")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout[result.stdout.index("{") :])
    assert told["source"] == "EAGLE-tiny" and told["drafter"] == "text_only"
    assert told["agreement"] == {"hits": 64, "places": 64}
    drafter = load_drafter(str(tmp_path / "ours"), target)
    assert drafter.config.prefix == "full" and drafter.config.norms == "rms"
    held = load_file(tmp_path / "ours" / "model.safetensors")
    assert {t.dtype for t in held.values()} == {torch.float16}
    card = (tmp_path / "ours" / "README.md").read_text()
    assert "Converted from `EAGLE-tiny`" in card and "64 of 64 first guesses" in card
    assert drafter.recipe["command"].startswith("varifocal ")
    again = run(*base, "--to", tmp_path / "ours")
    assert again.exit_code == 2 and "no empty folder" in again.stderr
    twice = run("convert", "--from", tmp_path / "ours", "--to", tmp_path / "x", "--target", folder)
    assert twice.exit_code == 2 and "in varifocal's layout already" in twice.stderr


def test_a_drafter_that_guesses_in_vain_is_not_written(run, folder, target, tmp_path):
    source = authors.eagle(target).write(tmp_path / "draft")
    base = ("convert", "--from", source, "--to", tmp_path / "ours", "--target", folder)
    unnamed = run(*base)
    assert unnamed.exit_code == 2 and "--family" in unnamed.stderr
    refused = run(*base, "--family", "msd")
    assert refused.exit_code == 2 and "does not draft for" in refused.stderr
    assert not (tmp_path / "ours").exists()
    forced = run(*base, "--family", "msd", "--no-check")
    assert forced.exit_code == 0, forced.output
    assert load_drafter(str(tmp_path / "ours"), target).name == "msd"


def test_a_published_folder_is_taken_by_generate_with_its_options(run, folder, target, tmp_path):
    source = authors.eagle(target).write(tmp_path / "draft")
    base = ("generate", "--target", folder, "--dtype", "float32", "--prompt", "What is it?",
            "--max-new-tokens", 6, "--drafter", source, "--set", "nodes=4")  # fmt: skip
    plain = run(*base[:-4], "--drafter", "plain")
    given = run(*base, "--set", "family=eagle", "--set", "check=false")
    assert given.exit_code == 0, given.output
    assert given.stdout.splitlines()[0] == plain.stdout.splitlines()[0]
    checked = run(*base, "--set", "family=eagle")
    assert checked.exit_code == 2 and "--set check=false" in checked.stderr


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_eagle3_goes_to_speculators_and_back_bit_for_bit(target, tmp_path, flags, dtype):
    ours = trained(target, tmp_path / "ours", dtype=dtype, **FLAGS[flags])
    there = convert(ours, tmp_path / "theirs", target, layout="speculators")
    back = convert(tmp_path / "theirs", tmp_path / "back", target, check=False)
    assert (there.drafter, back.layout) == ("eagle3", "EAGLE-3 (speculators)")
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("ours", "back"))
    assert before.keys() == after.keys()
    for name, weight in before.items():
        assert weight.dtype == after[name].dtype and torch.equal(weight, after[name]), name
    first, second = (load_drafter(str(tmp_path / x), target) for x in ("ours", "back"))
    for key in type(first.config).ARCHITECTURE - {"draft_vocab", "kv_heads", "head_width"}:
        assert getattr(first.config, key) == getattr(second.config, key), key
    assert first.network.shape == second.network.shape
    assert first.want == second.want


def test_the_layout_of_speculators_is_that_of_its_authors(target, tmp_path):
    ours = trained(target, tmp_path / "ours", draft_vocab=30, norm_before_residual=True)
    convert(ours, tmp_path / "theirs", target, layout="speculators")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3" and config["norm_before_residual"]
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 3, 6]
    assert config["transformer_layer_config"]["num_hidden_layers"] == 1
    held = load_file(tmp_path / "theirs" / "model.safetensors")
    assert set(held) == set(authors.speculators(target).tensors)
    assert held["layers.0.self_attn.q_proj.weight"].shape == (64, 128)
    assert held["d2t"].dtype == torch.int64 and held["t2d"].dtype == torch.bool
    assert "ours" in (tmp_path / "theirs" / "README.md").read_text()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"norms": "layer"}, r"RMSNorm alone; train one with .*--set norms=rms"),
        ({"bias": True}, "biases of queries"),
        ({"prefix": "text_only"}, "reads text alone"),
    ],
)
def test_what_speculators_cannot_hold_is_refused_with_the_flag(target, tmp_path, settings, named):
    ours = trained(target, tmp_path / "ours", **settings)
    with pytest.raises(BadOption, match=named):
        convert(ours, tmp_path / "theirs", target, layout="speculators")
    assert not (tmp_path / "theirs").exists()


def test_the_commands_of_the_page_run_in_order(run, folder, target, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("varifocal.engine.measure", lambda target, drafter: None)  # seconds
    authors.obvious(target).write(tmp_path / "EAGLE-tiny")
    page = (Path(__file__).parent.parent.parent / "docs" / "published.md").read_text("utf-8")
    (block,) = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    commands = block.strip().splitlines()
    assert [c.split()[1] for c in commands] == ["generate", "convert", "generate"]
    for command in commands:
        small = command.replace("MODEL", str(folder)).replace("CHECKPOINT", "EAGLE-tiny")
        result = run(*shlex.split(small.replace("tokens 64", "tokens 6"))[1:], "--dtype", "float32")
        assert result.exit_code == 0, result.output


def test_only_an_eagle3_of_ours_goes_to_speculators(run, folder, target, tmp_path):
    published = authors.dream(target).write(tmp_path / "d")
    convert(published, tmp_path / "ours", target, check=False)
    for source, named in ((tmp_path / "ours", "is a dream"), (published, "into varifocal's alone")):
        with pytest.raises(BadOption, match=named):
            convert(source, tmp_path / "x", target, layout="speculators")
    wrong = run("convert", "--from", published, "--to", tmp_path / "x", "--layout", "vllm")
    assert wrong.exit_code == 2 and "varifocal or speculators" in wrong.stderr
    lost = run("convert", "--from", tmp_path / "none", "--to", tmp_path / "x")
    assert lost.exit_code == 2 and "there is no folder" in lost.stderr
    (tmp_path / "empty").mkdir()
    empty = run("convert", "--from", tmp_path / "empty", "--to", tmp_path / "x", "--target", folder)
    assert empty.exit_code == 2 and "config.json cannot be read" in empty.stderr
