import json
from dataclasses import replace

import numpy as np
import pytest

from varifocal.evaluation.figures import (
    Pair,
    Timed,
    by_position,
    mean_of,
    pooled_histogram,
    row_of,
    shares,
    speedup_draws,
    summed,
)
from varifocal.evaluation.kinds import Breakdown
from varifocal.result import GenerationResult, Round


def result(accepted, *, round_seconds=(1.0, 2.0, 1.0), first_seconds=10.0, start=0.0):
    """A text whose rounds delivered so many drafted tokens and the target's own."""
    draft, verify, other = round_seconds
    rounds = [
        Round(
            tokens=[7] * (n + 1),
            text="",
            num_drafted=6,
            num_accepted=n,
            draft_seconds=draft,
            verify_seconds=verify,
            other_seconds=other,
        )
        for n in accepted
    ]
    first = Round(
        tokens=[7], text="", verify_seconds=first_seconds, draft_seconds=start, is_prefill=True
    )
    return GenerationResult(
        text="",
        token_ids=[7] * (1 + sum(n + 1 for n in accepted)),
        finish_reason="length",
        prompt_tokens=5,
        image_tokens=0,
        rounds=rounds,
        prefill=first,
        drafter="x",
        target="t",
    )


def timed(accepted, before=2.0, **seconds):
    made = result(accepted, **seconds)
    return Timed(result=made, total=before + made.seconds["total"])


def plain(tokens, seconds=4.0):
    return timed([0] * (tokens - 1), round_seconds=(0.0, seconds, 0.0))


def pair(run, base, verdict="identical"):
    return Pair(runs=[run], plain=[base], verdict=verdict)


def row(pairs, **other):
    settings = {
        "drafter": "x",
        "family": "f",
        "baseline": "plain",
        "ngram_tau": 1.5,
        "weights_bytes": 2**21,
        "breakdown": Breakdown(),
        "draws": speedup_draws(pairs, 0, 200),
    }
    return row_of(pairs, **(settings | other))


def test_tau_pools_rounds_and_leaves_the_prefill_token_out():
    pairs = [pair(timed([3, 3]), plain(9)), pair(timed([0]), plain(2))]
    made = row(pairs)
    assert made.tokens == 9 + 2
    assert made.rounds == 3
    assert made.tau == (8 + 1) / 3
    assert row([pair(plain(5), plain(5))]).tau == 1.0


def test_histogram_positions_and_tau_tell_one_story():
    made = row([pair(timed([3, 0, 6]), plain(13)), pair(timed([1, 1]), plain(5))])
    assert made.acceptance_histogram == [1, 2, 0, 1, 0, 0, 1]
    accepted = sum(j * count for j, count in enumerate(made.acceptance_histogram))
    assert sum(made.acceptance_by_position) == pytest.approx(accepted / made.rounds)
    assert made.tau == pytest.approx(1 + accepted / made.rounds)
    assert made.tau == pytest.approx((made.tokens - made.requests) / made.rounds)
    assert made.acceptance_by_position == sorted(made.acceptance_by_position, reverse=True)


def test_round_cut_at_the_end_token_counts_what_was_delivered():
    cut = result([6, 1])  # six were accepted, the end token was the second of them ...
    last = Round(tokens=[7, 2], text="", num_drafted=6, num_accepted=2, verify_seconds=1.0)
    cut.rounds[-1] = last  # ... so two were delivered and no bonus token
    assert pooled_histogram([cut]) == [0, 0, 1, 0, 0, 0, 1]
    made = row([pair(Timed(result=cut, total=30.0), plain(10))])
    assert made.tau == (7 + 2) / 2


def test_speedups_are_ratios_of_sums_over_the_same_requests():
    # Plain 8 tokens: 32 s + 2 s; drafted two rounds of 4 s each.
    pairs = [pair(timed([3, 3]), plain(9)), pair(timed([0]), plain(2))]
    made = row(pairs)
    assert made.decode_speedup == (32 + 4) / (8 + 4)
    assert made.end_to_end_speedup == (32 + 4 + 24) / (8 + 4 + 24)
    assert made.prefill_share == pytest.approx(24 / 36)


def test_building_the_drafters_state_is_decode_time():
    made = row([pair(timed([3, 3], start=5.0), plain(9))])
    assert made.decode_speedup == 32 / 13
    assert made.share["draft"] == (5 + 2) / 13


def test_shares_add_up_to_one():
    parts = shares([result([1, 2]), result([0])])
    assert parts == {"draft": 0.25, "verify": 0.5, "other": 0.25}


