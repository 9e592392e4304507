"""The table of a paper measured again, drawn for a terminal, a page, Markdown and LaTeX.

Bold is the best of a row, underlined the second best, as in the paper. A speed-up never stands
without what became of the texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from varifocal.evaluation.experiment import ALL, Figure, Outcome, Standing
from varifocal.evaluation.table import verdict

Rank = Literal["best", "second", ""]
_SPEEDS = ("entry", "tau", "c", "expected ×", "measured ×", "95 %", "texts", "v")
_LATEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "×": r"$\times$", "–": "--", "…": r"\ldots{}", "°": r"$^\circ$",
}  # fmt: skip
_WORDS = {"": "other families", ALL: "all families"}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A text and how it is set."""

    text: str
    rank: Rank = ""
    is_struck: bool = False  # texts differ, so it does not count


@dataclass(frozen=True, kw_only=True)
class Line:
    """A row; of an average or a heading where `is_strong`."""

    name: str
    cells: tuple[Cell, ...]
    is_strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """A table of text, the first column its names."""

    title: str
    head: tuple[str, ...]
    lines: tuple[Line, ...]


def efficiencies(outcome: Outcome) -> Sheet:
    """Block efficiency: families down, group by group with its average, entries across."""
    entries = outcome.drafters
    lines: list[Line] = []

    def line(family: str, name: str, *, is_strong: bool = False) -> Line:
        cells = tuple(_efficiency(outcome.at(entry, family)) for entry in entries)
        return Line(name=name, cells=cells, is_strong=is_strong)

    for group, families in outcome.groups():
        lines += [line(family, family) for family in families]
        if group:
            lines.append(line(group, group, is_strong=True))
    lines.append(line(ALL, _WORDS[ALL], is_strong=True))
    return Sheet(title="Block efficiency", head=("family", *entries), lines=tuple(lines))


def speeds(outcome: Outcome, family: str = ALL) -> Sheet:
    """Expected and measured speed-up of each entry on a family, a group, or all."""
    return Sheet(
        title=f"Expected and measured, {_WORDS.get(family, family)}",
        head=_SPEEDS,
        lines=tuple(
            Line(name=entry, cells=_speed_cells(outcome.at(entry, family)))
            for entry in outcome.drafters
        ),
    )


def _efficiency(figure: Figure) -> Cell:
    ranks: dict[int | None, Rank] = {1: "best", 2: "second"}
    return Cell(
        text=f"{figure.block_efficiency:.2f}",
        rank=ranks.get(figure.rank, ""),
        is_struck=figure.different > 0,
    )


def _speed_cells(figure: Figure) -> tuple[Cell, ...]:
    ends, is_struck = figure.decode_speedup_ci95, figure.different > 0
    measured = f"{figure.decode_speedup:.2f}"
    return (
        _efficiency(figure),
        Cell(text=_number(figure.latency_ratio, 3)),
        Cell(text=_number(figure.expected_speedup, 2)),
        Cell(text=measured, is_struck=is_struck),
        Cell(text="" if ends is None else f"{ends[0]:.2f}–{ends[1]:.2f}", is_struck=is_struck),
        Cell(text=verdict(figure)),
        Cell(text=_number(figure.verify_ratio, 2)),
    )


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


# -- in words ----------------------------------------------------------------------------------


def told(outcome: Outcome) -> list[str]:
    """What became of each claim."""
    return [_told(standing) for standing in outcome.standings]


def _told(standing: Standing) -> str:
    method, ranks = standing.claim.method, standing.ranks
    counts = [sum(rank == wanted for rank in ranks.values()) for wanted in (1, 2)]
    said = (
        f"{method} is best in {counts[0]} and second best in {counts[1]} of {len(ranks)} families"
    )
    if standing.beyond:
        said += f", and neither in {', '.join(standing.beyond)}"
    if standing.worst_ratio is None:
        return f"{said}."
    return (
        f"{said}; at worst its block efficiency is {standing.worst_ratio:.3f} of that of the best "
        f"{standing.claim.those} ({standing.worst_family})."
    )


