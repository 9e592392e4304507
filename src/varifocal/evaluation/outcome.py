"""A table of a paper from the figures of a benchmark: what was expected, measured, and claimed."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from varifocal.evaluation.experiment import ALL, Claim, Experiment, Figure, Outcome, Standing
from varifocal.evaluation.figures import BenchResult, Mean, Row

RULE = (
    "Block efficiency is tau: tokens a target forward, the bonus token included, pooled over a "
    "family's requests. c = T_q / T_p: T_q is the time of a draft step, the drafter's seconds in "
    "all rounds (views, mixing and weights, without its reading of the prompt) divided by rounds "
    "times gamma; T_p is that of a plain token, plain decoding's seconds after the prefill divided "
    "by its forwards; both on the same requests in the same run. Expected speed-up: "
    "tau / (gamma c + 1) [TABED, Eq. 1]. It takes a forward that checks a draft to cost what one "
    "that reads a token costs, their ratio is v, and leaves out the drafter's reading of the "
    "prompt, captions included; the measured speed-up has both in it. Averages are plain ones over "
    "families of tau, c and v, from which the expected speed-up follows."
)


def expected_speedup(tau: float, depth: int, latency_ratio: float) -> float:
    """[TABED, Eq. 1]"""
    return tau / (depth * latency_ratio + 1)


def outcome_of(result: BenchResult, experiment: Experiment) -> Outcome:
    """The table, of those of its entries that were measured; others are no part of it."""
    rows = {(row.drafter, row.family): row for row in result.rows}
    families = list(dict.fromkeys(row.family for row in result.rows))
    blocks = [[e for e in block if e in result.means] for block in experiment.blocks]
    figures = []
    for block in blocks:
        made = []
        for entry in block:
            own = [
                _of_row(row, rows[row.baseline, family], experiment.depth)
                for family in families
                if (row := rows[entry, family])
            ]
            groups = [
                _average(entry, group, part, experiment.depth)
                for group, among in experiment.groups.items()
                if (part := [figure for figure in own if figure.family in among])
            ]
            whole = _average(entry, ALL, own, experiment.depth, result.means[entry])
            made += [*own, *groups, whole]
        figures += _ranked(made)
    measured = {figure.drafter for figure in figures}
    return Outcome(
        experiment=experiment,
        figures=tuple(figures),
        standings=tuple(_standing(c, figures) for c in experiment.claims if c.method in measured),
        rule=RULE,
        entries={entry: given for entry, given in result.entries.items() if entry in measured},
    )


def _of_row(row: Row, plain: Row, depth: int) -> Figure:
    latency, verify = None, None
    if row.rounds and plain.rounds and plain.seconds["decode"] > 0:
        token = plain.seconds["decode"] / plain.rounds
        drafting = row.share["draft"] * row.seconds["decode"] - row.seconds["start"]
        latency = drafting / (row.rounds * depth) / token
        verify = row.share["verify"] * row.seconds["decode"] / row.rounds / token
    return Figure(
        drafter=row.drafter,
        family=row.family,
        kind="family",
        block_efficiency=row.tau,
        rank=None,
        latency_ratio=latency,
        expected_speedup=None if latency is None else expected_speedup(row.tau, depth, latency),
        decode_speedup=row.decode_speedup,
        decode_speedup_ci95=row.decode_speedup_ci95,
        verify_ratio=verify,
        identical=row.identical,
        near_tie=row.near_tie,
        different=row.different,
        is_compared=row.is_compared,
    )


def _average(
    drafter: str, name: str, own: Sequence[Figure], depth: int, mean: Mean | None = None
) -> Figure:
    """Over families; `mean` is what the benchmark has of all of them."""
    tau = fmean(figure.block_efficiency for figure in own)
    latency = _known_mean([figure.latency_ratio for figure in own])
    return Figure(
        drafter=drafter,
        family=name,
        kind="group" if mean is None else "all",
        block_efficiency=tau,
        rank=None,
        latency_ratio=latency,
        expected_speedup=None if latency is None else expected_speedup(tau, depth, latency),
        decode_speedup=fmean(figure.decode_speedup for figure in own),
        decode_speedup_ci95=None if mean is None else mean.decode_speedup_ci95,
        verify_ratio=_known_mean([figure.verify_ratio for figure in own]),
        identical=sum(figure.identical for figure in own),
        near_tie=sum(figure.near_tie for figure in own),
        different=sum(figure.different for figure in own),
        is_compared=all(figure.is_compared for figure in own),
    )


def _known_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _ranked(block: Sequence[Figure]) -> list[Figure]:
    """With ranks by block efficiency in each column, among entries whose texts are right."""
    wrong = {figure.drafter for figure in block if figure.different}
    made = []
    for figure in block:
        above = {
            other.drafter
            for other in block
            if other.family == figure.family
            and other.drafter not in wrong
            and other.block_efficiency > figure.block_efficiency
        }
        rank = None if figure.drafter in wrong else 1 + len(above)
        made.append(replace(figure, rank=rank))
    return made


def _standing(claim: Claim, figures: Sequence[Figure]) -> Standing:
    families = [f for f in figures if f.kind == "family"]
    own = {f.family: f for f in families if f.drafter == claim.method}
    near: dict[str, list[float]] = {family: [] for family in own}
    for figure in families:
        if figure.drafter in claim.near:
            near[figure.family].append(figure.block_efficiency)
    ratios = {
        family: own[family].block_efficiency / max(values)
        for family, values in near.items()
        if values
    }
    worst = min(ratios, key=ratios.__getitem__, default=None)
    return Standing(
        claim=claim,
        ranks={family: figure.rank for family, figure in own.items()},
        beyond=tuple(f for f, figure in own.items() if figure.rank is None or figure.rank > 2),
        ratios=ratios,
        worst_family=worst,
        worst_ratio=None if worst is None else ratios[worst],
    )
