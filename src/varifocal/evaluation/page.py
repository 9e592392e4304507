"""A benchmark as one self-contained HTML page: tables, charts, and what each number means."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from varifocal.evaluation import sheet
from varifocal.evaluation.charts import (
    Curve,
    Item,
    Scale,
    Stack,
    bars,
    columns,
    lines,
    series_colour,
    short_names,
    stacks,
)
from varifocal.evaluation.drawing import COLOURS, DASHES, Drawing, Line, Real, Shape, marker, svg
from varifocal.evaluation.figures import BenchResult, Row, by_position, summed
from varifocal.evaluation.grid import (
    MARKS,
    MEAN,
    NGRAM,
    Cell,
    Figure,
    best_of,
    columns_of,
    drafting,
    grid_of,
    is_best,
    mark,
    same_texts,
    series_of,
)
from varifocal.evaluation.kinds import KINDS, SOURCES, STAGES
from varifocal.evaluation.lead import is_outside
from varifocal.evaluation.story import NAMES, story
from varifocal.evaluation.table import heading, notes, verdict
from varifocal.evaluation.text import facts_of

PARTS = ("prefill", "draft", "verify", "other")
_PART_COLOURS = ("p0", "p2", "p1", "p3")
_HERE = Path(__file__).parent
_TITLE = 34  # letters of a panel's title


def templates(folder: Path) -> jinja2.Environment:
    """A folder's templates, beside those that all pages share."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, _HERE]), autoescape=True, trim_blocks=True,
        lstrip_blocks=True, undefined=jinja2.StrictUndefined,
    )  # fmt: skip


def page(result: BenchResult) -> str:
    """The whole page."""
    best = {figure: best_of(result, figure) for figure in ("tau", "decode_speedup")}

    def tops(entry: str, column: str, figure: Figure) -> bool:
        return is_best(result, best[figure], entry, column, figure)

    return templates(_HERE).get_template("report.html").render(
        result=result, heading=heading(result), notes=list(notes(result)), story=story(result),
        facts=facts_of(result), grid=grid_of(result), columns=columns_of(result), tops=tops,
        mark=mark, same_texts=same_texts, marks=MARKS, verdict=verdict, colours=COLOURS,
        series=drafting(result), sample=sample, names=NAMES, definitions=result.definitions,
        parts=list(zip(PARTS, _PART_COLOURS, strict=True)), splits=list(splits(result)),
        outcome=result.outcome, sheet=sheet,
        **{name: _drawn(drawings) for name, drawings in _charts(result).items()},
    )  # fmt: skip


def _charts(result: BenchResult) -> dict[str, list[Drawing]]:
    return {
        "speedups": speedups(result),
        "taus": taus(result),
        "positions": positions(result),
        "by_kind": divisions(result, "acceptance_by_kind", KINDS),
        "by_source": divisions(result, "acceptance_by_source", SOURCES),
        "by_stage": by_stage(result),
        "histograms": histograms(result),
        "times_drawn": times(result),
        "memory": memory(result),
    }


def _drawn(drawings: Sequence[Drawing]) -> list[Markup]:
    return [svg(drawing) for drawing in drawings]


def sample(number: int) -> Markup:
    """An entry's line and mark, for a legend."""
    colour, dash = series_colour(number), DASHES[number % len(DASHES)]
    line = Line(points=[(0, 6), (30, 6)], colour=colour, width=2, dash=dash)
    mark = Shape(points=marker(number, 15, 6, 4), colour=colour)
    return svg(Drawing(width=30, height=12, alt="", parts=[line, mark]))


def speedups(result: BenchResult, width: Real = 300) -> list[Drawing]:
    """A panel a column: decode speed-ups with their intervals, and plain decoding as a line."""
    grid, series, best = grid_of(result), series_of(result), best_of(result, "decode_speedup")
    ends = [cell.decode_speedup_ci95[1] for e in series for cell in grid[e].values()]
    gains = [cell.decode_speedup for e in series for cell in grid[e].values()]
    scale = Scale.upto(max([1.05, *ends, *gains]))

    def item(entry: str, column: str) -> Item:
        cell = grid[entry][column]
        low, high = cell.decode_speedup_ci95
        return Item(
            name=entry,
            value=cell.decode_speedup,
            text=f"{cell.decode_speedup:.2f} {mark(cell)}".strip(),
            colour=series_colour(series[entry]),
            ends=(low, high),
            is_struck=cell.different > 0,
            is_strong=is_best(result, best, entry, column, "decode_speedup"),
            title=f"{entry}, {column}: {cell.decode_speedup:.2f}× (95 %: {low:.2f}–{high:.2f}), "
            f"{verdict(cell)}" + (", does not count" if cell.different else ""),
        )

    return [
        bars(_titled(c), [item(entry, c) for entry in series], scale, width=width, one=True)
        for c in columns_of(result)
    ]


