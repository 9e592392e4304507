"""The denoising loop: against plain references, row by row, and with all that can go wrong."""

from dataclasses import replace
from typing import get_args

import pytest
import torch
from diffusion.tiny import Kind, tiny_denoiser
from tabled import (
    END,
    FIRST_LETTER,
    MASK,
    SIZE,
    VOCABULARY,
    Tabled,
    decided,
    ids_of,
    scripted,
    sure,
)

from varifocal.diffusion._reference import aligned_logits, decode, laid
from varifocal.diffusion.decode import Decoding, generate
from varifocal.diffusion.denoiser import Denoiser
from varifocal.diffusion.gate import Exit, Gate
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.schedule import Plan, dream_count, dream_rates
from varifocal.diffusion.view import View
from varifocal.errors import BadArtifact
from varifocal.sampling import Sampling

KINDS = get_args(Kind)
PROMPTS = [[5, 6, 7, 8, 9, 10], [40, 41], [90, 91, 92]]
SMALL = Plan(canvas=22, block=8)


def run(denoiser: Denoiser, prompts=PROMPTS, **options) -> list[DiffusionResult]:
    chosen = {"format": None, "plan": SMALL, "gate": "full"} | options
    return generate(denoiser, prompts, **chosen)


# -- the published loops -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [8, 22])
def test_full_decoding_is_lladas_loop(kind: Kind, block: int):
    denoiser = tiny_denoiser(kind)
    plain = decode(denoiser.model, PROMPTS, 22, mask=MASK, end=END, block=block)
    made = run(denoiser, plan=Plan(canvas=22, block=block))
    assert [result.token_ids for result in made] == plain.tolist()
    assert [result.nfe for result in made] == [22] * 3


def dream_loop(denoiser, prompt: list[int], length: int, steps: int, alg: str) -> list[int]:
    """Dream's _sample at temperature 0, for one row."""
    tokens, positions, _ = laid([prompt], length, MASK, END)
    start = len(prompt)
    for rate in dream_rates(steps):
        masked = (tokens[0] == MASK).nonzero().flatten()
        logits = aligned_logits(denoiser.model, tokens, positions)[0, masked]
        logits[:, MASK] = -torch.inf
        probs = logits.softmax(-1)
        top, best = probs.topk(2, dim=-1)
        score = {
            "maskgit_plus": top[:, 0],
            "topk_margin": top[:, 0] - top[:, 1],
            "entropy": (probs * (probs + 1e-10).log()).sum(-1),
        }[alg]
        chosen = score.topk(dream_count(len(masked), rate)).indices
        tokens[0, masked[chosen]] = best[chosen, 0]
    return tokens[0, start:].tolist()


@pytest.mark.parametrize("alg", ["maskgit_plus", "topk_margin", "entropy"])
def test_one_block_with_dreams_samplers_is_dreams_loop(alg: str):
    denoiser = tiny_denoiser("dream")
    with torch.no_grad():
        plain = [dream_loop(denoiser, prompt, 24, 6, alg) for prompt in PROMPTS]
    made = run(denoiser, plan=Plan(canvas=24, block=24, steps=6), sampler=alg)
    assert [result.token_ids for result in made] == plain
    assert {result.nfe for result in made} == {6}


# -- rows ----------------------------------------------------------------------------------------

LATCH = "latch:w=3:tau=0.4:tau_b=0.6:tau_lo=0.3:context=none"


