"""Recorded answers are those of single runs, also where rounding depends on what runs beside."""

from functools import cache

import pytest
import torch
from tiny import picture, tiny_target

from varifocal.decode import generate
from varifocal.drafters.plain import PlainDrafter
from varifocal.request import Message, Request
from varifocal.training import recorder
from varifocal.training._answers import Answers
from varifocal.training.examples import Example
from varifocal.training.recorder import record

SIZES = ((96, 96), (192, 96), (96, 192))
TOKENS = 16


@cache
def full_of_near_ties(dtype, exact_rows):
    """Every token of the first half has a twin whose logit is the same up to rounding."""
    target = tiny_target(dtype=dtype, exact_rows=exact_rows)
    head, rng = target.model.lm_head.weight, torch.Generator().manual_seed(0)
    with torch.no_grad():
        half = len(head) // 2
        noise = torch.randn(half, head.shape[1], generator=rng) / 128
        head[half : 2 * half] = (head[:half].float() * (1 + noise)).to(dtype)
    return target


def asked(number: int) -> Message:
    shown = (picture(number, SIZES[number % 3]),) if number % 4 else ()
    return Message("user", (*shown, f"what is there {number}?"))


def examples(count: int) -> list[Example]:
    said = Message("assistant", ("a red circle",))
    return [Example(f"e{n}", "a", lambda n=n: (asked(n), said)) for n in range(count)]


@pytest.mark.parametrize("exact_rows", [False, True])
def test_recorded_answers_in_bfloat16_are_those_of_single_runs(tmp_path, monkeypatch, exact_rows):
    target = full_of_near_ties(torch.bfloat16, exact_rows)

    def gullible(target, script, sample, limit):
        """A check of given answers in one forward, which may go wrong at a near-tie."""
        return [script.prompt.tokens[a:b].tolist() for a, b in script.spans]

    monkeypatch.setattr(recorder, "confirmed", gullible)
    store = record(target, examples(2), tmp_path / "out", batch=2, max_new_tokens=TOKENS)
    plain = PlainDrafter(target, PlainDrafter.Config())
    for number, sample in enumerate(store.all):
        request = Request(messages=(asked(number),), max_new_tokens=TOKENS)
        alone = generate(target, plain, request)
        assert sample.tokens[sample.supervised].tolist() == alone.token_ids


@pytest.mark.parametrize(
    ("dtype", "exact_rows", "together"),
    [
        (torch.bfloat16, False, 1),
        (torch.bfloat16, True, 3),
        (torch.float32, False, 3),
    ],
)
def test_answers_share_forwards_only_where_that_changes_none(
    monkeypatch, dtype, exact_rows, together
):
    target, sizes = tiny_target(dtype=dtype, exact_rows=exact_rows), []
    forward = target.forward

    def noted(trees, caches, want):
        sizes.append(len(trees))
        return forward(trees, caches, want)

    monkeypatch.setattr(target, "forward", noted)
    talks = {example.id: example.read()[:1] for example in examples(3)}
    Answers(target, 4, batch=3).answer(talks)
    assert max(sizes) == together