def taus(result: BenchResult) -> list[Drawing]:
    """A panel a column: tau, above what a table of word sequences reaches."""
    grid, series, best = grid_of(result), series_of(result), best_of(result, "tau")
    floor = {column: cell.ngram_tau for column, cell in next(iter(grid.values())).items()}
    scale = Scale.upto(
        max([1.05, *floor.values(), *(c.tau for e in series for c in grid[e].values())])
    )

    def items(column: str) -> Iterator[Item]:
        for entry, number in series.items():
            cell = grid[entry][column]
            yield Item(name=entry, value=cell.tau, text=f"{cell.tau:.2f}",
                       colour=series_colour(number),
                       is_strong=is_best(result, best, entry, column, "tau"))  # fmt: skip
        yield Item(name=NGRAM, value=floor[column], text=f"{floor[column]:.2f}")

    return [
        bars(_titled(c), list(items(c)), scale, one=True, floor=floor[c])
        for c in columns_of(result)
    ]  # fmt: skip


def positions(result: BenchResult) -> list[Drawing]:
    """Acceptance by position, the first larger and with the names at the curves."""
    shown, families = drafting(result), [c for c in columns_of(result) if c != MEAN]
    if not shown:
        return []
    rows = {(row.drafter, row.family): row for row in result.rows}
    depth = {e: max(len(rows[e, f].acceptance_by_position) for f in families) for e in shown}

    def curve(entry: str, family: str) -> list[float]:
        known = rows[entry, family].acceptance_by_position
        return [*known, *[0.0] * (depth[entry] - len(known))]

    made = []
    if len(families) > 1:
        means = [
            Curve(name=e, number=n, shares=[sum(at) / len(families) for at in
                  zip(*(curve(e, f) for f in families), strict=True)])
            for e, n in shown.items()
        ]  # fmt: skip
        made.append(lines(MEAN, means, width=640, height=300, is_named=True))
    own = [
        [Curve(name=e, number=n, shares=curve(e, f)) for e, n in shown.items()] for f in families
    ]
    if len(families) == 1:
        return [lines(_titled(families[0]), own[0], width=640, height=300, is_named=True)]
    return [*made, *(lines(_titled(f), c) for f, c in zip(families, own, strict=True))]


def divisions(result: BenchResult, field: str, labels: Sequence[str]) -> list[Drawing]:
    """A panel a kind: the share of its tokens that were drafted, over all families."""
    shown = drafting(result)
    counts: Mapping[str, Any] = {entry: getattr(result.means[entry], field) for entry in shown}
    made = []
    for label in labels:
        own = {e: c[label] for e, c in counts.items() if c.get(label, {}).get("tokens")}
        if own:
            top = max(c["drafted"] / c["tokens"] for c in own.values())
            most = max(c["tokens"] for c in own.values())
            items = [_share_item(e, shown[e], c, top) for e, c in own.items()]
            title = f"{NAMES[label]} ({most:,} tokens)".replace(",", "\u202f")
            made.append(bars(title, items, Scale.upto(1.0, is_share=True)))
    return made


def _share_item(entry: str, number: int, counts: Mapping[str, int], top: float) -> Item:
    share = counts["drafted"] / counts["tokens"]
    return Item(name=entry, value=share, text=f"{share:.0%}", colour=series_colour(number),
                is_strong=share == top > 0,
                title=f"{entry}: {counts['drafted']} of {counts['tokens']}")  # fmt: skip


