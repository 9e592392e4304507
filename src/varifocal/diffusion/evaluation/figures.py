"""From outcomes and times to the rows of a benchmark: pure arithmetic, no clock and no model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from varifocal.diffusion.evaluation.contest import Contest, Found
from varifocal.diffusion.evaluation.intervals import (
    Ends,
    paired_difference,
    ratio_draws,
    wilson,
)
from varifocal.diffusion.evaluation.measure import Timed
from varifocal.diffusion.evaluation.methods import FULL
from varifocal.diffusion.evaluation.outcome import Agreement, Outcome, accuracy, mean_nfe
from varifocal.diffusion.sampler import Sampler
from varifocal.evaluation.lead import interval

MARGIN = 0.02  # 2.0 points
SOLVED = 0.95  # accuracy of full decoding below which a gate's losses say little
BINS = 10  # of the distribution of exits
DEFINITIONS = {
    "full": "full decoding: every position is decided by steps. The baseline of a table is full "
    "decoding with the first sampler.",
    "accuracy": "share of questions whose answer the task's scorer calls right; where the task has "
    "none (broken formats), whose text is the one that was asked for.",
    "points": "accuracy minus that of full decoding with the baseline's sampler on the same "
    "questions, times 100. The interval draws the pairs anew, half a pair of each kind added.",
    "agreement": "share of questions with the same answer as full decoding; the others are helped "
    "(wrong, then right), hurt (right, then wrong) or changed (another answer, no better).",
    "premature": "share of exits whose answer is not the one at the end of full decoding.",
    "NFE": "forwards of the denoiser for a question; one of a batch counts once for each row.",
    "speed-up": "seconds of full decoding divided by the method's, from the prompt's text to the "
    "answer's, summed over the same questions, which were decoded one by one and in turn. "
    "Measured, never computed from NFE.",
    "gate share": "of a question's seconds, what the gate took: its rule, parsing, and of the "
    "statistics the part of the positions that only it reads, their fixed cost included.",
    "added": "beside its forward a step takes so much more than in full decoding by the same "
    "sampler, as a share of the step: what a gate costs, without attributing anything.",
    "answer tokens/s": "tokens before the first stop token of full decoding's text, for every "
    "method, divided by the method's seconds: filler behind an exit earns nothing.",
    "reduced": "no gate, and so many steps as it takes to have at least the NFE of latch.",
    "oracle": "stops as soon as the answer is the final one and stays so; it knows the whole run, "
    "is replayed and has no speed.",
    "@tuned": "with thresholds chosen on the questions, and by the rule, of those of latch.",
}


Place = tuple[str, int, int]  # task, canvas, length of the blocks


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method with one sampler on one task."""

    model: str
    task: str
    regime: str  # short answers, or long texts that lead to one
    is_scored: bool
    canvas: int
    block: int
    fitting: float  # of the task's questions, the share that fits this canvas
    gate: str  # the method as given
    setting: str  # the gate with its settings
    sampler: str
    is_baseline_sampler: bool
    is_replayed: bool
    items: int
    accuracy: float
    accuracy_ci95: Ends
    accuracy_full: float  # of the baseline, on the same questions
    accuracy_delta: float
    accuracy_delta_ci95: Ends
    is_within: bool  # the point
    is_clearly_within: bool  # the interval too
    agreement: float
    agreement_ci95: Ends
    helped: int
    hurt: int
    changed: int
    same_text: float
    agreement_sampler: float  # with full decoding by the same sampler
    exits: float
    premature: float  # of exits; 0 without any
    exit_histogram: list[int]  # exits by tenths of the planned steps
    exit_quantiles: list[float]  # 10, 50 and 90 % of exit steps; empty without exits
    early: float  # share of the canvas that was committed as whole blocks
    broken_rows: int  # with an undecided position or an id that must not be said
    nfe: float
    nfe_full: float
    nfe_sampler: float  # of full decoding by the same sampler
    timed_items: int
    speedup: float | None  # None where nothing was timed, as of what can only be replayed
    speedup_ci95: Ends | None
    speedup_sampler: float | None  # over full decoding by the same sampler
    speedup_sampler_ci95: Ends | None
    gate_share: float | None
    share: dict[str, float]  # of seconds: forward, gate, sample, other
    gate_milliseconds: float | None  # a step
    added_share: float | None  # of a step, what it takes beside its forward more than full does
    added_milliseconds: float | None  # the same in milliseconds
    step_milliseconds: float | None
    latency: float | None  # seconds a question
    latency_full: float | None
    answer_tokens_per_second: float | None
    rechecked: int  # timed runs that were compared with the replayed or batched ones
    rechecked_equal: int

    @property
    def place(self) -> Place:
        """What rows are compared on."""
        return self.task, self.canvas, self.block


def rows_of(contest: Contest, found: Found, seed: int, draws: int) -> list[Row]:
    """A row for each sampler and method that ran."""
    made = []
    for sampler in contest.samplers:
        for method in contest.methods:
            if (sampler.text, method.label) in found.outcomes:
                made.append(_row(contest, found, sampler, method.label, seed, draws))
    return made


