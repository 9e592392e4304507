"""Where texts part, and what rounding explains."""

from dataclasses import replace

import pytest
import torch
from tiny import picture, tiny_target

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.engine import Engine
from varifocal.errors import BadRequest
from varifocal.evaluation.compare import (
    compare,
    could_pick,
    first_divergence,
    judge,
    plain_logits,
    requests_of,
    slack,
)
from varifocal.evaluation.suites import Case
from varifocal.request import ask
from varifocal.sampling import Sampling

BF16 = torch.bfloat16


@pytest.mark.parametrize(
    ("a", "b", "position"), [([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [5], 0), ([4], [5], 0)]
)
def test_first_divergence_is_the_first_index_that_differs(a, b, position):
    assert first_divergence(a, b) == position


def test_slack_is_two_units_in_the_last_place_of_the_largest_logit():
    assert slack(torch.tensor([-9.0, 3.0]), BF16) == 2 * 8 * 2**-7
    assert slack(torch.tensor([1.0, 0.5]), torch.float16) == 2 * 2**-10
    assert slack(torch.zeros(3), BF16) == 0


@pytest.mark.parametrize(("gap", "is_near"), [(0.0, True), (4.0, True), (5.0, False)])
def test_greedy_near_tie_is_a_gap_of_four_units(gap, is_near):
    unit = 8 * 2.0**-7
    logits = torch.tensor([9.0, 9.0 - gap * unit, -5.0])
    assert could_pick(1, logits, Sampling(), 3, BF16) is is_near


def test_sampled_near_tie_takes_the_noise_into_account():
    sampling = Sampling(temperature=1.0, seed=4)
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0)) * 5
    picked = int(sampling.pick(logits[None], torch.tensor([2])))
    assert could_pick(picked, logits, sampling, 2, BF16)
    assert sum(could_pick(t, logits, sampling, 2, BF16) for t in range(50)) <= 3


def test_plain_logits_are_those_that_decided_each_token():
    target = tiny_target()
    request = ask("What is it?", [picture()], max_new_tokens=6)
    tokens = generate(target, load_drafter("plain", target), request).token_ids
    for k in (0, 3):
        assert int(plain_logits(target, request, tokens[:k]).argmax()) == tokens[k]


def test_float32_excuses_nothing_and_bfloat16_only_near_ties():
    request = ask("What is it?", [picture()], max_new_tokens=6)
    for dtype in (torch.float32, BF16):
        target = tiny_target(dtype=dtype)
        plain = generate(target, load_drafter("plain", target), request)
        logits = plain_logits(target, request, plain.token_ids[:2])
        order = logits.argsort(descending=True).tolist()
        for rank in (1, -1):
            ids = [*plain.token_ids[:2], order[rank], *plain.token_ids[3:]]
            mismatch = judge(target, request, plain, replace(plain, token_ids=ids))
            assert mismatch is not None
            assert (mismatch.position, mismatch.drafted) == (2, order[rank])
            gap = float(logits[order[0]].double() - logits[order[rank]].double())
            assert mismatch.margin == pytest.approx(gap)
            assert mismatch.near_tie == (dtype == BF16 and gap <= mismatch.tolerance)


def test_text_that_ends_early_is_a_fault_even_in_bfloat16():
    target = tiny_target(dtype=BF16)
    request = ask("What is it?", max_new_tokens=6)
    plain = generate(target, load_drafter("plain", target), request)
    mismatch = judge(target, request, plain, replace(plain, token_ids=plain.token_ids[:4]))
    assert mismatch is not None
    assert (mismatch.drafted, mismatch.margin, mismatch.near_tie) == (-1, None, False)


def test_each_case_keeps_its_own_limit_unless_another_is_given():
    cases = [Case(id="a", family="f", request=ask("x", max_new_tokens=n)) for n in (3, 400)]
    assert [r.max_new_tokens for r in requests_of(cases, "greedy")] == [3, 400]
    assert [r.max_new_tokens for r in requests_of(cases, "greedy", max_new_tokens=7)] == [7, 7]
    with pytest.raises(BadRequest, match="max_new_tokens"):
        requests_of(cases, "greedy", max_new_tokens=0)


def test_both_kinds_of_requests_are_compared_and_counted():
    target = tiny_target()
    engine = Engine(target, load_drafter("lookup", target, nodes=4))
    request = ask("What is it?", [picture()], max_new_tokens=8)
    cases = [Case(id=str(n), family="f", request=request) for n in range(2)]
    requests = requests_of(cases, "both", sampling=Sampling(seed=5))
    assert [r.sampling.temperature for r in requests] == [0, 1, 0, 1]
    assert [r.sampling.seed for r in requests[1::2]] == [5, 6]
    seen = []
    verdict = compare(engine, requests, lambda request, mismatch: seen.append(request.id))
    assert (verdict.requests, verdict.identical, verdict.is_good) == (4, 4, True)
    assert seen == ["0", "0", "1", "1"]