def sources(outcome: Outcome) -> list[str]:
    """What the labels stand for."""
    return [f"{label}: {given}" for label, given in outcome.entries.items()]


def legend(outcome: Outcome) -> str:
    """What bold and underlined mean."""
    said = "Bold: the best of a row; underlined: the second best"
    blocks = outcome.experiment.blocks
    if len(blocks) == 1:
        return f"{said}."
    return f"{said}; each among {', or '.join(' / '.join(block) for block in blocks)}."


def escaped(text: str) -> str:
    """For LaTeX."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


# -- drawn -------------------------------------------------------------------------------------


def terminal(outcome: Outcome, title: str, notes: Sequence[str]) -> RenderableType:
    """Both tables, the claims, and how the figures come about."""
    parts: list[RenderableType] = [Text(title, style="bold")]
    parts += [_rich(sheet) for sheet in (efficiencies(outcome), speeds(outcome))]
    said = [*told(outcome), legend(outcome), outcome.rule, *notes]
    return Group(*parts, *(Text(note) for note in said))


def _rich(sheet: Sheet) -> Table:
    drawn = Table(title=sheet.title, title_justify="left")
    for number, name in enumerate(sheet.head):
        drawn.add_column(name, justify="right" if number else "left", overflow="fold")
    styles = {"best": "bold", "second": "underline", "": ""}
    for line in sheet.lines:
        cells = [
            Text(c.text, style=f"{styles[c.rank]}{' strike' if c.is_struck else ''}".strip())
            for c in line.cells
        ]
        first = Text(line.name, style="bold" if line.is_strong else "")
        drawn.add_row(first, *cells, end_section=line.is_strong)
    return drawn


def markdown(outcome: Outcome) -> list[str]:
    """Lines of Markdown; underlined as GitHub shows it."""
    made: list[str] = []
    for sheet in (efficiencies(outcome), speeds(outcome), *_by_family(outcome)):
        made += [f"### {sheet.title}", "", _markdown_row(sheet.head)]
        made.append(_markdown_row([":--", *["--:"] * (len(sheet.head) - 1)]))
        for line in sheet.lines:
            name = f"*{line.name}*" if line.is_strong else line.name
            made.append(_markdown_row([name, *map(_markdown_cell, line.cells)]))
        made.append("")
    listed = [f"- {note}" for note in (*told(outcome), *sources(outcome))]
    return [*made, *listed, "", legend(outcome), "", outcome.rule, ""]


def _by_family(outcome: Outcome) -> list[Sheet]:
    return [speeds(outcome, family) for family in outcome.families]


def _markdown_cell(cell: Cell) -> str:
    text = f"~~{cell.text}~~" if cell.is_struck and cell.text else cell.text
    around = {"best": "**{}**", "second": "<ins>{}</ins>", "": "{}"}[cell.rank]
    return around.format(text)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def latex(outcome: Outcome) -> list[str]:
    """Two tables with booktabs."""
    made: list[str] = []
    for sheet in (efficiencies(outcome), speeds(outcome)):
        across = len(sheet.head) - 1
        made += [
            f"% {escaped(sheet.title)}",
            r"\begin{tabular}{l" + "r" * across + "}",
            r"\toprule",
            " & ".join(map(escaped, sheet.head)) + r" \\",
            r"\midrule",
        ]
        for number, line in enumerate(sheet.lines, start=1):
            cells = [_latex_cell(cell) for cell in line.cells]
            name = rf"\textit{{{escaped(line.name)}}}" if line.is_strong else escaped(line.name)
            made.append(" & ".join([name, *cells]) + r" \\")
            if line.is_strong and number < len(sheet.lines):
                made.append(r"\midrule")
        made += [r"\bottomrule", r"\end{tabular}", ""]
    return [*(f"% {note}" for note in (*told(outcome), *sources(outcome))), *made]


def _latex_cell(cell: Cell) -> str:
    text = escaped(cell.text)
    if cell.is_struck and text:
        text = f"[{text}]"  # does not count
    around = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}[cell.rank]
    return around % text