@pytest.mark.parametrize(
    ("kind", "caching", "sampler", "gate", "temperature"),
    [
        ("llada", "none", "low_confidence", LATCH, 0.0),
        ("dream", "none", "low_confidence", LATCH, 0.0),
        ("llada", "none", "klass:tau=0.5:kl=0.5", LATCH, 0.9),
        ("dream", "none", "threshold:tau=0.6", "eos_stop", 0.5),
        ("llada", "prefix", "factor", LATCH, 0.0),
        ("llada", "dual", "threshold:tau=0.6", LATCH, 0.0),
        ("dream", "dual", "threshold:tau=0.6", LATCH, 0.0),
        ("dream", "dual", "entropy:alg_temp=0.5", "bwec:tau_b=0.6:tau_lo=0.3", 1.2),
    ],
)
def test_each_row_of_a_batch_equals_its_single_run(kind, caching, sampler, gate, temperature):
    denoiser = decided(kind)
    each = [Sampling(temperature=temperature, seed=s) for s in (3, 4, 2**62)]
    options = {
        "plan": Plan(canvas=14, block=5, caching=caching),
        "sampler": sampler,
        "gate": gate,
        "format": FIRST_LETTER,
    }
    together = run(denoiser, PROMPTS, sampling=each, **options)
    for prompt, sampling, row in zip(PROMPTS, each, together, strict=True):
        (alone,) = run(denoiser, [prompt], sampling=sampling, **options)
        assert row.token_ids == alone.token_ids and row.text == alone.text
        assert (row.nfe, row.exit_step, row.reason) == (alone.nfe, alone.exit_step, alone.reason)
        assert [s.positions for s in row.steps] == [s.positions for s in alone.steps]
        assert row.num_computed == alone.num_computed


def test_batches_of_any_size_give_the_same():
    denoiser = Tabled(paced)
    prompts = [ids_of(text) for text in ("?", "??", "?")]
    wanted = [result.token_ids for result in run(denoiser, prompts)]
    for max_batch in (1, 2):
        assert [r.token_ids for r in run(denoiser, prompts, max_batch=max_batch)] == wanted


def test_a_seed_decides_what_is_drawn_and_temperature_zero_draws_nothing():
    denoiser = tiny_denoiser("llada")

    def text(seed: int, temperature: float) -> list[int]:
        sampling, plan = Sampling(temperature=temperature, seed=seed), Plan(canvas=6)
        return run(denoiser, [PROMPTS[0]], plan=plan, sampling=sampling)[0].token_ids

    assert text(1, 1.0) == text(1, 1.0) != text(2, 1.0)
    assert text(1, 0.0) == text(2, 0.0)


def test_filters_keep_draws_among_the_likeliest():
    denoiser = tiny_denoiser("llada")
    plan, hot = Plan(canvas=6), Sampling(temperature=5.0, top_k=1)
    cold = run(denoiser, [PROMPTS[0]], plan=plan)[0].token_ids
    drawn = run(denoiser, [PROMPTS[0]], plan=plan, sampling=hot)[0]
    assert drawn.token_ids == cold


def ending_after(prompt: list[int]) -> int:
    """Rows of different paces: a prompt of one token ends its text at once."""
    return 2 if len(prompt) == 1 else 10


def paced(prompt: list[int], canvas: list[int]) -> torch.Tensor:
    told = "abcdefghij"[: ending_after(prompt)]
    text = told + "$" * (len(canvas) - len(told))
    return sure(ids_of(text), [0.99 - i / 100 for i in range(len(canvas))])


def test_rows_that_end_leave_the_batch_and_stay_as_they_are():
    denoiser = Tabled(paced)
    decoding = Decoding(
        denoiser, [ids_of("?"), ids_of("??")], format=None, plan=SMALL, gate="eos_stop"
    )
    records = list(decoding)
    first, second = decoding.results()
    assert (first.nfe, second.nfe) == (3, 11)
    assert first.text == "ab" and second.text == "abcdefghij"
    assert [rows for rows, _, _ in denoiser.forwards] == [2] * 3 + [1] * 8
    assert [r.row for r in records if r.is_done] == [0, 1]
    assert sum(r.row == 0 for r in records) == 3


def test_rows_in_different_blocks_of_a_cache_go_on_apart():
    denoiser = Tabled(paced)
    plan = Plan(canvas=16, block=8, caching="dual")
    fast, slow = run(
        denoiser,
        [ids_of("?"), ids_of("??")],
        plan=plan,
        gate="bwec:tau_b=0.9:tau_lo=0.97",  # only the row whose block has ended is that sure
    )
    assert fast.finish == slow.finish == "filled"
    windows = {(start, stop) for _, start, stop in denoiser.forwards}
    assert windows == {(-2, 16), (0, 8), (8, 16)}


