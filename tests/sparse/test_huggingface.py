"""Tiny Llama and Qwen models decode with sparse attention through transformers' own generate."""

from copy import deepcopy

import pytest
import torch
from drop_in import inputs_of, target_of
from sparse_models import FAMILIES, KEYWORD, PROMPT, SIZES, SMALL, generated, sparse, tiny
from transformers import MistralConfig, MistralForCausalLM

from varifocal.errors import BadOption, BadRequest, UnsupportedTarget
from varifocal.sparse import Reach
from varifocal.sparse.huggingface import SparseCache, use
from varifocal.sparse.interface import _mask
from varifocal.sparse.predictors import PREDICTORS
from varifocal.sparse.selectors import SELECTORS


@pytest.mark.parametrize("selector", ["quest", "lightning"])
@pytest.mark.parametrize("family", FAMILIES)
def test_text_and_logits_are_those_of_dense_attention_when_everything_fits(family, selector):
    ours = generated(*sparse(family, Reach(budget=4096), selector=selector))
    theirs = generated(tiny(family), None)
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(
        torch.stack(ours.logits), torch.stack(theirs.logits), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("predictor", PREDICTORS)
@pytest.mark.parametrize("selector", SELECTORS)
def test_logits_with_prr_are_those_of_plain_sparse_attention_to_the_bit(predictor, selector):
    plain = generated(*sparse(selector=selector, is_plain=True))
    model, cache = sparse(selector=selector, predictor=predictor)
    ours = generated(model, cache)
    assert torch.equal(torch.stack(ours.logits), torch.stack(plain.logits))
    assert torch.equal(ours.sequences, plain.sequences)
    dense = generated(tiny(), None)
    assert not torch.equal(torch.stack(ours.logits), torch.stack(dense.logits))
    assert {rate.predictor for rate in cache.rates()} == {predictor, "last"}


@pytest.mark.parametrize("selector", ["quest", "lightning", "lightning_tokens"])
def test_a_padded_batch_says_what_its_rows_say_alone(selector):
    prompts = [PROMPT[:, :40], PROMPT[:, 3:24], PROMPT[:, 5:8]]
    tokens = torch.zeros(3, 40, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, 40 - prompt.shape[1] :], mask[row, 40 - prompt.shape[1] :] = prompt, 1
    together = generated(*sparse(num_rows=3, selector=selector), tokens, attention_mask=mask)
    for row, prompt in enumerate(prompts):
        alone = generated(*sparse(selector=selector), prompt)
        assert torch.equal(alone.sequences[0, prompt.shape[1] :], together.sequences[row, 40:])


@pytest.mark.parametrize("selector", ["quest", "lightning"])
def test_several_tokens_at_once_are_verified_densely_and_rejected_ones_leave_nothing(selector):
    model, cache = sparse(selector=selector)
    twin, other = sparse(selector=selector)
    with torch.no_grad():
        for m, c in ((model, cache), (twin, other)):
            m(PROMPT, **{KEYWORD: c})
        drafted = model(PROMPT[:, :5], **{KEYWORD: cache}).logits
        dense = tiny()(torch.cat([PROMPT, PROMPT[:, :5]], 1)).logits[:, -5:]
        torch.testing.assert_close(drafted, dense, rtol=1e-9, atol=1e-11)
        cache.crop(-5)
        assert cache.get_seq_length() == cache.attention.cache.length(0) == 40
        after, before = (
            m(PROMPT[:, :1], **{KEYWORD: c}).logits for m, c in ((model, cache), (twin, other))
        )
    assert torch.equal(after, before)


def test_a_tree_is_verified_under_its_own_mask_and_its_path_kept():
    model, cache = sparse()
    ancestry = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]).bool()
    mask = torch.cat([torch.ones(4, 40, dtype=torch.bool), ancestry], 1)[None, None]
    tokens = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        model(PROMPT, **{KEYWORD: cache})
        places = torch.tensor([[40, 41, 41, 42]])
        tree = model(tokens, attention_mask=mask, position_ids=places, **{KEYWORD: cache}).logits
        path = torch.cat([PROMPT, torch.tensor([[5, 7, 8]])], 1)
        alone = tiny()(path).logits[:, -3:]
    torch.testing.assert_close(tree[:, [0, 2, 3]], alone, rtol=1e-9, atol=1e-11)


def test_models_and_calls_that_cannot_be_sparse_are_refused():
    config = MistralConfig(**SIZES, sliding_window=16)
    with pytest.raises(UnsupportedTarget, match="sliding_attention"):
        use(MistralForCausalLM(config))
    model = tiny()
    with pytest.raises(BadOption, match=r"attends by 'sdpa'.*use\(model\) first"):
        SparseCache(model, SMALL)
    use(model)
    with pytest.raises(BadRequest, match="pass cache=SparseCache"):
        generated(model, None)
    with pytest.raises(BadOption, match="does not hold one block of 16"):
        SparseCache(model, SMALL)
    with pytest.raises(BadRequest, match="made for 1 rows, got 2"):
        generated(model, SparseCache(model, SMALL, block_size=4), PROMPT.expand(2, -1))


@pytest.mark.parametrize(
    "family",
    ["llava", "llava_next", "llava_onevision", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "idefics3"],
)
def test_the_language_part_of_a_vision_language_model_decodes_sparsely(family):
    inputs = inputs_of(family)
    theirs, ours = (deepcopy(target_of(family).model) for _ in range(2))
    tower = ours.config.vision_config._attn_implementation
    use(ours)
    assert ours.config.vision_config._attn_implementation == tower
    options = {
        "max_new_tokens": 6,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
    }
    wide = SparseCache(ours, Reach(budget=8192))
    dense, full = (
        theirs.generate(**inputs, **options),
        ours.generate(**inputs, **options, **{KEYWORD: wide}),
    )
    torch.testing.assert_close(
        torch.stack(full.logits), torch.stack(dense.logits), rtol=1e-3, atol=1e-4
    )
    narrow = [
        ours.generate(
            **inputs,
            **options,
            **{KEYWORD: SparseCache(ours, SMALL, block_size=4, is_plain=is_plain)},
        )
        for is_plain in (True, False)
    ]
    assert torch.equal(*(torch.stack(run.logits) for run in narrow))
    assert not torch.equal(torch.stack(narrow[0].logits), torch.stack(full.logits))


def test_masks_that_are_not_causal_are_refused():
    with pytest.raises(UnsupportedTarget, match="sparse attention is causal"):
        _mask(mask_function=lambda *_: True)
