"""What the rows of a method come to: over the tasks and canvases of a model and a sampler."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from varifocal.diffusion.evaluation.figures import MARGIN, SOLVED, Row
from varifocal.diffusion.evaluation.methods import FULL, LATCH, ORACLE

_LARGE = 25.0  # milliseconds


@dataclass(frozen=True, kw_only=True)
class Span:
    """The rows of a regime, from the one with the least speed-up to that with the most."""

    rows: int
    least: float
    mean: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Span | None":
        """None of nothing."""
        if not values:
            return None
        mean = sum(values) / len(values)
        return cls(rows=len(values), least=min(values), mean=mean, most=max(values))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One method with one sampler and one model."""

    model: str
    sampler: str
    gate: str
    cells: int  # rows of tasks that are scored
    within: int  # of these, with a loss of no more than 2.0 points
    clearly_within: int  # of these, with an interval that does not pass 2.0 points either
    worst_delta: float  # of accuracy
    worst_task: str
    mean_delta: float
    agreement: float  # mean
    nfe_share: float  # mean of NFE / NFE of full decoding
    short: Span | None  # speed-ups
    long: Span | None
    over_sampler: Span | None  # speed-ups over full decoding by the same sampler
    agreement_sampler: float  # with that decoding: the least
    gate_share: float | None  # the largest
    added_share: float | None  # the largest
    added_milliseconds: float | None  # to a step: the most