# -- windows and what is counted -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("caching", "windows"),
    [
        ("none", [(0, 10)] * 5),
        ("prefix", [(-3, 10), (0, 10), (-3, 10), (4, 10), (-3, 10)]),
        ("dual", [(-3, 10), (0, 4), (-3, 10), (4, 8), (-3, 10)]),
    ],
)
def test_caches_are_filled_anew_when_a_block_begins(caching, windows):
    denoiser = Tabled(scripted(("x" * 10, 0.5)))
    (result,) = run(
        denoiser, [ids_of("abc")], plan=Plan(canvas=10, block=4, steps=5, caching=caching)
    )
    assert [(start, stop) for _, start, stop in denoiser.forwards] == windows
    computed = [stop - start for start, stop in windows]
    assert [step.num_computed for step in result.steps] == computed
    assert result.num_computed == sum(computed)


def test_steps_commit_each_position_once_and_tell_the_text_piece_by_piece():
    denoiser = tiny_denoiser("llada", seed=5)
    decoding = Decoding(denoiser, [PROMPTS[0]], format=None, plan=SMALL, gate="full")
    records = list(decoding)
    (result,) = decoding.results()
    positions = [p for record in records for p in record.positions]
    assert sorted(positions) == list(range(22)) and result.steps == records
    pairs = [(p, t) for r in records for p, t in zip(r.positions, r.tokens, strict=True)]
    assert [token for _, token in sorted(pairs)] == result.token_ids
    assert [(p + i, t) for r in records for p, run_ in r.spans for i, t in enumerate(run_)] == pairs
    assert [r.num_masked for r in records] == [22 - r.step for r in records]
    assert "".join(record.text for record in records) == result.text
    assert [r.block for r in records] == [0] * 8 + [1] * 8 + [2] * 6


def test_text_is_told_as_soon_as_it_has_no_gap_and_never_in_half_characters():
    ids = Tabled.tokenizer.encode("aé€b", add_special_tokens=False)
    text = [*ids, *[END] * (10 - len(ids))]

    def law(prompt: list[int], canvas: list[int]) -> torch.Tensor:
        return sure(text, [0.99 - i / 100 for i in range(10)])

    decoding = Decoding(Tabled(law), [[5]], format=None, plan=Plan(canvas=10), gate="full")
    pieces = [record.text for record in decoding]
    assert "".join(pieces) == "aé€b" and "\ufffd" not in "".join(pieces)
    assert pieces[0] == "a" and sum(map(bool, pieces)) == 4


def test_seconds_are_parts_of_the_whole():
    ticks = iter(range(10**6))
    decoding = Decoding(
        Tabled(scripted(("x" * 10, 0.5))),
        [[5]],
        format="free",
        plan=Plan(canvas=10),
        clock=lambda: float(next(ticks)),
    )
    list(decoding)
    (result,) = decoding.results()
    parts = result.seconds
    assert parts["total"] == sum(parts[name] for name in ("forward", "gate", "sample", "other"))
    assert parts["forward"] == result.nfe  # one tick each
    assert all(parts[name] > 0 for name in ("gate", "sample", "other"))
    assert 0 < result.gate_share < 1


def test_a_result_is_written_with_its_counts():
    gate = "latch:unit=steps:w_b=99"
    law = scripted(("yes" + "$" * 19, [0.97] * 3 + [0.98] + [0.99] * 18))
    (result,) = run(Tabled(law), [[5]], format="yes_no", gate=gate)
    told = result.to_dict()
    assert told["value"] == "yes" and told["verified_span"] == [0, 1, 2, 3]
    assert told["nfe"] == told["exit_step"] == 4 and told["finish"] == "exit"
    assert told["usage"] == {"prompt_tokens": 1, "canvas": 22}
    assert (told["sampler"], told["model"]) == ("low_confidence", "tabled")


# -- never-ids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler", ["low_confidence", "threshold", "klass"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_masks_padding_and_banned_ids_are_never_said(sampler, temperature):
    """Padding that ends no text, and a model that is surest of what it must not say."""
    pad, banned = 7, 8
    vocabulary = replace(VOCABULARY, pad=pad, banned=frozenset({banned}))

    def law(prompt: list[int], canvas: list[int]) -> torch.Tensor:
        logits = torch.zeros(len(canvas), SIZE)
        logits[:, [MASK, pad, banned]] = torch.tensor([30.0, 20.0, 10.0])
        return logits

    sampling = Sampling(temperature=temperature)
    for caching in ("none", "dual"):
        (result,) = run(
            Tabled(law, vocabulary=vocabulary),
            [[5, 6]],
            plan=replace(SMALL, caching=caching),
            sampler=sampler,
            sampling=sampling,
        )
        assert not {MASK, pad, banned} & set(result.token_ids)
        assert len(result.token_ids) == 22


