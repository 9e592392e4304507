"""MSD: pictures enter as they are projected, texts as joins, and the curriculum says when."""

from dataclasses import replace

import pytest
import tiny
import torch
from defined import LLAVA, QWEN2_VL, agrees_on_a_draft, agrees_on_a_loss
from taught import check_any_order, check_learning, shortened

from varifocal.drafters import load_drafter
from varifocal.drafters._weights import Card
from varifocal.drafters.msd import MsdDrafter
from varifocal.drafters.text_only import TextOnlyDrafter
from varifocal.errors import BadArtifact, BadOption
from varifocal.request import ask
from varifocal.sampling import Sampling

CARD = Card(seed=0, steps=1)
SETTINGS = [{}, LLAVA, QWEN2_VL]
NAMES = ["ours", "LLaVA", "Qwen2-VL"]


def msd(target, **options):
    torch.manual_seed(0)
    return MsdDrafter(target, MsdDrafter.Config(**{"inner": 48, "nodes": 12, **options}))


@pytest.mark.parametrize("options", SETTINGS, ids=NAMES)
def test_prompt_and_draft_tree_equal_the_definition(target, one, options):
    agrees_on_a_draft(msd(target, width=3, **options), one, "alone")


@pytest.mark.parametrize("options", SETTINGS, ids=NAMES)
def test_the_loss_equals_the_definition(target, one, options):
    weights = {"regression": 0.7, "classification": 0.3, "gamma_w": 2.0}
    drafter = msd(target, unroll=3, max_bases=0, **weights, **options)
    agrees_on_a_loss(drafter, shortened(one.artifact, 18), "alone")  # 6 answer tokens


def test_a_pictures_slot_reads_its_embedding_and_no_state(target, one):
    drafter = msd(target)
    slots = one.prompt.is_image[1:].nonzero()[:, 0]  # whose following token is a picture's
    final, embeddings = one.prefill.final.clone(), one.prefill.embeddings.clone()
    final[slots] = 1e3
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, one.answer[0])
        same = drafter.start(one.prompt, replace(one.prefill, final=final), one.answer[0])
        assert torch.equal(state.top, same.top)
        embeddings[slots[3] + 1] += 1
        seen = replace(one.prefill, embeddings=embeddings)
        other = drafter.start(one.prompt, seen, one.answer[0])
    assert not torch.equal(state.top, other.top)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
def test_the_text_is_plain_decodings_for_any_order_of_siblings(target, sampling):
    pictures = [tiny.picture(0), tiny.picture(1)]
    asked = ask("what is it?", pictures, max_new_tokens=30, sampling=sampling)
    check_any_order(msd(target), target, asked)


def test_a_learned_answer_is_accepted_and_comes_back_from_disk(target, one, tmp_path):
    check_learning(lambda: msd(target), target, one, tmp_path / "d")


def test_before_visual_from_it_is_the_text_only_drafter(target, one):
    late = msd(target, visual_from=0.5)
    options = {"inner": 48, "classification": 1.0}
    control = TextOnlyDrafter(target, TextOnlyDrafter.Config(**options))
    control.network.load_state_dict(late.network.state_dict())
    with torch.no_grad():
        before, after = (late.loss([one.artifact], p).total for p in (0.499, 0.5))
        assert torch.equal(before, control.loss([one.artifact], 0.0).total)
        assert torch.equal(after, msd(target).loss([one.artifact], 0.0).total)
    assert not torch.equal(before, after)


def test_batches_with_pictures_rise_from_none_to_all(target):
    drafter = msd(target, visual_from=0.5, visual_rise=0.5)

    def share(progress):
        return sum(drafter._shows(progress) for _ in range(2000)) / 2000

    with torch.random.fork_rng():
        torch.manual_seed(0)
        assert share(0.3) == share(0.5) == 0.0 and share(1.0) == 1.0
        assert share(0.625) == pytest.approx(0.25, abs=0.04)
        assert share(0.9) == pytest.approx(0.8, abs=0.04)
    assert msd(target)._shows(0.0)


def test_without_shipped_weights_it_says_how_to_train(target):
    with pytest.raises(BadArtifact, match="varifocal train --drafter msd"):
        load_drafter("msd", target)


@pytest.mark.parametrize(
    "options",
    [{"heads": 5}, {"visual_from": 1.0}, {"visual_from": -0.1}, {"visual_rise": -0.1},
     {"visual_rise": 0.6, "visual_from": 0.5}],
)  # fmt: skip
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        msd(target, **options)
