"""The rows of a benchmark as tables: for the terminal and as Markdown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from varifocal.diffusion.evaluation.bench import BenchResult
from varifocal.diffusion.evaluation.figures import SOLVED, Place, Row
from varifocal.evaluation.lead import FEW

BEYOND, UNCLEAR = "‼", "?"
MARKS = (
    f"Points of accuracy against full decoding, and end-to-end speed-up. {BEYOND}: more than 2.0 "
    f"points are lost. {UNCLEAR}: fewer are, but the 95 % interval passes 2.0 points. In brackets: "
    "forwards, where nothing can be timed."
)
_ALL = (
    "task", "canvas", "block", "gate", "items", "accuracy", "full", "points", "95 %", "agreement",
    "95 %", "helped", "hurt", "changed", "premature", "exits", "exit step 10/50/90 %", "same text",
    "whole blocks", "forwards", "of", "×", "95 %", "× same sampler", "95 %", "gate", "added",
    "gate ms", "step ms", "answer tokens/s", "how", "setting",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All gates of a model with a sampler, on all tasks and canvases."""

    model: str
    sampler: str
    is_baseline_sampler: bool
    places: tuple[Place, ...]
    rows: dict[tuple[str, Place], Row]

    @property
    def gates(self) -> list[str]:
        """In their order."""
        return list(dict.fromkeys(gate for gate, _ in self.rows))

    def name(self, place: Place) -> str:
        """Of a column."""
        task, canvas, block = place
        own = [other for other in self.places if other[0] == task]
        name = f"{task} {canvas}" if len({other[1] for other in own}) > 1 else task
        return f"{name} /{block}" if len({other[2] for other in own}) > 1 else name

    @property
    def title(self) -> str:
        """What it shows."""
        return f"{self.model}, {self.sampler}"


def grids(result: BenchResult) -> list[Grid]:
    """One for each model and sampler."""
    made = []
    groups = dict.fromkeys((row.model, row.sampler) for row in result.rows)
    for model, sampler in groups:
        own = [row for row in result.rows if (row.model, row.sampler) == (model, sampler)]
        made.append(
            Grid(
                model=model,
                sampler=sampler,
                is_baseline_sampler=own[0].is_baseline_sampler,
                places=tuple(dict.fromkeys(row.place for row in own)),
                rows={(row.gate, row.place): row for row in own},
            )
        )
    return made


def tables(result: BenchResult) -> Iterator[Table]:
    """For the terminal."""
    for grid in grids(result):
        table = Table(title=grid.title)
        table.add_column("gate", overflow="fold")
        for place in grid.places:
            table.add_column(grid.name(place), justify="right")
        for gate in grid.gates:
            cells = [_styled(grid.rows.get((gate, place))) for place in grid.places]
            table.add_row(gate, *cells)
        yield table


def _styled(row: Row | None) -> Text:
    if row is None:
        return Text("–", style="dim")
    return Text(cell(row), style="" if row.is_within else "red")


def cell(row: Row) -> str:
    """Points, mark and speed."""
    return f"{points(row)} {speed(row)}"


def points(row: Row) -> str:
    """Of accuracy, with the mark."""
    mark = BEYOND if not row.is_within else UNCLEAR if not row.is_clearly_within else ""
    return f"{100 * row.accuracy_delta:+.1f}{mark}"


def speed(row: Row) -> str:
    """Measured, or the forwards that are known instead."""
    return f"({row.nfe:.1f})" if row.speedup is None else f"{row.speedup:.2f}×"


def heading(result: BenchResult) -> str:
    """What was measured, where."""
    config, machine = result.config, result.machine
    device = machine["cpu"] if machine.get("device", "cpu") == "cpu" else machine["device"]
    models = ", ".join(f"{model['name']} in {model['dtype']}" for model in result.models)
    return (
        f"{models}: {config['limit']} {config['split']} questions a task"
        + (f" (after the first {config['skip']})" if config["skip"] else "")
        + f", {config['timed']} of "
        f"them timed by {result.clock} time on {config['threads']} thread"
        f"{'s' if config['threads'] != 1 else ''}, {device}; blocks of "
        + ", ".join(map(str, config["blocks"]))
        + (f", {config['caching']} cache" if config["caching"] != "none" else "")
    )


