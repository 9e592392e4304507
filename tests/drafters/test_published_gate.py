"""The trial of published checkpoints, and the settings of eagle3 that they brought."""

import published_drafters as authors
import pytest
import tiny
import torch
from published_drafters import FAMILY, deep_target, forgetful_target, obvious
from taught import decoded_states, recorded, unrolled_states

from varifocal.drafters import load_drafter
from varifocal.drafters._published import gate
from varifocal.drafters._unroll import Chain, collate
from varifocal.drafters.eagle3 import Eagle3Drafter
from varifocal.errors import BadOption, DrafterMismatch


@pytest.fixture(scope="module")
def target():
    return deep_target()


# -- the gate ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forgetful():
    return forgetful_target()


def test_a_drafter_that_agrees_passes_the_gate(forgetful, tmp_path):
    folder = obvious(forgetful).write(tmp_path / "EAGLE")
    drafter = load_drafter(str(folder), forgetful)
    assert gate.agreement(drafter).share == 1.0
    assert gate.agreement(drafter).places == 64


def test_halves_in_the_wrong_order_and_random_weights_do_not(forgetful, tmp_path):
    swapped = obvious(forgetful, state=1.0, embedding=0.0)
    for name, made in (("swapped", swapped), ("random", authors.eagle(forgetful))):
        folder = made.write(tmp_path / f"EAGLE-{name}")
        with pytest.raises(DrafterMismatch, match=r"does not draft for .*15%.*check=False"):
            load_drafter(str(folder), forgetful)
        assert load_drafter(str(folder), forgetful, check=False).name == "text_only"


@pytest.mark.parametrize("name", FAMILY)
def test_random_weights_are_refused_whatever_the_family(target, tmp_path, name):
    folder = getattr(authors, name)(target).write(tmp_path / "x")
    with pytest.raises(DrafterMismatch, match="of its first guesses"):
        load_drafter(str(folder), target, family=FAMILY[name])


def test_a_target_that_cannot_be_asked_says_so(target, tmp_path, monkeypatch):
    def encode(request):
        raise BadOption("there is no chat template.")

    monkeypatch.setattr(target, "encode", encode)
    folder = authors.dream(target).write(tmp_path / "d")
    with pytest.raises(BadOption, match=r"could not be tried .* no chat template.*check=False"):
        load_drafter(str(folder), target)


# -- the settings that published weights brought -----------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        {"norm_before_residual": True, "norm_before_fc": True},
        {"fc_norm": True, "norm_output": True, "blocks": 2},
    ],
    ids=lambda flags: "+".join(flags),
)
def test_training_meets_the_states_of_decoding_with_the_settings_of_published_weights(flags):
    target = tiny.tiny_target(seed=3)
    torch.manual_seed(0)
    config = Eagle3Drafter.Config(inner=64, norms="rms", **flags)
    drafter, one = Eagle3Drafter(target, config), recorded(target)
    slots = collate([one.artifact], target, drafter._taps_of, text_only=False, max_bases=0)
    met = unrolled_states(Chain(drafter.network, slots), slots, 0, 4)
    for trained, decoded in zip(met, decoded_states(drafter, one, 4), strict=True):
        torch.testing.assert_close(trained, decoded, atol=1e-5, rtol=1e-4)


def test_norms_of_the_same_layers_exclude_each_other():
    with pytest.raises(BadOption, match="fc_norm and norm_before_fc"):
        Eagle3Drafter.Config(fc_norm=True, norm_before_fc=True)
