"""The masked denoiser against a reference written out in loops: windows, caches, the shift."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from diffusion.reference import Reference
from diffusion.tiny import Kind, tiny_denoiser, tiny_model, tiny_vocabulary
from torch import Tensor

from varifocal.diffusion.denoiser import Canvas, Vocabulary
from varifocal.diffusion.layouts import LAYOUTS
from varifocal.diffusion.masked import MaskedDenoiser
from varifocal.diffusion.model import MaskedTransformer

KINDS = get_args(Kind)
PROMPTS = [[5, 6, 7, 8, 9], [40, 41], [90, 91, 92]]


def reference(denoiser: MaskedDenoiser) -> Reference:
    """Of the same weights, under their published names."""
    config = denoiser.model.config
    (layout,) = [one for one in LAYOUTS.values() if one.shift == config.shift]
    tensors = {layout.named(name): t for name, t in denoiser.model.state_dict().items()}
    return Reference(tensors, layout.published(config, denoiser.vocabulary))


def close(made: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(made.double(), wanted, atol=2e-5, rtol=0)


def say(canvas: Canvas, place: int, *ids: int) -> None:
    """Commit ids from this position on, in every row."""
    canvas.tokens[:, place : place + len(ids)] = torch.tensor(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_cached_windows_equal_a_reference_with_the_same_stale_keys_and_values(kind: Kind):
    denoiser = tiny_denoiser(kind)
    canvas, known = denoiser.lay([PROMPTS[0]], 8), reference(denoiser)
    whole = denoiser.forward(canvas, slice(0, 13), caching=True)
    close(whole[0], known.about(canvas.tokens[0].tolist(), 0, 13))
    say(canvas, 5, 30, 31)
    for window in (slice(5, 13), slice(5, 9), slice(9, 13)):  # prefix cache, then dual cache
        made = denoiser.forward(canvas, window, caching=True)
        close(made[0], known.about(canvas.tokens[0].tolist(), window.start, window.stop))
        say(canvas, window.start + 2, 50 + window.start)


@pytest.mark.parametrize("kind", KINDS)
def test_a_window_without_a_cache_is_that_part_of_the_whole_bit_for_bit(kind: Kind):
    denoiser = tiny_denoiser(kind)
    canvas = denoiser.lay(PROMPTS, 8)
    whole = denoiser.forward(canvas, slice(None))
    cached = denoiser.forward(canvas, slice(None), caching=True)
    part = denoiser.forward(canvas, slice(6, 10))
    assert torch.equal(whole, cached)
    assert torch.equal(whole[:, 6:10], part)


@pytest.mark.parametrize("kind", KINDS)
def test_a_padded_row_is_its_single_run_bit_for_bit_when_rows_end_and_windows_move(kind: Kind):
    denoiser = tiny_denoiser(kind)
    batch, alone = denoiser.lay(PROMPTS, 8), denoiser.lay([PROMPTS[1]], 8)
    first = denoiser.forward(batch, slice(None), caching=True)
    assert torch.equal(first[1, 3:], denoiser.forward(alone, slice(None), caching=True)[0])
    say(batch, 5, 33), say(alone, 2, 33)
    batch = denoiser.select(batch, [1, 2])
    made = denoiser.forward(batch, slice(5, 9), caching=True)
    assert torch.equal(made[0], denoiser.forward(alone, slice(2, 6), caching=True)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_computed_together_choose_as_rows_computed_alone(kind: Kind):
    exact = tiny_denoiser(kind)
    together = MaskedDenoiser(
        exact.model, exact.vocabulary, exact.tokenizer, "together", exact_rows=False
    )
    mine, theirs = exact.lay(PROMPTS, 8), together.lay(PROMPTS, 8)
    for window in (slice(0, 13), slice(5, 13), slice(7, 11)):
        caching = {"caching": True}
        a, b = exact.forward(mine, window, **caching), together.forward(theirs, window, **caching)
        real = mine.is_real[:, window]
        torch.testing.assert_close(a[real], b[real], atol=2e-5, rtol=0)
        assert torch.equal(a[real].argmax(-1), b[real].argmax(-1))
        say(mine, window.start + 6, 60), say(theirs, window.start + 6, 60)


def test_shifted_logits_are_those_of_the_position_before_and_the_first_are_its_own():
    denoiser = tiny_denoiser("dream")
    canvas = denoiser.lay([PROMPTS[0], PROMPTS[1]], 4)
    with torch.no_grad():
        raw = [denoiser.model(row[None, pad:], torch.arange(9 - pad)[None])[0]
               for row, pad in zip(canvas.tokens, (0, 3), strict=True)]  # fmt: skip
    made = denoiser.forward(canvas, slice(None))
    for row, (own, pad) in enumerate(zip(raw, (0, 3), strict=True)):
        torch.testing.assert_close(made[row, pad + 1 :], own[:-1])
        torch.testing.assert_close(made[row, pad], own[0])


def test_a_shifted_canvas_without_a_prompt_begins_with_its_own_logits():
    denoiser = tiny_denoiser("dream")
    made = denoiser.forward(denoiser.lay([[]], 4), slice(None))
    assert torch.equal(made[0, 0], made[0, 1])


def test_positions_computed_by_the_last_forward_are_fresh_and_no_others():
    denoiser = tiny_denoiser("dream")
    canvas = denoiser.lay(PROMPTS, 8)
    denoiser.forward(canvas, slice(None), caching=True)
    assert torch.equal(canvas.fresh, canvas.is_real)
    denoiser.forward(canvas, slice(7, 10), caching=True)
    assert canvas.fresh.nonzero()[:, 1].unique().tolist() == [7, 8, 9]
    assert torch.equal(denoiser.select(canvas, [2]).fresh, canvas.fresh[2:])


def test_a_cache_is_not_begun_with_a_part():
    denoiser = tiny_denoiser()
    with pytest.raises(ValueError, match="window over all 9"):
        denoiser.forward(denoiser.lay([[1]], 8), slice(1, 9), caching=True)


def test_selected_rows_share_nothing_with_the_rows_they_came_from():
    denoiser = tiny_denoiser()
    canvas = denoiser.lay(PROMPTS, 8)
    denoiser.forward(canvas, slice(None), caching=True)
    before = canvas.tokens.clone(), canvas.cache[0].keys.clone()
    kept = denoiser.select(canvas, [0, 2])
    say(kept, 6, 70)
    denoiser.forward(kept, slice(5, 9), caching=True)
    assert torch.equal(canvas.tokens, before[0])
    assert torch.equal(canvas.cache[0].keys, before[1])


def test_prompts_lie_right_and_masks_behind_them():
    denoiser = tiny_denoiser()
    canvas = denoiser.lay([[7, 8, 9], [4]], 2)
    pad, mask = denoiser.vocabulary.pad, denoiser.vocabulary.mask
    assert canvas.tokens.tolist() == [[7, 8, 9, mask, mask], [pad, pad, 4, mask, mask]]
    assert canvas.start == 3 and canvas.padding == [0, 2]


def test_stops_may_be_said_and_the_mask_and_banned_ids_never():
    vocabulary = Vocabulary(
        size=9, mask=2, pad=0, stops=frozenset({0, 1}), banned=frozenset({0, 8})
    )
    assert vocabulary.never == [2, 8]
    assert tiny_vocabulary(300).never == [2, *range(296, 300)]


def test_a_tied_head_is_the_embedding():
    model = tiny_model("llada")
    tied = MaskedTransformer(replace(model.config, tied=True))
    assert tied.head.weight is tied.embed.weight


@pytest.mark.parametrize("causal", [False, True])
def test_attention_written_out_for_training_equals_the_fused_kernel(causal: bool):
    model = tiny_model("dream")
    canvas = tiny_denoiser("dream").lay(PROMPTS, 4)
    positions = torch.arange(9).expand(3, 9)
    asked = {"causal": True} if causal else {"sees": canvas.is_real[:, None, None]}
    trained = model(canvas.tokens, positions, **asked)
    with torch.no_grad():
        fused = model(canvas.tokens, positions, **asked)
    assert trained.requires_grad
    torch.testing.assert_close(trained, fused, atol=2e-5, rtol=0)