def by_stage(result: BenchResult) -> list[Drawing]:
    """A panel a stage: tau of the rounds that begin in it, over all families."""
    shown = drafting(result)
    counts = {entry: result.means[entry].acceptance_by_stage for entry in shown}
    found = {
        stage: {e: c[stage] for e, c in counts.items() if c.get(stage, {}).get("rounds")}
        for stage in STAGES
    }
    every = [c["tokens"] / c["rounds"] for own in found.values() for c in own.values()]
    scale = Scale.upto(max([1.05, *every]))
    made = []
    for stage, own in found.items():
        top = max((c["tokens"] / c["rounds"] for c in own.values()), default=0.0)
        items = [
            Item(name=e, value=c["tokens"] / c["rounds"], text=f"{c['tokens'] / c['rounds']:.2f}",
                 colour=series_colour(shown[e]), is_strong=c["tokens"] / c["rounds"] == top,
                 title=f"{e}: {c['tokens']} tokens in {c['rounds']} rounds")
            for e, c in own.items()
        ]  # fmt: skip
        if items:
            made.append(bars(f"tokens {stage.replace('-', '–')}", items, scale, one=True))
    return made


def histograms(result: BenchResult) -> list[Drawing]:
    """A panel an entry: how many drafted tokens its rounds delivered, over all families."""
    shown = drafting(result)
    shares, means = {}, {}
    for entry in shown:
        counts = summed([r.acceptance_histogram for r in result.rows if r.drafter == entry])
        shares[entry] = [count / sum(counts) for count in counts]
        means[entry] = sum(by_position(counts))
    longest = max((len(own) for own in shares.values()), default=0)
    most = max((max(own) for own in shares.values()), default=1.0)
    return [
        columns(entry, f"{means[entry]:.2f} a round", [*own, *[0.0] * (longest - len(own))],
                series_colour(shown[entry]), most)
        for entry, own in shares.items()
    ]  # fmt: skip


def splits(result: BenchResult) -> Iterator[tuple[str, dict[str, float], float]]:
    """Entry, milliseconds a token of each part, milliseconds a round: averages over families."""
    for entry in result.means:
        rows = [row for row in result.rows if row.drafter == entry and row.rounds]
        if not rows:
            continue
        spent = [_milliseconds(row) for row in rows]
        parts = {part: sum(own[part] for own in spent) / len(rows) for part in PARTS}
        rounds = sum(1000 * row.seconds["decode"] / row.rounds for row in rows) / len(rows)
        yield entry, parts, rounds


def _milliseconds(row: Row) -> dict[str, float]:
    decode = 1000 * row.seconds["decode"] / row.tokens
    prefill = 1000 * (row.seconds["total"] - row.seconds["decode"]) / row.tokens
    return {"prefill": prefill, **{part: decode * row.share[part] for part in PARTS[1:]}}


def times(result: BenchResult) -> list[Drawing]:
    """Milliseconds a token end to end, and a round, by what they are spent on."""
    found = list(splits(result))
    if not found:
        return []
    tokens = [Stack(name=e, values=list(p.values()), text=f"{sum(p.values()):.2f}{_unsplit(e)}")
              for e, p, _ in found]  # fmt: skip
    rounds = [
        Stack(name=e, values=[rounds * p[part] / (sum(p.values()) - p["prefill"] or 1)
                              for part in PARTS[1:]], text=f"{rounds:.2f}{_unsplit(e)}")
        for e, p, rounds in found
    ]  # fmt: skip
    return [
        stacks(title, rows, names, colours, Scale.upto(max(sum(row.values) for row in rows)))
        for title, rows, names, colours in (
            ("milliseconds a token, end to end", tokens, PARTS, _PART_COLOURS),
            ("milliseconds a round, after the prefill", rounds, PARTS[1:], _PART_COLOURS[1:]),
        )
    ]


def _unsplit(entry: str) -> str:
    return " (not split)" if is_outside(entry) else ""


def memory(result: BenchResult) -> list[Drawing]:
    """MiB of a drafter's weights and of the largest state of a request."""
    rows = []
    for entry in series_of(result):
        own: Cell = result.means[entry]
        state = own.draft_state_mib
        shown = "?" if state is None else f"{state:.2f}"
        values = [own.draft_weights_mib, state or 0.0]
        rows.append(Stack(name=entry, values=values, text=f"{values[0]:.2f} + {shown}"))
    scale = Scale.upto(max([0.01, *(sum(row.values) for row in rows)]))
    return [stacks("MiB", rows, ("weights", "state"), ("p1", "p2"), scale)]


def _titled(name: str) -> str:
    return short_names([name], _TITLE)[0]
