"""Mistakes that others made with masks, blocks, early exits and caches: none of them here."""

import pytest
import torch
from tabled import END, MASK, Tabled, ids_of, sure

from varifocal.diffusion.decode import generate
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.schedule import Plan


def run(denoiser: Tabled, prompts: list[str], gate: str = "full", **options):
    ids = [ids_of(prompt) for prompt in prompts]
    return generate(denoiser, ids, format=None, gate=gate, **options)


def outcome(result: DiffusionResult) -> tuple:
    return result.token_ids, result.nfe, [step.positions for step in result.steps]


# -- blocks and masks ------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["low_confidence", "maskgit_plus", "klass", "random"])
@pytest.mark.parametrize(("canvas", "block", "steps"), [(32, 8, 8), (29, 8, 5), (32, 5, 13)])
def test_confidence_outside_of_the_block_cannot_take_its_tokens(sampler, canvas, block, steps):
    """Top-k over the whole sequence left masks in blocks that were shorter than the answer."""

    def law(prompt: list[int], tokens: list[int]) -> torch.Tensor:
        current = next((i for i, t in enumerate(tokens) if t == MASK), 0) // block
        inside = [i // block == current for i in range(canvas)]
        return sure(ids_of("x" * canvas), [0.3 if is_in else 0.99 for is_in in inside])

    plan = Plan(canvas=canvas, block=block, steps=steps)
    (result,) = run(Tabled(law), ["?"], plan=plan, sampler=sampler)
    assert result.token_ids == ids_of("x" * canvas) and result.nfe == steps
    for step in result.steps:
        begin = step.block * block
        assert step.positions
        assert all(begin <= position < begin + block for position in step.positions)


def paces(prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The second prompt's canvas is sure at once, the others' come one by one."""
    is_sure = len(prompt) == 2
    return sure(ids_of("answer.."), [0.99 if is_sure else 0.5] * len(tokens))


@pytest.mark.parametrize("sampler", ["threshold:tau=0.9", "low_confidence"])
@pytest.mark.parametrize("block", [8, 3])
def test_rows_with_nothing_left_to_fill_do_not_disturb_the_others(sampler, block):
    """Top-k with k = 0 crashed batches of which a row was done."""
    plan, prompts = Plan(canvas=8, block=block), ["a", "bb", "ccc"]
    together = run(Tabled(paces), prompts, plan=plan, sampler=sampler)
    alone = [run(Tabled(paces), [prompt], plan=plan, sampler=sampler)[0] for prompt in prompts]
    assert list(map(outcome, together)) == list(map(outcome, alone))
    if sampler != "low_confidence":
        assert [result.nfe for result in together] == [8, -(-8 // block), 8]


def test_a_model_that_says_nothing_but_masks_still_ends():
    def law(prompt: list[int], tokens: list[int]) -> torch.Tensor:
        logits = torch.zeros(len(tokens), Tabled.tokenizer.vocab_size)
        logits = torch.zeros(len(tokens), sure([END], 0.5).shape[1])
        logits[:, MASK] = 50.0
        return logits

    (result,) = run(Tabled(law), ["?"], plan=Plan(canvas=12, block=5), sampler="threshold")
    assert MASK not in result.token_ids and len(result.token_ids) == 12


# -- early exits -----------------------------------------------------------------------------------


def ends_in_the_first_block(prompt: list[int], tokens: list[int]) -> torch.Tensor:
    text = "done" + "$" * (len(tokens) - 4)
    return sure(ids_of(text), [0.9 - i / 100 for i in range(len(tokens))])


def test_blocks_behind_the_end_are_not_computed():
    plan = Plan(canvas=32, block=8)
    whole, stopped = Tabled(ends_in_the_first_block), Tabled(ends_in_the_first_block)
    (full,) = run(whole, ["?"], plan=plan)
    (early,) = run(stopped, ["?"], "eos_stop", plan=plan)
    assert early.text == full.text == "done" and early.token_ids == full.token_ids
    assert len(whole.forwards) == 32
    assert len(stopped.forwards) == 5 and {s.block for s in early.steps} == {0}


def ends_are_surest(prompt: list[int], tokens: list[int]) -> torch.Tensor:
    text = "word" + "$" * (len(tokens) - 4)
    return sure(ids_of(text), [0.6] * 4 + [0.99] * (len(tokens) - 4))


@pytest.mark.parametrize(
    ("block", "nfe"),
    [
        (16, 5),  # one block: all ends in the first step, then the word, token by token
        (4, 5),  # by blocks: the word first, and then the first end
    ],
)
def test_an_exit_at_the_end_never_cuts_positions_in_front_of_it(block, nfe):
    plan = Plan(canvas=16, block=block)
    (result,) = run(Tabled(ends_are_surest), ["?"], "eos_stop", plan=plan, sampler="threshold")
    assert result.text == "word" and result.nfe == nfe
    assert result.token_ids == ids_of("word" + "$" * 12)


# -- caches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("caching", ["prefix", "dual"])
@pytest.mark.parametrize("count", [2, 3])
def test_cached_batches_equal_their_single_runs(caching, count):
    """Positions of all rows in one index list made shapes that only one row fits."""
    plan = Plan(canvas=8, block=3, caching=caching)
    prompts = ["a", "bb", "ccc"][:count]
    together = run(Tabled(paces), prompts, plan=plan, sampler="threshold:tau=0.9")
    for prompt, row in zip(prompts, together, strict=True):
        (alone,) = run(Tabled(paces), [prompt], plan=plan, sampler="threshold:tau=0.9")
        assert outcome(row) == outcome(alone)
        assert row.num_computed == alone.num_computed
