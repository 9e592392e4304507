"""A benchmark in the form of a paper's table: methods by families, what is best, what counts."""

from typing import Final, Literal

from varifocal.evaluation.figures import BenchResult, Mean, Row
from varifocal.evaluation.lead import is_plain

MEAN: Final = "mean"  # the first column, where there are several families
NGRAM: Final = "n-gram table"
Cell = Row | Mean
Grid = dict[str, dict[str, Cell]]  # entry: column: figures
Figure = Literal["tau", "decode_speedup"]

MARKS: Final = (
    "Beside a speed-up stands what became of the texts: nothing, if all are those of plain "
    "decoding; ≈n, if n part from it where two tokens are equally likely up to rounding; ≠n and "
    "struck out, if n differ, so that it does not count; °, if they are other random draws."
)


def grid_of(result: BenchResult) -> Grid:
    """Every entry on every family, in the order of both; the mean first."""
    is_many = len({row.family for row in result.rows}) > 1
    grid: Grid = {e: {MEAN: mean} if is_many else {} for e, mean in result.means.items()}
    for row in result.rows:
        grid[row.drafter][row.family] = row
    return grid


def columns_of(result: BenchResult) -> list[str]:
    """The mean, where there are several families, and the families."""
    return list(next(iter(grid_of(result).values())))


def series_of(result: BenchResult) -> dict[str, int]:
    """Entries that charts show, numbered: all but the plain loop, which is 1 by definition."""
    stock = {row.drafter for row in result.rows if row.drafter == row.baseline}
    shown = [entry for entry in result.means if entry not in stock] or list(result.means)
    return {entry: number for number, entry in enumerate(shown)}


def drafting(result: BenchResult) -> dict[str, int]:
    """Of those the entries that delivered any drafted token."""
    means = result.means
    return {e: n for e, n in series_of(result).items() if len(means[e].acceptance_histogram) > 1}


def best_of(result: BenchResult, figure: Figure) -> dict[str, float]:
    """By column the highest value of entries whose texts are all right, if it is above plain's."""
    good = [cells for entry, cells in grid_of(result).items() if not result.means[entry].different]
    return {
        column: max([1.0, *(getattr(cells[column], figure) for cells in good)])
        for column in columns_of(result)
    }


def is_best(
    result: BenchResult, best: dict[str, float], entry: str, column: str, figure: Figure
) -> bool:
    """Whether a cell holds the best of its column; plain loops without a gain never do."""
    value = getattr(grid_of(result)[entry][column], figure)
    is_right = not result.means[entry].different
    return is_right and not (is_plain(entry) and value <= 1) and value == best[column]


def same_texts(cell: Cell) -> str:
    """How many texts are those of plain decoding, shorter than `verdict`."""
    if not cell.is_compared:
        return "other draws"
    whole = cell.identical + cell.near_tie + cell.different
    return f"{cell.identical}/{whole} same"


def mark(cell: Cell) -> str:
    """What became of the texts, as it stands beside a speed-up; see `MARKS`."""
    if not cell.is_compared:
        return "°"
    if cell.different:
        return f"≠{cell.different}"
    return f"≈{cell.near_tie}" if cell.near_tie else ""