def test_median_repeat_counts():
    slow, mid, quick = (timed([1], round_seconds=(0.0, s, 0.0)) for s in (9.0, 3.0, 1.0))
    many = Pair(runs=[slow, quick, mid], plain=[plain(3)], verdict="identical")
    assert many.run is mid
    assert many.decode == (8.0, 3.0)


def test_shorter_text_is_no_gain():
    half = Pair(runs=[plain(5)], plain=[plain(9)], verdict="near_tie")
    assert half.decode == (16.0, 16.0)
    assert row([half]).decode_speedup == 1.0
    assert row([half]).end_to_end_speedup == 1.0


def test_text_that_the_prefill_finished_has_neutral_figures():
    made = row([pair(plain(1), plain(1))])
    assert (made.tau, made.decode_speedup, made.rounds) == (1.0, 1.0, 0)
    assert made.acceptance_by_position == []


def test_bootstrap_is_seeded_and_paired():
    pairs = [pair(timed([n % 4, 3]), plain(6 + n % 4)) for n in range(8)]
    first, second = (speedup_draws(pairs, 3, 500) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, speedup_draws(pairs, 4, 500))
    low, high = row(pairs).decode_speedup_ci95
    assert low <= row(pairs).decode_speedup <= high
    same = [pair(plain(n), plain(n)) for n in (3, 9, 30)]
    assert row(same).decode_speedup_ci95 == (1.0, 1.0)  # drawn together, so nothing varies


def test_means_average_families_and_not_requests():
    many = row([pair(timed([3, 3]), plain(9))] * 9)
    one = row([pair(timed([0]), plain(2))], family="g")
    made = mean_of([many, one], [np.array([4.0, 4.0]), np.array([1.0, 1.0])])
    assert made.decode_speedup == (4 + 1) / 2
    assert made.decode_speedup_ci95 == (2.5, 2.5)
    assert made.tau == (4 + 1) / 2
    assert made.min_decode_speedup == 1.0
    assert made.identical == 10


def test_verdicts_are_counted():
    run, base = timed([3]), plain(5)
    kinds = ["identical", "near_tie", "different", "identical"]
    made = row([pair(run, base, kind) for kind in kinds])
    assert (made.identical, made.near_tie, made.different) == (2, 1, 1)
    assert made.is_compared
    unseen = row([pair(run, base, None)])
    assert not unseen.is_compared and unseen.identical == unseen.different == 0


def test_positions_of_no_rounds_are_empty():
    assert by_position([0]) == [] and by_position([4]) == []
    json.dumps(by_position([1, 1]))


def test_round_cost_is_what_a_round_takes_in_rounds_of_plain():
    made = row([pair(timed([3, 3], round_seconds=(1.0, 5.0, 0.0)), plain(9, seconds=4.0))])
    assert made.round_cost == 6 / 4
    assert made.decode_speedup == made.tau / made.round_cost
    assert row([pair(plain(5), plain(5))]).round_cost == 1.0


def test_draft_memory_is_weights_and_the_largest_state_of_any_request():
    small, large = (replace(timed([3]), state_bytes=n) for n in (2**20, 3 * 2**20))
    made = row([pair(small, plain(5)), pair(large, plain(5))])
    assert (made.draft_weights_mib, made.draft_state_mib, made.draft_memory_mib) == (2, 3, 5)
    unseen = row([pair(timed([3]), plain(5))])
    assert unseen.draft_state_mib is None and unseen.draft_memory_mib == 2
    mean = mean_of([made, unseen], [np.ones(2)] * 2)
    assert (mean.draft_state_mib, mean.draft_memory_mib) == (3, 5)


def test_means_pool_counts_of_tokens_over_families():
    def part(drafted):
        counts = {"tokens": 4, "drafted": drafted}
        return Breakdown(kinds={"other": counts}, stages={"2-8": counts | {"rounds": 2}})

    rows = [row([pair(timed([3]), plain(5))], breakdown=part(n)) for n in (1, 2)]
    mean = mean_of(rows, [np.ones(2)] * 2)
    assert mean.acceptance_by_kind == {"other": {"tokens": 8, "drafted": 3}}
    assert mean.acceptance_by_stage == {"2-8": {"tokens": 8, "drafted": 3, "rounds": 4}}
    assert mean.acceptance_by_source == {}
    assert rows[0].acceptance_by_kind["other"]["drafted"] == 1  # pooling left it alone


def test_histograms_of_other_lengths_add_up():
    assert summed([[1, 2], [3], []]) == [4, 2]