def _row(
    contest: Contest, found: Found, sampler: Sampler[Any], label: str, seed: int, draws: int
) -> Row:
    name, base = (sampler.text, label), (contest.samplers[0].text, FULL)
    runs = found.outcomes[name]
    full = found.outcomes[base][: len(runs)]
    same = found.outcomes[sampler.text, FULL][: len(runs)]
    agreement, count = Agreement.of(runs, full), len(runs)
    right, delta = sum(o.is_right for o in runs), (agreement.helped - agreement.hurt) / count
    ends = (0.0, 0.0)  # of the baseline by definition
    if name != base:
        ends = paired_difference(agreement.helped, agreement.hurt, count, seed, draws)
    drawn, plan = contest.drawn, contest.setup.plan
    return Row(
        model=contest.denoiser.name,
        task=drawn.task.name,
        regime=drawn.task.regime,
        is_scored=drawn.task.is_scored,
        canvas=plan.canvas,
        block=min(plan.block, plan.canvas),
        fitting=drawn.fitting,
        gate=label,
        setting=found.gates[name].text,
        sampler=sampler.text,
        is_baseline_sampler=sampler.text == base[0],
        is_replayed=name in found.replayed,
        items=count,
        accuracy=right / count,
        accuracy_ci95=wilson(right, count),
        accuracy_full=accuracy(full),
        accuracy_delta=delta,
        accuracy_delta_ci95=ends,
        is_within=delta >= -MARGIN,
        is_clearly_within=delta >= -MARGIN and ends[0] >= -MARGIN,
        agreement=agreement.agreeing / count,
        agreement_ci95=wilson(agreement.agreeing, count),
        helped=agreement.helped,
        hurt=agreement.hurt,
        changed=agreement.changed,
        same_text=agreement.same_text / count,
        agreement_sampler=Agreement.of(runs, same).agreeing / count,
        exits=agreement.exits / count,
        premature=agreement.premature_share,
        **_exits(runs, plan.total),
        early=sum(o.num_early for o in runs) / count / plan.canvas,
        broken_rows=sum(not o.is_whole for o in runs),
        nfe=mean_nfe(runs),
        nfe_full=mean_nfe(full),
        nfe_sampler=mean_nfe(same),
        **_times(found, name, base, seed, draws),
        **_rechecks(found.times.get(name, ()), runs),
    )


def _exits(runs: Sequence[Outcome], planned: int) -> dict[str, Any]:
    steps = np.array([o.exit_step for o in runs if o.exit_step is not None])
    counts, _ = np.histogram(steps, bins=BINS, range=(0, planned))
    quantiles = np.quantile(steps, (0.1, 0.5, 0.9)).tolist() if len(steps) else []
    return {"exit_histogram": counts.tolist(), "exit_quantiles": quantiles}


def _times(
    found: Found, name: tuple[str, str], base: tuple[str, str], seed: int, draws: int
) -> dict[str, Any]:
    """Speeds, from runs that were timed in turn; all None where there are none."""
    own, same, full = (found.times.get(n, []) for n in (name, (name[0], FULL), base))
    made: dict[str, Any] = {"timed_items": len(own), "share": _shares(own)}
    for field, other in (("speedup", full), ("speedup_sampler", same)):
        made[field], made[f"{field}_ci95"] = _speedup(other, own, seed, draws)
    seconds = sum(run.seconds for run in own)
    steps = sum(run.outcome.nfe for run in own)
    tokens = sum(run.outcome.num_tokens for run in full)
    gate, whole = sum(run.gate for run in own), sum(map(_looped, own))
    added = _beside(own) - _beside(same) if own and same else None  # a step
    return made | {
        "gate_share": gate / whole if own else None,
        "gate_milliseconds": 1000 * gate / steps if own else None,
        "added_share": None if added is None else added * steps / whole,
        "added_milliseconds": None if added is None else 1000 * added,
        "step_milliseconds": 1000 * whole / steps if own else None,
        "latency": seconds / len(own) if own else None,
        "latency_full": sum(run.seconds for run in full) / len(full) if own else None,
        "answer_tokens_per_second": tokens / seconds if own else None,
    }


def _speedup(
    full: Sequence[Timed], own: Sequence[Timed], seed: int, draws: int
) -> tuple[float | None, Ends | None]:
    if not own or not full:
        return None, None
    above, below = (np.array([run.seconds for run in runs]) for runs in (full, own))
    drawn = ratio_draws(above, below, seed, draws)
    return float(above.sum() / below.sum()), interval(drawn)


def _looped(run: Timed) -> float:
    """Seconds of the denoising loop."""
    return run.forward + run.gate + run.sample + run.other


def _beside(runs: Sequence[Timed]) -> float:
    """Seconds of a step beside its forward."""
    steps = sum(run.outcome.nfe for run in runs)
    return sum(_looped(run) - run.forward for run in runs) / steps


def _shares(runs: Sequence[Timed]) -> dict[str, float]:
    whole = sum(map(_looped, runs))
    if not whole:
        return {}
    parts = ("forward", "gate", "sample", "other")
    return {part: sum(getattr(run, part) for run in runs) / whole for part in parts}


def _rechecks(times: Sequence[Timed], runs: Sequence[Outcome]) -> dict[str, Any]:
    """Timed runs were live and alone: they must be what the replay or the batch said."""
    pairs = list(zip(times, runs, strict=False))
    return {
        "rechecked": len(pairs),
        "rechecked_equal": sum(run.outcome == outcome for run, outcome in pairs),
    }