def summaries_of(rows: Sequence[Row]) -> Iterator[Summary]:
    """In the order of the rows; of tasks that are not scored only times count."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.model, row.sampler, row.gate), []).append(row)
    for (model, sampler, gate), own in groups.items():
        scored = [row for row in own if row.is_scored] or own
        worst = min(scored, key=lambda row: row.accuracy_delta)
        shares, added, spent = (
            [value for row in own if (value := getattr(row, name)) is not None]
            for name in ("gate_share", "added_share", "added_milliseconds")
        )
        yield Summary(
            model=model,
            sampler=sampler,
            gate=gate,
            cells=len(scored),
            within=sum(row.is_within for row in scored),
            clearly_within=sum(row.is_clearly_within for row in scored),
            worst_delta=worst.accuracy_delta,
            worst_task=worst.task,
            mean_delta=sum(row.accuracy_delta for row in scored) / len(scored),
            agreement=sum(row.agreement for row in scored) / len(scored),
            nfe_share=sum(row.nfe / row.nfe_full for row in scored) / len(scored),
            short=_span(scored, "short"),
            long=_span(scored, "long"),
            over_sampler=Span.of([r.speedup_sampler for r in scored if r.speedup_sampler]),
            agreement_sampler=min(row.agreement_sampler for row in scored),
            gate_share=max(shares, default=None),
            added_share=max(added, default=None),
            added_milliseconds=max(spent, default=None),
        )


def _span(rows: Sequence[Row], regime: str) -> Span | None:
    return Span.of([r.speedup for r in rows if r.regime == regime and r.speedup is not None])


# -- in words ----------------------------------------------------------------------------------


def story(rows: Sequence[Row], summaries: Sequence[Summary]) -> list[str]:
    """What latch reached with each model and sampler, and where something else did better."""
    told: list[str] = []
    for summary in summaries:
        if summary.gate == LATCH:
            own = [r for r in rows if (r.model, r.sampler) == (summary.model, summary.sampler)]
            told.append(" ".join(_about(summary, own)))
            told += [*_losses(own), *_best_blocks(own)]
    return [*told, *_unsolved(rows)]


def _about(summary: Summary, rows: Sequence[Row]) -> Iterator[str]:
    points = f"{100 * MARGIN:.1f} points"
    unclear = summary.within - summary.clearly_within
    passing = f"; in {unclear} of these the interval passes {points}" if unclear else ""
    yield (
        f"{summary.model}, {summary.sampler}: latch is within {points} of full decoding in "
        f"{summary.within} of {summary.cells} scored cells (worst: "
        f"{100 * summary.worst_delta:+.1f} in {summary.worst_task}){passing}."
    )
    spans = {"short answers": summary.short, "long texts": summary.long}
    said = [f"{name} {_times(span)}" for name, span in spans.items() if span]
    if said:
        yield f"End to end against full decoding: {'; '.join(said)}."
    if not rows[0].is_baseline_sampler and summary.over_sampler:
        yield (
            f"On top of {summary.sampler} alone: {_times(summary.over_sampler)}, and "
            f"{summary.agreement_sampler:.1%} of the answers or more are the same."
        )
    if summary.gate_share is not None and summary.added_milliseconds is not None:
        spent = summary.added_milliseconds
        yield (
            f"The gate adds {summary.added_share or 0.0:.1%} to a step at most, {spent:.2f} ms "
            f"({summary.gate_share:.1%} where it is charged its part of what reading statistics "
            f"costs without a gate as well). Beside a forward of {_LARGE:g} ms, assumed for 8 "
            f"billion parameters on a GPU, it would add {spent / (spent + _LARGE):.1%}; statistics "
            "over that vocabulary come on top."
        )


def _times(span: Span) -> str:
    if span.rows == 1:
        return f"{span.least:.2f}×"
    return f"{span.least:.2f} to {span.most:.2f}×, mean {span.mean:.2f}×"


def _losses(rows: Sequence[Row]) -> Iterator[str]:
    """Cells in which other methods need fewer forwards at no less agreement."""
    latch = {row.place: row for row in rows if row.gate == LATCH and row.is_scored}
    for place, own in latch.items():
        better = [
            row
            for row in rows
            if row.place == place
            and row.gate not in (LATCH, FULL, ORACLE)
            and row.nfe < own.nfe
            and row.agreement >= own.agreement
        ]
        if better:
            listed = ", ".join(
                f"{row.gate} {row.nfe:.1f} ({row.agreement:.1%})"
                for row in sorted(better, key=lambda row: row.nfe)
            )
            yield (
                f"Not ahead in {own.task} on a canvas of {own.canvas} in blocks of {own.block} "
                f"({own.model}, {own.sampler}): latch needs {own.nfe:.1f} forwards "
                f"({own.agreement:.1%} agree), {listed}."
            )


def _best_blocks(rows: Sequence[Row]) -> Iterator[str]:
    """Each with the blocks that suit it best: a sampler that needs no gate may want longer ones."""
    if rows[0].is_baseline_sampler or len({row.block for row in rows}) == 1:
        return
    for task, canvas in dict.fromkeys((row.task, row.canvas) for row in rows if row.is_scored):
        best = {}
        for gate in (FULL, LATCH):
            own = [r for r in rows if (r.task, r.canvas, r.gate) == (task, canvas, gate)]
            right = [row for row in own if row.is_within]
            if not right:
                return
            best[gate] = min(right, key=lambda row: row.nfe)
        alone, gated = best[FULL], best[LATCH]
        yield (
            f"Each in its best blocks, {task} on a canvas of {canvas} ({alone.model}): "
            f"{alone.sampler} alone needs {alone.nfe:.1f} forwards (blocks of {alone.block}), with "
            f"latch {gated.nfe:.1f} (blocks of {gated.block}): {alone.nfe / gated.nfe:.2f}×."
        )


def _unsolved(rows: Sequence[Row]) -> Iterator[str]:
    weak = {
        (row.model, *row.place): row.accuracy_full
        for row in rows
        if row.is_scored and row.accuracy_full < SOLVED
    }
    for (model, task, canvas, block), accuracy in weak.items():
        yield (
            f"{model} solves {task} on a canvas of {canvas} in blocks of {block} in "
            f"{accuracy:.1%} of the cases only: below {SOLVED:.0%} a gate's loss says little."
        )
