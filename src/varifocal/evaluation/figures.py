"""From timed runs to the figures of a benchmark: pure arithmetic, no clock and no model.

tau: tokens after the prefill per round, pooled over a family's requests; plain has 1.
decode_speedup: plain's decode seconds / the entry's, each summed over the same requests. Decode is
    everything after the prefill, building the drafter's state included.
end_to_end_speedup: the same with the pictures' preparation and the prefill on both sides.
Repeats: of each request the run with the median time counts.
Texts of different length (near-ties, samples of transformers): plain's decode seconds are scaled to
    as many tokens as the entry delivered, so that a shorter text is no gain.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

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
    identical: int
    near_tie: int
    different: int
    is_compared: bool  # False: samples of transformers, whose texts say nothing
    share: dict[str, float]  # of decode time; outside baselines are not split: all is "other"
    acceptance_histogram: list[int]  # rounds that delivered exactly j drafted tokens
    acceptance_by_position: list[float]  # share of rounds that accepted at least j + 1
    prefill_share: float  # of end-to-end time: pictures, tokens, prefill
    seconds: dict[str, float]  # sums over requests: decode, total
    ngram_tau: float  # of an n-gram table on the same texts
    draft_memory_mib: float
    repeats: int


@dataclass(frozen=True, kw_only=True)
class Mean:
    """One entry over all families: plain averages, and sums of the verdicts."""

    tau: float
    decode_speedup: float
    decode_speedup_ci95: tuple[float, float]
    end_to_end_speedup: float
    min_decode_speedup: float
    ngram_tau: float
    identical: int
    near_tie: int
    different: int
    is_compared: bool


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
    rule: str = RULE

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal bench --json`."""
        return asdict(self) | {"rows": [asdict(row) for row in self.rows]}

    @property
    def is_good(self) -> bool:
        """Whether no text of ours differs from plain's; outside baselines do not count."""
        return not any(r.different for r in self.rows if not r.drafter.startswith("hf-"))


def row_of(
    pairs: Sequence[Pair],
    *,
    drafter: str,
    family: str,
    baseline: str,
    ngram_tau: float,
    memory_bytes: int,
    draws: Floats,
) -> Row:
    """The figures of one entry on one family; `draws` are bootstrapped decode speed-ups."""
    runs = [pair.run for pair in pairs]
    decode = sum(pair.decode[1] for pair in pairs)
    total = sum(pair.total[1] for pair in pairs)
    histogram = pooled_histogram([run.result for run in runs])
    rounds = sum(histogram)
    verdicts = Counter(pair.verdict for pair in pairs)
    return Row(
        drafter=drafter,
        family=family,
        baseline=baseline,
        requests=len(pairs),
        tokens=sum(len(run.result.token_ids) for run in runs),
        rounds=rounds,
        tau=sum(run.tokens for run in runs) / rounds if rounds else 1.0,
        decode_speedup=ratio(sum(pair.decode[0] for pair in pairs), decode),
        decode_speedup_ci95=interval(draws),
        end_to_end_speedup=ratio(sum(pair.total[0] for pair in pairs), total),
        identical=verdicts["identical"],
        near_tie=verdicts["near_tie"],
        different=verdicts["different"],
        is_compared=None not in verdicts,
        share=shares([run.result for run in runs]),
        acceptance_histogram=histogram,
        acceptance_by_position=by_position(histogram),
        prefill_share=1 - decode / total if total else 0.0,
        seconds={"decode": decode, "total": total},
        ngram_tau=ngram_tau,
        draft_memory_mib=memory_bytes / 2**20,
        repeats=len(pairs[0].runs),
    )


def mean_of(rows: Sequence[Row], draws: Sequence[Floats]) -> Mean:
    """One entry's families averaged; the interval resamples within each family."""
    return Mean(
        tau=_mean([r.tau for r in rows]),
        decode_speedup=_mean([r.decode_speedup for r in rows]),
        decode_speedup_ci95=interval(np.mean(draws, axis=0)),
        end_to_end_speedup=_mean([r.end_to_end_speedup for r in rows]),
        min_decode_speedup=min(r.decode_speedup for r in rows),
        ngram_tau=_mean([r.ngram_tau for r in rows]),
        identical=sum(r.identical for r in rows),
        near_tie=sum(r.near_tie for r in rows),
        different=sum(r.different for r in rows),
        is_compared=all(r.is_compared for r in rows),
    )


def speedup_draws(pairs: Sequence[Pair], seed: int, draws: int) -> Floats:
    """Decode speed-ups of as many requests drawn with replacement, plain and entry together."""
    seconds = np.array([pair.decode for pair in pairs])
    picked = np.random.default_rng(seed).integers(0, len(pairs), (draws, len(pairs)))
    plain, drafted = seconds[picked].sum(1).T
    made: Floats = np.divide(plain, drafted, out=np.ones_like(plain), where=drafted > 0)
    return made


def interval(draws: Floats) -> tuple[float, float]:
    """The middle 95 %."""
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def pooled_histogram(results: Sequence[GenerationResult]) -> list[int]:
    """Entry j counts the rounds of all requests that delivered exactly j drafted tokens."""
    counts: Counter[int] = Counter()
    for result in results:
        counts.update(r.num_accepted for r in result.rounds)
    return [counts[j] for j in range(max(counts, default=0) + 1)]


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
