"""The figures of a benchmark as a table for the terminal and as Markdown.

A speed-up never stands without what became of the texts: where any differs it is struck out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from varifocal.evaluation.experiment import Figure
from varifocal.evaluation.figures import BenchResult, Mean, Row
from varifocal.evaluation.lead import FEW

_HEAD = ("drafter", "family", "tau", "n-gram tau", "decode ×", "95 %", "end to end ×", "texts",
         "draft / verify / other", "prefill")  # fmt: skip
_RIGHT = ("tau", "n-gram tau", "decode ×", "end to end ×", "prefill")


@dataclass(frozen=True, kw_only=True)
class Line:
    """The cells of one line, before they are drawn."""

    cells: tuple[str, ...]  # as in `_HEAD`
    is_struck: bool  # texts differ, so its speed-ups do not count
    is_mean: bool


def lines(result: BenchResult) -> Iterator[Line]:
    """One line per row, and each entry's mean after its rows where there are several families."""
    for drafter, mean in result.means.items():
        own = [row for row in result.rows if row.drafter == drafter]
        yield from map(_row_line, own)
        if len(own) > 1:
            yield _mean_line(drafter, mean)


def table(result: BenchResult) -> RenderableType:
    """For the terminal."""
    drawn = Table(title=heading(result), caption=result.rule, caption_justify="left")
    for name in _HEAD:
        drawn.add_column(name, justify="right" if name in _RIGHT else "left", overflow="fold")
    for line in lines(result):
        cells = [
            Text(cell, style=_style(line, name))
            for name, cell in zip(_HEAD, line.cells, strict=True)
        ]
        drawn.add_row(*cells, end_section=line.is_mean)
    return Group(drawn, *(Text(note) for note in notes(result)))


def markdown(result: BenchResult) -> str:
    """For a report."""
    made = [f"**{heading(result)}**", "", _markdown_row(_HEAD)]
    made.append(_markdown_row(tuple("--:" if n in _RIGHT else ":--" for n in _HEAD)))
    for line in lines(result):
        cells = [
            f"~~{cell}~~" if line.is_struck and "×" in name else cell
            for name, cell in zip(_HEAD, line.cells, strict=True)
        ]
        made.append(_markdown_row(tuple(f"**{c}**" if line.is_mean and c else c for c in cells)))
    made += ["", result.rule, *(f"\n{note}" for note in notes(result))]
    return "\n".join(made) + "\n"


def heading(result: BenchResult) -> str:
    """What was measured, where."""
    machine = result.machine
    law = "greedy"
    if result.sampling.get("temperature"):
        law = f"sampled at temperature {result.sampling['temperature']:g}"
    threads = f"{machine['threads']} thread{'s' if machine['threads'] != 1 else ''}"
    device = machine["cpu"] if machine.get("device", "cpu") == "cpu" else machine["device"]
    return (
        f"{result.target}, {result.dtype}, {law}, suite {result.suite}: {result.clock} time, "
        f"{threads}, {device}, {result.repeats} repeat{'s' if result.repeats != 1 else ''}"
    )


def notes(result: BenchResult) -> Iterator[str]:
    """What a reader must know to take the figures right; only what applies."""
    yield (
        f"An n-gram table without any network reaches tau {result.ngram_tau:.2f} on the same texts "
        "(chain of 6): what lies above it is not template."
    )
    baselines = {row.drafter: row.baseline for row in result.rows}
    if len(set(baselines.values())) > 1:
        yield (
            "Entries on packed weights are compared with plain decoding on packed weights "
            "(plain:fast=true); that row shows what packing alone brings."
        )
    for label, given in result.entries.items():
        yield f"{label}: {given}"
    if any(row.drafter.startswith("hf-") for row in result.rows):
        yield (
            "hf-*: transformers' generate; decode time starts when its first tokens arrive, and "
            "is not split into parts. Differences at near-ties are counted and allowed."
        )
    if (fewest := min(row.requests for row in result.rows)) < FEW:
        yield (
            f"With {fewest} request{'s' if fewest > 1 else ''} in a family the intervals say "
            f"little of what others would bring; {FEW} or more do."
        )
    if any(row.different for row in result.rows):
        yield "Struck out: some texts differ from plain decoding, so the speed-up does not count."


def _row_line(row: Row) -> Line:
    share = row.share
    return Line(
        cells=(
            row.drafter,
            row.family,
            f"{row.tau:.2f}",
            f"{row.ngram_tau:.2f}",
            f"{row.decode_speedup:.2f}",
            _interval(row.decode_speedup_ci95),
            f"{row.end_to_end_speedup:.2f}",
            verdict(row),
            " / ".join(f"{share[part]:.0%}" for part in ("draft", "verify", "other")),
            f"{row.prefill_share:.0%}",
        ),
        is_struck=row.different > 0,
        is_mean=False,
    )


def _mean_line(drafter: str, mean: Mean) -> Line:
    return Line(
        cells=(
            drafter,
            "mean",
            f"{mean.tau:.2f}",
            f"{mean.ngram_tau:.2f}",
            f"{mean.decode_speedup:.2f}",
            _interval(mean.decode_speedup_ci95),
            f"{mean.end_to_end_speedup:.2f}",
            verdict(mean),
            "",
            "",
        ),
        is_struck=mean.different > 0,
        is_mean=True,
    )


def verdict(counts: Row | Mean | Figure) -> str:
    """What became of the texts, in words."""
    if not counts.is_compared:
        return "other random draws"
    whole = counts.identical + counts.near_tie + counts.different
    parts = [f"{counts.identical}/{whole} same"]
    parts += [f"{counts.near_tie} near-tie"] if counts.near_tie else []
    parts += [f"{counts.different} DIFFER"] if counts.different else []
    return ", ".join(parts)


def _interval(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.2f}–{ends[1]:.2f}"


def _style(line: Line, name: str) -> str:
    styles = ["bold"] if line.is_mean else []
    if line.is_struck and "×" in name:
        styles.append("strike")
    if line.is_struck and name == "texts":
        styles.append("red")
    return " ".join(styles)


def _markdown_row(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
