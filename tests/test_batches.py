"""Requests decoded together: each gets what its single run gives, whatever runs beside it."""

from dataclasses import replace
from functools import cache
from itertools import count, pairwise

import pytest
import tiny
import torch
from checkpoints import built, families
from scripted import MODES, Scripted, Told, ids_of, saying

from varifocal.batch import Batch
from varifocal.decode import Generation, generate
from varifocal.drafters import load_drafter
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.engine import Engine
from varifocal.errors import BadOption, BadRequest, BatchFailed
from varifocal.plan import AutoPlanner, CostModel
from varifocal.request import ask
from varifocal.sampling import Sampling
from varifocal.targets import load_target

SMALL = {"inner": 64, "memory_width": 32, "bottleneck": 16, "nodes": 12}
COST = CostModel(verify=tuple(1.0 + 0.02 * n for n in range(41)), step=0.01, start=0.01, other=0.01)


@cache
def engine(name):
    target = tiny.tiny_target()
    if name == "fovea":
        torch.manual_seed(0)
        return Engine(target, FoveaDrafter(target, FoveaDrafter.Config(**SMALL)))
    return Engine(target, load_drafter(name, target, **({"nodes": 8} if name == "lookup" else {})))


def pictures(number):
    sizes = ((96, 96), (192, 96), (96, 192))
    return [tiny.picture(seed, sizes[seed]) for seed in range(number)]


def mixed():
    """Unlike each other in everything that a request can say."""
    hot = Sampling(temperature=1.0, seed=11)
    return [
        ask("a?", max_new_tokens=9, logprobs=2),
        ask("red blue " * 150, max_new_tokens=14),
        ask("what is it?", pictures(1), max_new_tokens=24, sampling=hot),
        ask("compare " * 20, pictures(3), max_new_tokens=5, logprobs=0),
        ask("what is it?", pictures(1), max_new_tokens=1),
        ask("a?", max_new_tokens=16, sampling=replace(hot, seed=12, repetition_penalty=1.2)),
    ]


