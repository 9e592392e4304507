"""From timed runs to the figures of a benchmark: pure arithmetic, no clock and no model.

tau: tokens after the prefill per round, pooled over a family's requests; plain has 1.
decode_speedup: plain's decode seconds / the entry's, each summed over the same requests. Decode is
    everything after the prefill, building the drafter's state included.
end_to_end_speedup: the same with the pictures' preparation and the prefill on both sides.
Repeats: of each request the run with the median time counts.
Texts of different length (near-ties, samples of transformers): plain's decode seconds are scaled to
    as many tokens as the entry delivered, so that a shorter text is no gain.
round_cost: what a round of the entry takes, in rounds of plain: tau / decode_speedup.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from varifocal.evaluation.experiment import Outcome
from varifocal.evaluation.kinds import DEFINITIONS, Breakdown, Counts, pooled
from varifocal.evaluation.lead import Lead, interval, is_outside
from varifocal.result import GenerationResult

Verdict = Literal["identical", "near_tie", "different"]
VERDICTS: tuple[Verdict, ...] = ("identical", "near_tie", "different")  # from good to bad
Floats = Float[np.ndarray, "..."]

RULE = (
    "tau = tokens after the prefill / target forwards after it (bonus token included, plain = 1), "
    "pooled over a family's requests. Speed-up = plain's seconds / the entry's, summed over the "
    "same requests, of each the run with the median time of the repeats. Means are plain averages "
    "over families."
)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One request decoded once."""

    result: GenerationResult
    total: float  # seconds from the request to its last token, pictures and prefill included
    state_bytes: int | None = None  # what the drafter remembered at the end; None where unknown

    @property
    def decode(self) -> float:
        """Seconds after the prefill."""
        return self.result.seconds["decode"]

    @property
    def tokens(self) -> int:
        """Tokens that came after the prefill's."""
        return sum(len(r.tokens) for r in self.result.rounds)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One request: the runs of an entry and of its baseline, one per repeat, and the verdict."""

    runs: Sequence[Timed]
    plain: Sequence[Timed]
    verdict: Verdict | None  # None where texts cannot be compared

    @property
    def run(self) -> Timed:
        """The entry's run with the median decode time."""
        return _median_run(self.runs)

    @property
    def decode(self) -> tuple[float, float]:
        """Decode seconds of plain, for as many tokens, and of the entry."""
        run, plain = self.run, _median_run(self.plain)
        scale = run.tokens / plain.tokens if run.tokens and plain.tokens else 1.0
        return plain.decode * scale, run.decode

    @property
    def total(self) -> tuple[float, float]:
        """End-to-end seconds of plain, for as many tokens, and of the entry."""
        longer = self.decode[0] - _median_run(self.plain).decode
        return _median(self.plain) + longer, _median(self.runs)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One entry on one family."""

    drafter: str  # the entry as given
    family: str
    baseline: str  # the plain loop that it is compared with
    requests: int
    tokens: int  # delivered, the prefill's included
    rounds: int  # target forwards after the prefills
    tau: float
    decode_speedup: float
    decode_speedup_ci95: tuple[float, float]  # paired bootstrap over requests
    end_to_end_speedup: float
    round_cost: float  # seconds of a round, in rounds of plain; the drafter's start is in it
    identical: int
    near_tie: int
    different: int
    is_compared: bool  # False: samples of transformers, whose texts say nothing
    share: dict[str, float]  # of decode time; outside baselines are not split: all is "other"
    acceptance_histogram: list[int]  # rounds that delivered exactly j drafted tokens
    acceptance_by_position: list[float]  # share of rounds that accepted at least j + 1
    prefill_share: float  # of end-to-end time: pictures, tokens, prefill
    seconds: dict[str, float]  # sums over requests: decode; in it start, building states; total
    ngram_tau: float  # of an n-gram table on the same texts
    draft_memory_mib: float  # weights and state
    draft_weights_mib: float
    draft_state_mib: float | None  # of the request with the largest; None where it cannot be seen
    acceptance_by_kind: Counts  # tokens after the prefill's, and how many of them were drafted
    acceptance_by_source: Counts  # the same tokens; empty where the suite does not tell
    acceptance_by_stage: Counts  # the same tokens, and rounds
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Mean:
    """One entry over all families: plain averages, and sums of the verdicts."""

    tau: float
    decode_speedup: float
    decode_speedup_ci95: tuple[float, float]
    end_to_end_speedup: float
    min_decode_speedup: float
    round_cost: float
    ngram_tau: float
    identical: int
    near_tie: int
    different: int
    is_compared: bool
    acceptance_by_kind: Counts  # pooled over families, as the histogram
    acceptance_by_source: Counts
    acceptance_by_stage: Counts
    acceptance_histogram: list[int]
    draft_memory_mib: float  # of the family with the largest state
    draft_weights_mib: float
    draft_state_mib: float | None


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All figures with where and how they were measured."""

    machine: dict[str, Any]
    commit: str
    seed: int
    clock: str
    dtype: str
    target: str
    suite: str
    sampling: dict[str, Any]
    repeats: int
    rows: tuple[Row, ...]
    means: dict[str, Mean]
    ngram_tau: float  # plain average over families
    lead: Lead | None  # None where no drafter of ours has all its texts right
    sittings: int = 1  # in how many goes it was measured; each request in one of them
    rule: str = RULE
    definitions: dict[str, str] = field(default_factory=lambda: dict(DEFINITIONS))
    entries: dict[str, str] = field(default_factory=dict)  # label: the entry as given
    outcome: Outcome | None = None  # the table of a paper that was measured again

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal bench --json`."""
        return asdict(self) | {"rows": [asdict(row) for row in self.rows]}

    @property
    def is_good(self) -> bool:
        """Whether no text of ours differs from plain's; outside baselines do not count."""
        return not any(r.different for r in self.rows if not is_outside(r.drafter))


def row_of(
    pairs: Sequence[Pair],
    *,
    drafter: str,
    family: str,
    baseline: str,
    ngram_tau: float,
    weights_bytes: int,
    breakdown: Breakdown,
    draws: Floats,
) -> Row:
    """The figures of one entry on one family.

    `draws` are bootstrapped decode speed-ups, `breakdown` the tokens of all `pair.run`.
    """
    runs = [pair.run for pair in pairs]
    states = [run.state_bytes for pair in pairs for run in pair.runs]
    known = [state for state in states if state is not None]
    weights, state = weights_bytes / 2**20, max(known) / 2**20 if known else None
    decode = sum(pair.decode[1] for pair in pairs)
    total = sum(pair.total[1] for pair in pairs)
    histogram = pooled_histogram([run.result for run in runs])
    rounds = sum(histogram)
    verdicts = Counter(pair.verdict for pair in pairs)
    tau = sum(run.tokens for run in runs) / rounds if rounds else 1.0
    speedup = ratio(sum(pair.decode[0] for pair in pairs), decode)
    return Row(
        drafter=drafter,
        family=family,
        baseline=baseline,
        requests=len(pairs),
        tokens=sum(len(run.result.token_ids) for run in runs),
        rounds=rounds,
        tau=tau,
        decode_speedup=speedup,
        decode_speedup_ci95=interval(draws),
        end_to_end_speedup=ratio(sum(pair.total[0] for pair in pairs), total),
        round_cost=tau / speedup,
        identical=verdicts["identical"],
        near_tie=verdicts["near_tie"],
        different=verdicts["different"],
        is_compared=None not in verdicts,
        share=shares([run.result for run in runs]),
        acceptance_histogram=histogram,
        acceptance_by_position=by_position(histogram),
        prefill_share=1 - decode / total if total else 0.0,
        seconds={
            "decode": decode,
            "total": total,
            "start": sum(run.result.prefill.draft_seconds for run in runs),
        },
        ngram_tau=ngram_tau,
        draft_memory_mib=weights + (state or 0.0),
        draft_weights_mib=weights,
        draft_state_mib=state,
        acceptance_by_kind=breakdown.kinds,
        acceptance_by_source=breakdown.sources,
        acceptance_by_stage=breakdown.stages,
        repeats=len(pairs[0].runs),
    )


def mean_of(rows: Sequence[Row], draws: Sequence[Floats]) -> Mean:
    """One entry's families averaged; the interval resamples within each family."""
    whole = pooled(
        Breakdown(
            kinds=r.acceptance_by_kind,
            sources=r.acceptance_by_source,
            stages=r.acceptance_by_stage,
        )
        for r in rows
    )
    states = [r.draft_state_mib for r in rows if r.draft_state_mib is not None]
    return Mean(
        tau=_mean([r.tau for r in rows]),
        decode_speedup=_mean([r.decode_speedup for r in rows]),
        decode_speedup_ci95=interval(np.mean(draws, axis=0)),
        end_to_end_speedup=_mean([r.end_to_end_speedup for r in rows]),
        min_decode_speedup=min(r.decode_speedup for r in rows),
        round_cost=_mean([r.round_cost for r in rows]),
        ngram_tau=_mean([r.ngram_tau for r in rows]),
        identical=sum(r.identical for r in rows),
        near_tie=sum(r.near_tie for r in rows),
        different=sum(r.different for r in rows),
        is_compared=all(r.is_compared for r in rows),
        acceptance_by_kind=whole.kinds,
        acceptance_by_source=whole.sources,
        acceptance_by_stage=whole.stages,
        acceptance_histogram=summed([r.acceptance_histogram for r in rows]),
        draft_memory_mib=max(r.draft_memory_mib for r in rows),
        draft_weights_mib=max(r.draft_weights_mib for r in rows),
        draft_state_mib=max(states, default=None),
    )


def speedup_draws(pairs: Sequence[Pair], seed: int, draws: int) -> Floats:
    """Decode speed-ups of as many requests drawn with replacement, plain and entry together."""
    seconds = np.array([pair.decode for pair in pairs])
    picked = np.random.default_rng(seed).integers(0, len(pairs), (draws, len(pairs)))
    plain, drafted = seconds[picked].sum(1).T
    made: Floats = np.divide(plain, drafted, out=np.ones_like(plain), where=drafted > 0)
    return made


def pooled_histogram(results: Sequence[GenerationResult]) -> list[int]:
    """Entry j counts the rounds of all requests that delivered exactly j drafted tokens."""
    counts: Counter[int] = Counter()
    for result in results:
        counts.update(r.num_accepted for r in result.rounds)
    return [counts[j] for j in range(max(counts, default=0) + 1)]


def summed(histograms: Sequence[Sequence[int]]) -> list[int]:
    """Entry by entry; the shorter ones end in zeros."""
    return [sum(counts) for counts in zip_longest(*histograms, fillvalue=0)]


def by_position(histogram: Sequence[int]) -> list[float]:
    """Share of rounds whose first j + 1 drafted tokens were delivered, for each j."""
    rounds = sum(histogram)
    return [sum(histogram[j:]) / rounds for j in range(1, len(histogram))] if rounds else []


def shares(results: Sequence[GenerationResult]) -> dict[str, float]:
    """Where decode time went."""
    parts = ("draft", "verify", "other")
    sums = {part: sum(result.seconds[part] for result in results) for part in parts}
    whole = sum(sums.values())
    return {part: sums[part] / whole if whole else 0.0 for part in parts}


def ratio(plain: float, drafted: float) -> float:
    """How many times faster; 1 where nothing was left to decode."""
    return plain / drafted if drafted > 0 else 1.0


def _median_run(runs: Sequence[Timed]) -> Timed:
    return sorted(runs, key=lambda run: run.decode)[(len(runs) - 1) // 2]


def _median(runs: Sequence[Timed]) -> float:
    return sorted(run.total for run in runs)[(len(runs) - 1) // 2]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
