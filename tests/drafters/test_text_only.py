"""The text-only control: what it reads, what it computes, and that training meets decoding."""

from dataclasses import replace

import pytest
import tiny
import torch
from defined import LLAVA, agrees_on_a_draft, agrees_on_a_loss
from taught import (
    attended,
    check_any_order,
    check_learning,
    check_no_signal,
    check_padding,
    decoded_states,
    drafted_twice,
    normed,
    shortened,
    unrolled_states,
)

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters._unroll import Chain, collate
from varifocal.drafters._weights import Card, load_trained, save_trained
from varifocal.drafters.text_only import TextOnlyDrafter
from varifocal.errors import BadArtifact, BadOption
from varifocal.request import ask
from varifocal.sampling import Sampling

CARD = Card(seed=0, steps=1)
# EAGLE-2 as published: for Llama, and for Qwen2.
PUBLISHED = [LLAVA, {**LLAVA, "bias": True, "kv_heads": 2, "theta": 1e6}]


def text_only(target, **options):
    torch.manual_seed(0)
    return TextOnlyDrafter(target, TextOnlyDrafter.Config(**{"inner": 64, "nodes": 12, **options}))


def slots_of(batch, target):
    return collate(batch, target, lambda item: item.final, text_only=True, max_bases=0)


def test_training_meets_the_states_of_decoding(target, one):
    drafter = text_only(target)
    slots = slots_of([shortened(one.artifact), one.artifact], target)
    met = unrolled_states(Chain(drafter.network, slots), slots, 1, 4)
    for trained, decoded in zip(met, decoded_states(drafter, one, 4), strict=True):
        torch.testing.assert_close(trained, decoded, atol=1e-5, rtol=1e-4)


def test_states_equal_a_naive_reference(target, one):
    drafter = text_only(target)
    network, n = drafter.network, len(one.prompt.tokens)
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, one.answer[0])
        following = torch.cat([one.prompt.tokens[1:], torch.tensor(one.answer[:1])])
        kept = [i for i in range(n) if i == n - 1 or not one.prompt.is_image[i + 1]]
        embedded = target.model.get_input_embeddings().weight[following[kept]]
        entered = [normed(one.seen.final[kept], network.feature_norm),
                   normed(embedded, network.token_norm)]  # fmt: skip
        x = torch.cat(entered, -1) @ network.join.weight.double().T
        for block in network.blocks:
            q, k, v = (normed(x, block.attention_norm) @ block.qkv.weight.double().T).chunk(3, -1)
            read = attended(q, k, v, network.shape.heads, torch.tensor(kept))
            x = x + read @ block.out.weight.double().T
            gate, up = (normed(x, block.inner_norm) @ block.gate_up.weight.double().T).chunk(2, -1)
            x = x + (gate * gate.sigmoid() * up) @ block.down.weight.double().T
        wanted = normed(x, network.norm)[-1]
        logits = wanted @ target.model.lm_head.weight.double().T
        scored, _ = drafter._score(state.top, 0)
    torch.testing.assert_close(state.top[0].double(), wanted, atol=1e-5, rtol=1e-5)
    allowed = [i for i in range(target.vocab_size) if i not in target.banned_ids]
    torch.testing.assert_close(
        scored[0, allowed].double(), logits[allowed].log_softmax(-1), atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("options", PUBLISHED, ids=["Llama", "Qwen2"])
@pytest.mark.parametrize("prefix", ["full", "text_only"])
def test_the_published_network_drafts_as_defined(target, one, options, prefix):
    kind = "joined" if prefix == "full" else "left out"
    drafter = text_only(target, width=3, inner=48, prefix=prefix, **options)
    agrees_on_a_draft(drafter, one, kind)


@pytest.mark.parametrize("options", PUBLISHED, ids=["Llama", "Qwen2"])
@pytest.mark.parametrize("prefix", ["full", "text_only"])
def test_the_published_loss_is_as_defined(target, one, options, prefix):
    kind = "joined" if prefix == "full" else "left out"
    for unroll in (1, 3):
        drafter = text_only(target, inner=48, prefix=prefix, unroll=unroll, max_bases=0, **options)
        agrees_on_a_loss(drafter, shortened(one.artifact, 18), kind)  # 6 answer tokens


def test_a_full_prefix_reads_embeddings_of_the_target_and_is_part_of_the_weights(
    target, one, tmp_path
):
    drafter = text_only(target, prefix="full")
    assert drafter.want.embeddings and not text_only(target).want.embeddings
    asked = ask("what is it?", [tiny.picture()], max_new_tokens=24)
    assert generate(target, drafter, asked).token_ids == one.answer
    save_trained(drafter, tmp_path / "d", card=CARD)
    assert load_trained(tmp_path / "d", target, {}).config.prefix == "full"
    with pytest.raises(BadOption, match="prefix is part of the trained weights"):
        load_trained(tmp_path / "d", target, {"prefix": "text_only"})


def test_nothing_of_a_picture_enters_but_through_states_of_text(target, one):
    drafter = text_only(target)
    slot = int(one.prompt.is_image.nonzero()[3])  # its next slot is a picture's too
    final = one.prefill.final.clone()
    final[slot] = 1e3
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, one.answer[0])
        spoilt = drafter.start(one.prompt, replace(one.prefill, final=final), one.answer[0])
    assert torch.equal(state.top, spoilt.top)
    text = int((~one.prompt.is_image).nonzero()[-1])
    assert state.cache.length == int((~one.prompt.is_image[1:]).sum()) + 1 < text
    final[text - 1] += 1.0
    with torch.no_grad():
        other = drafter.start(one.prompt, replace(one.prefill, final=final), one.answer[0])
    assert not torch.equal(state.top, other.top)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
def test_the_text_is_plain_decodings_for_any_order_of_siblings(target, sampling):
    asked = ask("what is it?", [tiny.picture()], max_new_tokens=30, sampling=sampling)
    check_any_order(text_only(target), target, asked)


def test_a_learned_answer_is_accepted_and_comes_back_from_disk(target, one, tmp_path):
    check_learning(lambda: text_only(target, classification=1.0), target, one, tmp_path / "d")


def test_loss_does_not_depend_on_padding(target, one):
    parts = ("regression", "classification")
    check_padding(text_only(target), shortened(one.artifact), one.artifact, parts=parts)


def test_an_answer_of_one_token_gives_no_signal_and_no_nan(target, one):
    check_no_signal(text_only(target), one)


def test_a_draft_leaves_the_cache_as_it_was(target, one):
    state = drafted_twice(text_only(target), one)
    assert state.cache.length == state.cache.stable


def test_without_shipped_weights_it_says_how_to_train(target):
    with pytest.raises(BadArtifact, match="varifocal train --drafter text_only"):
        load_drafter("text_only", target)


@pytest.mark.parametrize("options", [{"heads": 5}, {"width": 0}, {"unroll": 0}, {"gamma_w": 0.0}])
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        text_only(target, **options)