def stopping(one, request):
    """The same, ended in the middle by a text that its own answer contains."""
    text = one.generate(request).text
    return replace(request, stop=(text[len(text) // 2 :][:2],))


def same(result, alone):
    """Everything but times; log-probs up to rounding."""
    assert result.token_ids == alone.token_ids
    assert (result.text, result.finish_reason) == (alone.text, alone.finish_reason)
    assert [r.tokens for r in result.rounds] == [r.tokens for r in alone.rounds]
    assert [r.num_drafted for r in result.rounds] == [r.num_drafted for r in alone.rounds]
    assert result.acceptance_histogram == alone.acceptance_histogram
    assert (result.prompt_tokens, result.image_tokens) == (alone.prompt_tokens, alone.image_tokens)
    assert (result.logprobs is None) == (alone.logprobs is None)
    for one, other in zip(result.logprobs or [], alone.logprobs or [], strict=True):
        assert one.token == other.token
        assert [t for t, _ in one.best] == [t for t, _ in other.best]
        assert one.logprob == pytest.approx(other.logprob, abs=1e-3)


@pytest.mark.parametrize("max_batch", [3, 8])
@pytest.mark.parametrize("name", ["plain", "lookup", "fovea"])
def test_each_row_equals_its_single_run(name, max_batch):
    one = engine(name)
    requests = mixed()
    requests.insert(3, stopping(one, requests[2]))
    results = one.generate(requests, max_batch=max_batch)
    alone = [one.generate(request) for request in requests]
    for result, single in zip(results, alone, strict=True):
        same(result, single)
    assert {r.finish_reason for r in results} == {"stop", "length"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if family.is_variant else [])
        for name, family in families().items()
    ],
)
def test_rows_with_and_without_pictures_share_forwards_in_every_family(name):
    target = load_target(str(built(name)), dtype=torch.float32)
    one = Engine(target, load_drafter("lookup", target, nodes=6))
    sizes = families()[name].sizes[: families()[name].max_pictures]
    shown = [tiny.picture(seed, size) for seed, size in enumerate(sizes)]
    requests = [
        ask("what is it?", shown[:1], max_new_tokens=12),
        ask("what is what is what is", max_new_tokens=12),
        ask("compare them", shown, max_new_tokens=7),
    ]
    for result, request in zip(one.generate(requests), requests, strict=True):
        same(result, one.generate(request))


# -- uneven acceptance, other drafters, exact rows ---------------------------------------------


def told(mode, text="a text of forty letters, or nearly so..."):
    script = ids_of(text)
    target = Scripted(saying(script))
    return target, script, lambda mode=mode: Told(target, script, mode)


def test_rows_whose_drafts_are_right_wrong_and_mixed_do_not_drift():
    target, script, _ = told("perfect")
    request = ask("x", max_new_tokens=60)
    drafters = [Told(target, script, mode) for mode in MODES]
    rows = [Generation(target, drafter, request) for drafter in drafters]
    results = Batch(lambda row: row, rows).results()
    for result, mode in zip(results, MODES, strict=True):
        same(result, generate(target, Told(target, script, mode), request))
    assert len({len(result.rounds) for result in results}) > 1  # they left at different times


def test_rows_with_different_drafters_each_see_what_they_want():
    names = ("fovea", "plain", "lookup")
    target = engine("fovea").target
    request = ask("what is it?", pictures(1), max_new_tokens=16)
    drafters = [engine("fovea").drafter] + [load_drafter(n, target) for n in names[1:]]
    rows = [Generation(target, drafter, request) for drafter in drafters]
    for result, drafter in zip(Batch(lambda row: row, rows).results(), drafters, strict=True):
        same(result, generate(target, drafter, request))


def test_exact_rows_make_bfloat16_texts_equal():
    target = tiny.tiny_target(dtype=torch.bfloat16, exact_rows=True)
    one = Engine(target, load_drafter("lookup", target, nodes=8))
    for result, request in zip(one.generate(mixed()), mixed(), strict=True):
        same(result, one.generate(request))


# -- joining and leaving -----------------------------------------------------------------------


def watched(one, monkeypatch):
    """The sizes of the batches that the target was given."""
    sizes, forward = [], one.target.forward

    def note(trees, caches, want):
        sizes.append(len(trees))
        return forward(trees, caches, want)

    monkeypatch.setattr(one.target, "forward", note)
    return sizes


def test_a_row_that_ends_makes_room_for_one_that_waits(monkeypatch):
    one = engine("plain")
    sizes = watched(one, monkeypatch)
    lengths = (2, 9, 3, 4, 2)
    requests = [ask("what is it?", max_new_tokens=length) for length in lengths]
    results = one.generate(requests, max_batch=2)
    assert [len(r.token_ids) for r in results] == list(lengths)  # the order is the requests'
    assert max(sizes) == 2 and sum(sizes) == sum(lengths) - len(lengths)
    assert sizes.count(2) >= 6  # a free place was taken in the next round


def test_rounds_of_all_rows_come_in_turns_and_join_to_the_texts():
    one, requests = engine("lookup"), mixed()
    batch, texts, order = one.batch(requests), [""] * len(requests), []
    for number, decided in batch:
        texts[number] += decided.text
        order.append(number)
    assert texts == [result.text for result in batch.results()]
    turns = [[order[0]]]
    for before, number in pairwise(order):
        turns[-1].append(number) if number > before else turns.append([number])
    assert turns[0] == list(range(len(requests)))  # every prefill
    assert all(set(after) <= set(turn) for turn, after in pairwise(turns))


def test_a_server_adds_steps_and_takes():
    one, (first, second) = engine("plain"), mixed()[:2]
    batch = one.batch(max_batch=1)
    assert batch.is_idle and batch.step() == []
    numbers = [batch.add(first), batch.add(second)]
    with pytest.raises(LookupError, match="request 0 is not at its end"):
        batch.take(numbers[0])
    while not batch.is_idle:
        ((number, decided),) = batch.step()
        assert decided.tokens and number in numbers
    same(batch.take(numbers[0]), one.generate(first))
    with pytest.raises(LookupError):
        batch.take(numbers[0])  # nothing is held longer than needed
    same(batch.take(numbers[1]), one.generate(second))


@pytest.mark.parametrize("when", ["waits", "runs", "ended"])
def test_a_row_that_is_cancelled_keeps_what_it_delivered_and_touches_no_other(when):
    one, requests = engine("lookup"), mixed()
    batch = one.batch(requests, max_batch=len(requests) if when != "waits" else 2)
    victim = {"waits": 5, "runs": 2, "ended": 4}[when]
    seen = []
    for number, decided in batch:
        seen += decided.tokens if number == victim else []
        if len(seen) >= 3 or when == "waits" or (when == "ended" and seen):
            batch.cancel(victim)
    results = batch.results()
    assert results[victim].token_ids == seen
    assert results[victim].finish_reason == ("length" if when == "ended" else "cancelled")
    for number, (result, request) in enumerate(zip(results, requests, strict=True)):
        if number != victim:
            same(result, one.generate(request))


@pytest.mark.parametrize("number", [-1, 2, 99])
def test_a_number_that_no_request_has_is_refused(number):
    batch = engine("plain").batch(mixed()[:2])
    for act in (batch.cancel, batch.take):
        with pytest.raises(LookupError, match=rf"no request {number}: 2 were added"):
            act(number)


def test_a_request_whose_result_was_taken_may_be_cancelled_late():
    batch = engine("plain").batch([ask("a?", max_new_tokens=1)])
    batch.step()
    assert batch.take(0).token_ids
    batch.cancel(0)  # a client that leaves too late
    assert batch.is_idle


# -- failures ----------------------------------------------------------------------------------


class Failing(Told):
    """Raises in its third draft, or when it is told what was accepted."""

    where = "propose"

    def propose(self, state, root, budget):
        if self.where == "propose" and len(state) > 2:
            raise RuntimeError("no draft")
        return super().propose(state, root, budget)

    def observe(self, state, verdict, seen):
        if self.where == "observe":
            raise RuntimeError("no draft")
        super().observe(state, verdict, seen)


@pytest.mark.parametrize("where", ["propose", "observe"])
def test_a_row_that_fails_does_so_alone_and_its_error_comes_last(where):
    target, script, drafter = told("mixed")
    failing = Failing(target, script, "wrong")
    failing.where = where
    request = ask("x", max_new_tokens=30)
    rows = [Generation(target, d, request) for d in (drafter(), failing, drafter())]
    with pytest.raises(BatchFailed, match="1 of 3 requests failed") as got:
        Batch(lambda row: row, rows).results()
    alone = generate(target, drafter(), request)
    first, failed, last = got.value.outcomes
    same(first, alone)
    same(last, alone)
    assert isinstance(failed, RuntimeError) and got.value.__cause__ is failed


def test_a_request_that_cannot_begin_leaves_the_others(monkeypatch):
    one = engine("plain")
    requests = [mixed()[0], ask("too long", max_new_tokens=5000), mixed()[1]]
    with pytest.raises(BatchFailed) as got:
        one.generate(requests, max_batch=2)
    assert isinstance(got.value.outcomes[1], BadRequest)
    same(got.value.outcomes[2], one.generate(requests[2]))


def test_when_a_shared_forward_fails_only_the_row_at_fault_does(monkeypatch, caplog):
    one, requests = engine("lookup"), mixed()[:3]
    alone = [one.generate(request) for request in requests]
    batch = one.batch(requests)
    batch.step()
    batch.step()

    def full(*_, **__):
        raise BadRequest("no memory for the cache")

    batch._live[1]._cache.layers[1].update = full
    with pytest.raises(BatchFailed) as got:
        batch.results()
    assert "each goes alone" in caplog.text
    same(got.value.outcomes[0], alone[0])
    same(got.value.outcomes[2], alone[2])
    assert "no memory" in str(got.value.outcomes[1])


@pytest.mark.parametrize("max_batch", [0, -1, True])
def test_a_batch_of_no_rows_is_refused(max_batch):
    with pytest.raises(BadOption, match="max_batch"):
        engine("plain").batch(max_batch=max_batch)


# -- seeds and answers -------------------------------------------------------------------------


def test_a_seeded_row_does_not_depend_on_its_neighbours():
    one = engine("lookup")
    seeded = ask("what?", max_new_tokens=16, sampling=Sampling(temperature=1.0, seed=11))
    others = [
        ask("what?", max_new_tokens=9, sampling=Sampling(temperature=1.5, seed=s)) for s in (0, 5)
    ]
    texts = {one.generate([seeded, other])[0].text for other in (*others, seeded)}
    texts |= {one.generate([*others, seeded])[2].text, one.generate(seeded).text}
    assert len(texts) == 1


def test_answers_to_one_prompt_are_decoded_together(monkeypatch):
    one = engine("lookup")
    request = ask("what?", pictures(1), max_new_tokens=9, sampling=Sampling(temperature=1.0))
    sizes = watched(one, monkeypatch)
    results = one.batch(one.answers(request, 4)).results()
    assert sizes[0] == 4
    for number, result in enumerate(results):
        seeded = replace(request, sampling=replace(request.sampling, seed=number))
        same(result, one.generate(seeded))


# -- times and plans ---------------------------------------------------------------------------


def test_the_time_of_a_shared_forward_is_divided_and_none_is_lost():
    one, ticks = engine("lookup"), count()
    batch = one.batch(mixed()[:3], clock=lambda: float(next(ticks)))
    rounds = [decided for _, decided in batch]
    spent = sum(r.draft_seconds + r.verify_seconds + r.other_seconds for r in rounds)
    assert 0.5 * next(ticks) < spent < next(ticks)
    assert all(r.verify_seconds > 0 for r in rounds)


def test_the_time_of_a_prefill_is_not_charged_to_the_rows_that_wait_for_it():
    target, _, drafter = told("perfect")
    now = [0.0]
    prefill, request = target.prefill, ask("x", max_new_tokens=20)

    def slow(prompt, want):
        now[0] += 100.0
        return prefill(prompt, want)

    target.prefill = slow
    rows = [Generation(target, drafter(), request, clock=lambda: now[0]) for _ in range(2)]
    batch = Batch(lambda row: row, rows[:1])
    batch.step()
    batch.add(rows[1])
    for result in batch.results():
        assert result.prefill.verify_seconds == 100.0
        assert all(r.verify_seconds == 0.0 for r in result.rounds)


def test_the_cost_of_a_shared_round_is_a_part_of_the_forward_over_all_rows():
    shared = COST.shared(4)
    assert shared.verify[0] == pytest.approx(COST.verify[3] / 4)
    assert shared.verify[9] == pytest.approx(COST.verify[39] / 4)
    assert shared.verify[40] == pytest.approx((COST.verify[40] + (164 - 41) * 0.02) / 4)
    assert (shared.step, shared.start) == (COST.step, COST.start)
    assert COST.shared(1) is COST


def test_a_planner_drafts_alone_and_rests_where_even_right_drafts_would_not_pay_in_a_batch():
    slow = replace(COST, start=0.9, step=0.3)
    planner = AutoPlanner(slow, depth=6, nodes=20)
    assert planner.budget(50).depth == 6
    assert planner.budget(50, live=16).depth == 0
    assert planner.fallback is not None and "1 of 2 rounds" in planner.fallback
    assert planner.budget(50).depth == 6  # the others have left


def test_drafting_that_does_not_pay_in_a_batch_is_left_and_said():
    target, script, _ = told("perfect")
    drafter = Told(target, script)
    drafter.config = replace(drafter.config, nodes="auto")
    slow = replace(COST, start=1.0, step=0.5)
    request = ask("x", max_new_tokens=20)
    rows = [Generation(target, drafter, request, cost=slow) for _ in range(8)]
    for result in Batch(lambda row: row, rows).results():
        assert all(r.num_drafted == 0 for r in result.rounds)
        assert "drafting did not pay" in str(result.fallback)
    (alone,) = Batch(lambda row: row, [Generation(target, drafter, request, cost=slow)]).results()
    assert alone.token_ids == result.token_ids and alone.rounds[0].num_drafted > 0