def notes(result: BenchResult) -> Iterator[str]:
    """What a reader must know to take the figures right; only what applies."""
    yield MARKS
    partly = {(row.task, row.canvas): row.fitting for row in result.rows if row.fitting < 1}
    if partly:
        listed = ", ".join(f"{task} on {canvas} {share:.0%}" for (task, canvas), share
                           in partly.items())  # fmt: skip
        yield f"Questions whose answer does not fit the canvas are left out; so many fit: {listed}."
    rivals = {row.items for row in result.rows}
    if len(rivals) > 1:
        yield (
            "Methods other than full, latch, cvc, eos_stop and oracle ran on the first "
            f"{min(rivals)} questions, and are compared with full decoding on these."
        )
    if 0 < result.config["timed"] < FEW:
        yield (
            f"With {result.config['timed']} timed questions the intervals of the speed-ups say "
            f"little; {FEW} or more do."
        )
    rechecked = sum(row.rechecked for row in result.rows)
    if rechecked:
        equal = sum(row.rechecked_equal for row in result.rows)
        yield (
            f"{equal} of {rechecked} timed runs are what the replay or the batch had said of the "
            "same question."
        )
    if unscored := sorted({row.task for row in result.rows if not row.is_scored}):
        yield (
            f"{', '.join(unscored)} has no right answers: its points are of texts that are as "
            "asked for, and stopping before its end is no merit."
        )
    weak = [row for row in result.rows if row.is_scored and row.accuracy_full < SOLVED]
    if weak:
        yield f"Where full decoding solves less than {SOLVED:.0%} a gate's loss says little."
    for reason in dict.fromkeys(f"{s['gate']}: {s['reason']}." for s in result.skipped):
        yield f"Left out: {reason}"


def markdown(result: BenchResult) -> str:
    """The grids, then every figure of every row."""
    made: list[str] = []
    for grid in grids(result):
        head = ["gate", *(grid.name(place) for place in grid.places)]
        lines = [[gate, *(_plain(grid.rows.get((gate, p))) for p in grid.places)]
                 for gate in grid.gates]  # fmt: skip
        made += [f"### {grid.title}", "", *_markdown(head, lines), ""]
    made += ["", *(f"- {note}" for note in notes(result)), "", "## All rows", ""]
    for grid in grids(result):
        lines = [figures(row) for row in grid.rows.values()]
        made += [f"### {grid.title}: all figures", "", *_markdown(_ALL, lines), ""]
    return "\n".join(made)


def _plain(row: Row | None) -> str:
    return "–" if row is None else cell(row)


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    rule = [":--", *["--:"] * (len(head) - 1)]
    return [f"| {' | '.join(c.replace('|', chr(92) + '|') for c in line)} |"
            for line in [head, rule, *lines]]  # fmt: skip


def all_columns() -> tuple[str, ...]:
    """The names of what `figures` gives."""
    return _ALL


def figures(row: Row) -> list[str]:
    """Every figure of a row."""
    return [
        row.task,
        f"{row.canvas}",
        f"{row.block}",
        row.gate,
        f"{row.items}",
        f"{row.accuracy:.3f}",
        f"{row.accuracy_full:.3f}",
        points(row),
        _ends(row.accuracy_delta_ci95, 100, 1),
        f"{row.agreement:.3f}",
        _ends(row.agreement_ci95, 1, 3),
        *(f"{count}" for count in (row.helped, row.hurt, row.changed)),
        f"{row.premature:.1%}",
        f"{row.exits:.1%}",
        " / ".join(f"{step:.0f}" for step in row.exit_quantiles) or "–",
        f"{row.same_text:.1%}",
        f"{row.early:.1%}",
        f"{row.nfe:.1f}",
        f"{row.nfe_full:.1f}",
        _number(row.speedup, 2),
        _ends(row.speedup_ci95, 1, 2),
        _number(row.speedup_sampler, 2),
        _ends(row.speedup_sampler_ci95, 1, 2),
        _share(row.gate_share),
        _share(row.added_share),
        _number(row.gate_milliseconds, 3),
        _number(row.step_milliseconds, 2),
        _number(row.answer_tokens_per_second, 0),
        "replayed" if row.is_replayed else "live",
        row.setting,
    ]


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def _number(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _ends(ends: tuple[float, float] | None, scale: int, digits: int) -> str:
    if ends is None:
        return "–"
    return "–".join(f"{scale * end:.{digits}f}" for end in ends).replace("–-", " to -")
