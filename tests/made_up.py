"""A benchmark that nobody ran: its figures follow from the places of entry and family."""

from dataclasses import replace

import numpy as np

from varifocal.evaluation.figures import BenchResult, Row, by_position, mean_of
from varifocal.evaluation.kinds import KINDS, SOURCES, STAGES
from varifocal.evaluation.lead import find_lead

FAMILIES = ("chart", "clock", "document", "map", "scene")
ENTRIES = ("plain", "fovea", "lookup:ngram=2", "bad", "hf-generate")
GAINS = {"plain": 1.0, "fovea": 2.5, "lookup:ngram=2": 1.25, "bad": 3.0, "hf-generate": 0.75}
MANY = (  # entries and gains for a result as large as a paper's
    ("plain", 1.0), ("fovea", 2.94), ("fovea:nodes=40", 2.48), ("eagle3", 2.31), ("msd", 2.2),
    ("vispec", 2.42), ("dream", 2.52), ("block", 2.05), ("text_only", 1.7), ("auto", 3.02),
    ("lookup", 1.49), ("lookahead", 1.35), ("hf-generate", 1.21), ("hf-prompt-lookup", 1.49),
)  # fmt: skip
NINE = ("general", "text", "yesno", "chart", "sums", "document", "diagram", "spatial", "turns")


def row(place, entry, number, gain, family):
    """Figures of one entry on one family; all are exact in binary where `gain` is."""
    drafts = entry not in ("plain", "hf-generate")
    histogram = [50 - 2 * number, 30, 20 + place, 10, 5][: 5 if drafts else 1]
    speedup = gain + place / 8 * drafts
    tau = 1 + drafts * (gain - 0.5 + place / 16)
    different = 2 if entry == "bad" and place == 1 else 0
    seconds = 8 / speedup
    is_ours = not entry.startswith("hf-")
    kinds = {
        k: {"tokens": 100 + 10 * n, "drafted": drafts * (90 - 7 * n - number)}
        for n, k in enumerate(KINDS)
    }
    sources = {
        s: {"tokens": 400 - n, "drafted": drafts * (200 + 99 * n - number)}
        for n, s in enumerate(SOURCES)
    }
    stages = {
        s: {"rounds": 40 - 9 * n, "tokens": 100 - 20 * n, "drafted": 60 - 11 * n}
        for n, s in enumerate(STAGES)
    }
    return Row(
        drafter=entry, family=family, baseline="plain", requests=20, tokens=400 + place,
        rounds=sum(histogram), tau=tau, decode_speedup=speedup,
        decode_speedup_ci95=(gain * 0.875, gain * 1.125 + place / 8 * drafts),
        end_to_end_speedup=1 + (gain - 1) / 2, round_cost=tau / speedup,
        identical=20 - place % 2 - different, near_tie=place % 2, different=different,
        is_compared=True, share={"draft": number / 32, "verify": 0.5, "other": 0.5 - number / 32},
        acceptance_histogram=histogram, acceptance_by_position=by_position(histogram),
        prefill_share=(2 + place + number) / 32,
        seconds={"decode": seconds, "total": seconds + 2, "start": number / 64},
        ngram_tau=1.5 + place / 8, draft_weights_mib=number * 3.5,
        draft_state_mib=0.25 if is_ours else None,
        draft_memory_mib=number * 3.5 + 0.25 * is_ours, acceptance_by_kind=kinds,
        acceptance_by_source=sources, acceptance_by_stage=stages, repeats=3,
    )  # fmt: skip


def bench(families=5, entries=ENTRIES):
    """The first so many families of `FAMILIES`."""
    return result_of([(e, GAINS[e]) for e in entries], FAMILIES[:families])


def large(entries=11):
    """Ten entries beside the plain loop, on nine families."""
    return result_of(MANY[:entries], NINE)


def result_of(entries, families):
    """Of (entry, gain) pairs."""
    numbers = {e: ENTRIES.index(e) if e in ENTRIES else n for n, (e, _) in enumerate(entries)}
    rows = {
        e: [row(place, e, numbers[e], gain, f) for place, f in enumerate(families)]
        for e, gain in entries
    }
    draws = {e: [np.array(r.decode_speedup_ci95) for r in own] for e, own in rows.items()}
    means = {e: mean_of(own, draws[e]) for e, own in rows.items()}
    both = {e: np.mean(own, axis=0) for e, own in draws.items()}
    return BenchResult(
        machine={"cpu": "EPYC <9575F>", "threads": 1, "torch": "2.9", "load": 0.375},
        commit="0123456789abcdef", seed=7, clock="cpu", dtype="bfloat16", target="demo",
        suite="demo", sampling={"temperature": 0.0, "top_k": 0}, repeats=3,
        rows=tuple(r for own in rows.values() for r in own), ngram_tau=1.75, means=means,
        lead=find_lead(means, both, dict.fromkeys(rows, "plain"), requests=20),
    )  # fmt: skip


def without_verdicts(result, entry):
    """The same with an entry whose texts cannot be compared."""
    rows = tuple(
        replace(r, is_compared=False, identical=0, near_tie=0) if r.drafter == entry else r
        for r in result.rows
    )
    mean = replace(result.means[entry], is_compared=False, identical=0, near_tie=0)
    return replace(result, rows=rows, means=result.means | {entry: mean})
