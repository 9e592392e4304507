"""Sentences say what the figures say: who leads, by how much, why, and what is not known."""

from dataclasses import replace

import numpy as np
import pytest
from made_up import bench, large, result_of

from varifocal.evaluation.lead import Gap, find_lead, is_plain
from varifocal.evaluation.story import story


def lead_of(gains, *, wrong=(), baselines=None, spread=None, requests=20):
    """Entries with these mean speed-ups, all with the same draws around them."""
    means = {
        entry: replace(large(1).means["plain"], decode_speedup=gain, different=int(entry in wrong))
        for entry, gain in gains.items()
    }
    noise = np.linspace(0.9, 1.1, 41)
    draws = {e: g * (noise if spread is None else spread[e]) for e, g in gains.items()}
    return find_lead(means, draws, dict.fromkeys(gains, "plain") | (baselines or {}), requests)


def test_the_fastest_of_ours_with_right_texts_leads():
    gains = {"plain": 1.0, "fovea": 2.5, "lookup": 1.25, "bad": 4.0, "hf-generate": 3.0}
    lead = lead_of(gains, wrong=("bad",))
    assert (lead.drafter, lead.runner_up, lead.baseline) == ("fovea", "hf-generate", "plain")
    assert set(lead.over) == {"plain", "lookup", "bad", "hf-generate"}
    assert lead.over["lookup"].ratio == 2.0
    assert lead_of({"plain": 1.0, "hf-generate": 2.0}) is None
    assert lead_of({"plain": 1.0, "fovea": 2.0}, wrong=("fovea",)) is None


def test_intervals_between_entries_are_paired():
    ratio = lead_of({"plain": 1.0, "a": 2.0, "b": 1.9}).over["b"]
    assert ratio.ci95 == pytest.approx((2 / 1.9, 2 / 1.9))  # what is hard is hard for both
    assert ratio.is_clear
    noise = np.linspace(0.9, 1.1, 41)
    apart = {"plain": noise, "a": noise, "b": noise[::-1]}
    unclear = lead_of({"plain": 1.0, "a": 2.0, "b": 1.9}, spread=apart).over["b"]
    assert unclear.ci95[0] < 1 < unclear.ci95[1] and not unclear.is_clear


def test_a_few_requests_tell_nothing_apart():
    gains = {"plain": 1.0, "a": 2.0, "b": 1.0}
    assert lead_of(gains, requests=5).over["b"].is_clear
    assert not lead_of(gains, requests=4).over["b"].is_clear


def test_only_speedups_over_the_same_plain_loop_are_ranked():
    gains = {"plain": 1.0, "plain:fast=true": 1.2, "fovea": 2.0, "fovea:fast=true": 2.5}
    fast = {"fovea:fast=true": "plain:fast=true"}
    lead = lead_of(gains, baselines=fast)
    assert lead.drafter == "fovea" and "fovea:fast=true" not in lead.over
    del gains["fovea"]
    lead = lead_of(gains, baselines=fast)
    assert (lead.drafter, lead.baseline) == ("fovea:fast=true", "plain:fast=true")
    (gap,) = lead.over.values()
    assert list(lead.over) == ["plain:fast=true"] and gap.ratio == 2.5


def test_plain_loops_are_told_by_their_names():
    assert is_plain("plain") and is_plain("plain:fast=true") and not is_plain("plainer")


def test_the_leader_its_lead_and_the_reason_are_told():
    told = story(bench())
    assert told[0] == (
        "fovea leads: 2.75× as fast as plain decoding in the mean of 5 families "
        "(95 %: 2.21–3.04; 98/100 same, 2 near-tie)."
    )
    assert told[1].startswith("Next is lookup:ngram=2 with 1.50× (98/100 same, 2 near-tie)")
    assert "3.12 tokens" in told[2] and told[2].endswith("more tokens a round and cheaper rounds.")
    assert "the fastest in all families" in told[-1]  # bad, whose texts differ, does not count


@pytest.mark.parametrize(
    ("own", "other", "said"),
    [
        ((4.0, 2.0), (3.0, 1.8), "a's rounds take longer, but bring even more in tokens"),
        ((3.0, 1.0), (4.0, 1.8), "a gets fewer tokens a round, but its rounds are cheaper"),
        ((3.0, 1.0), (3.0, 1.8), ": cheaper rounds."),
        ((4.0, 1.0), (3.0, 1.0), ": more tokens a round."),
        ((3.0, 1.0), (3.0, 1.0), "next to no difference"),
    ],
)
def test_the_reason_is_tokens_or_the_cost_of_a_round(own, other, said):
    made = result_of([("plain", 1.0), ("a", 3.0), ("b", 2.0)], ["only"])
    means = dict(made.means)
    for entry, (tau, cost) in (("a", own), ("b", other)):
        means[entry] = replace(means[entry], tau=tau, round_cost=cost)
    assert said in story(replace(made, means=means))[2]


def test_the_kind_of_words_that_makes_the_difference_is_named():
    made = bench()
    counts = {kind: dict(c) for kind, c in made.means["fovea"].acceptance_by_kind.items()}
    counts["number"]["drafted"] = 0
    means = {**made.means}
    means["lookup:ngram=2"] = replace(means["lookup:ngram=2"], acceptance_by_kind=counts)
    told = story(replace(made, means=means))
    (line,) = [s for s in told if "difference in tokens" in s]
    assert "lies most in new numbers" in line and line.endswith("0% by lookup:ngram=2.")


def test_what_cannot_be_told_apart_is_said():
    made = bench()
    unclear = Gap(ratio=1.01, ci95=(0.98, 1.04), is_clear=False)
    over = {entry: unclear for entry in made.lead.over}
    told = story(replace(made, lead=replace(made.lead, over=over)))
    assert "these requests cannot tell the two apart" in told[1]
    assert told[-1].startswith("Nor can these requests tell it from plain, bad, hf-generate")


@pytest.mark.parametrize(
    ("interval", "said"),
    [((0.7, 0.9), "No drafter pays here: fovea comes nearest"), ((0.9, 1.1), "it may not pay")],
)
def test_a_drafter_that_does_not_pay_is_not_praised(interval, said):
    made = bench()
    means = made.means | {"fovea": replace(made.means["fovea"], decode_speedup_ci95=interval)}
    assert said in story(replace(made, means=means))[0]


def test_an_outside_baseline_that_is_faster_is_named():
    entries = [("plain", 1.0), ("fovea", 2.0), ("hf-generate", 4.0)]
    told = story(result_of(entries, ["only"]))
    assert "this baseline from outside is faster than any drafter of ours" in told[1]
    assert "so fovea falls behind" in told[2] or "more tokens" in told[2]


def test_one_entry_on_one_family_is_told_without_comparisons():
    told = story(result_of([("plain", 1.0), ("fovea", 2.0)], ["chart"]))
    assert "on chart" in told[0] and "A round of fovea delivers 2.50 tokens" in told[1]
    assert len(told) == 2
    assert story(bench(1, ("plain", "hf-generate"))) == [
        "No drafter of ours was measured, so none leads."
    ]
    assert story(bench(2, ("plain", "bad"))) == [
        "No drafter of ours has all its texts right, so none leads."
    ]