def test_padding_that_ends_texts_may_be_said():
    (result,) = run(Tabled(scripted(("ab" + "$" * 20, 0.9))), [[5]])
    assert VOCABULARY.pad == END and result.token_ids == ids_of("ab" + "$" * 20)
    assert result.text == "ab"


def test_logits_that_are_no_numbers_are_an_error_and_not_a_text():
    def law(prompt: list[int], canvas: list[int]) -> torch.Tensor:
        return torch.full((len(canvas), SIZE), torch.nan)

    with pytest.raises(BadArtifact, match="not numbers"):
        run(Tabled(law), [[5]])


# -- breaking off --------------------------------------------------------------------------------


def test_a_loop_that_was_left_goes_on_where_it_was():
    denoiser = tiny_denoiser("llada")
    (whole,) = run(denoiser, [PROMPTS[0]])
    decoding = Decoding(denoiser, [PROMPTS[0]], format=None, plan=SMALL, gate="full")
    for record in decoding:
        if record.step == 5:
            break
    (part,) = decoding.results()
    assert part.finish == "cancelled" and part.nfe == 5 and not decoding.is_done
    assert part.token_ids == whole.token_ids[: len(part.token_ids)]
    assert whole.text.startswith(part.text) and MASK not in part.token_ids
    list(decoding)
    (rest,) = decoding.results()
    assert rest.token_ids == whole.token_ids and rest.finish == "filled"


def test_a_cancelled_decoding_takes_no_further_step():
    decoding = Decoding(tiny_denoiser("llada"), PROMPTS, format=None, plan=SMALL, gate="full")
    for _ in decoding:
        decoding.cancel()
    assert [result.nfe for result in decoding.results()] == [1, 1, 1]
    assert decoding.is_done and not list(decoding)


@pytest.mark.parametrize("at", [1, 4, 9])
def test_an_interrupt_inside_a_forward_leaves_a_whole_state(at: int):
    calls = 0

    def law(prompt: list[int], canvas: list[int]) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return paced(prompt, canvas)

    denoiser = Tabled(law)
    decoding = Decoding(denoiser, [ids_of("??")], format="free", plan=SMALL, gate="full")
    with pytest.raises(KeyboardInterrupt):
        list(decoding)
    (result,) = decoding.results()
    assert result.finish == "cancelled" and result.nfe == at - 1
    assert (
        result.token_ids == ids_of("abcdefghij"[: at - 1]) and result.text == "abcdefghij"[: at - 1]
    )
    (again,) = run(denoiser, [ids_of("??")])
    assert again.text == "abcdefghij"


def test_an_interrupt_inside_a_step_takes_it_back():
    """As late as it can come: everything was decided, and the text was about to be told."""
    decoding = Decoding(
        Tabled(paced), [ids_of("??")], format=None, plan=Plan(canvas=10), gate="full"
    )
    (live,) = decoding._live

    def interrupted(state: object) -> dict[str, object]:
        if live.row.step == 10:
            raise KeyboardInterrupt
        return {}

    decoding.gate.told = interrupted
    with pytest.raises(KeyboardInterrupt):
        list(decoding)
    (result,) = decoding.results()
    assert result.finish == "cancelled" and result.nfe == 9 and live.row.decided.masked.sum() == 1
    assert MASK not in result.token_ids


def test_a_gate_may_not_fill_with_what_it_does_not_read():
    class Hasty(Gate[None]):
        name, reads_canvas = "hasty", False

        def observe(self, state: None, view: View) -> Exit | None:
            return Exit(reason="now")

    with pytest.raises(ValueError, match="the gate hasty fills what it says it does not read"):
        run(Tabled(scripted(("x" * 22, 0.5))), [[5]], gate=Hasty())
