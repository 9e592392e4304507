"""A benchmark as text to take along: Markdown, LaTeX with booktabs, CSV."""

import csv
from collections.abc import Sequence
from io import StringIO
from typing import Any

from varifocal.evaluation import sheet
from varifocal.evaluation.experiment import ALL, Figure
from varifocal.evaluation.figures import BenchResult
from varifocal.evaluation.grid import (
    MARKS,
    MEAN,
    NGRAM,
    Cell,
    best_of,
    columns_of,
    grid_of,
    is_best,
    mark,
)
from varifocal.evaluation.sheet import escaped
from varifocal.evaluation.story import story
from varifocal.evaluation.table import heading, markdown, verdict


def markdown_page(result: BenchResult, alt: str) -> str:
    """The paper's table, what leads and why, every row, and where it was measured."""
    facts = [f"- {name}: {value}" for name, value in facts_of(result).items()]
    defined = [f"- {name}: {text}" for name, text in result.definitions.items()]
    return "\n".join(
        ["# varifocal bench", "", f"**{heading(result)}**", "", *_outcome(result),
         *_spaced(story(result)), f"![{alt}](bench.png)", "", *_paper_table(result), "",
         "tau / decode speed-up; bold: the best of a column. " + MARKS, "", "## All rows", "",
         markdown(result), "## Kinds of tokens and stages", "", *defined, "", "## Measured with",
         "", *facts, ""]
    )  # fmt: skip


def _outcome(result: BenchResult) -> list[str]:
    if result.outcome is None:
        return []
    source = result.outcome.experiment.source
    return [f"## {source}, measured here", "", *sheet.markdown(result.outcome), "## What leads", ""]


def _spaced(sentences: Sequence[str]) -> list[str]:
    return [" ".join(sentences), ""]


def _paper_table(result: BenchResult) -> list[str]:
    columns, grid = columns_of(result), grid_of(result)
    tau, gain = best_of(result, "tau"), best_of(result, "decode_speedup")

    def bold(text: str, is_bold: bool) -> str:
        return f"**{text}**" if is_bold else text

    lines = [["method", "texts", *columns], [":--"] * (2 + len(columns))]
    for entry, cells in grid.items():
        made = [entry, verdict(result.means[entry])]
        for column, cell in cells.items():
            a = bold(f"{cell.tau:.2f}", is_best(result, tau, entry, column, "tau"))
            is_top = is_best(result, gain, entry, column, "decode_speedup")
            made.append(f"{a} / {bold(_markdown_gain(cell), is_top)}")
        lines.append(made)
    floor = next(iter(grid.values()))
    lines.append([NGRAM, "", *(f"{cell.ngram_tau:.2f} / –" for cell in floor.values())])
    return ["| " + " | ".join(x.replace("|", "\\|") for x in line) + " |" for line in lines]


def _markdown_gain(cell: Cell) -> str:
    gain = f"{cell.decode_speedup:.2f}×"
    return f"{f'~~{gain}~~' if cell.different else gain}{mark(cell)}"


def latex(result: BenchResult) -> str:
    """A table for a paper; it needs booktabs and nothing else."""
    if result.outcome is not None:
        where = [f"% {heading(result)}", f"% commit {result.commit}, seed {result.seed}"]
        return "\n".join([*where, *sheet.latex(result.outcome)])
    columns, grid = columns_of(result), grid_of(result)
    tau, gain = best_of(result, "tau"), best_of(result, "decode_speedup")
    rows = []
    for entry, cells in grid.items():
        made = [escaped(entry)]
        for column, cell in cells.items():
            a, b = f"{cell.tau:.2f}", _latex_gain(cell)
            if is_best(result, tau, entry, column, "tau"):
                a = rf"\textbf{{{a}}}"
            if is_best(result, gain, entry, column, "decode_speedup"):
                b = rf"\textbf{{{b}}}"
            made += [a, b]
        rows.append(" & ".join(made) + r" \\")
    floor = [f"{cell.ngram_tau:.2f} & --" for cell in next(iter(grid.values())).values()]
    ends = [(2 * n + 2, 2 * n + 3) for n in range(len(columns))]
    texts = "; ".join(f"{entry}: {verdict(mean)}" for entry, mean in result.means.items())
    return "\n".join(
        [f"% {heading(result)}", f"% commit {result.commit}, seed {result.seed}",
         f"% texts against plain decoding: {texts}",
         r"\begin{tabular}{l" + "rr" * len(columns) + "}", r"\toprule",
         " & ".join(["", *(rf"\multicolumn{{2}}{{c}}{{{escaped(c)}}}" for c in columns)]) + r" \\",
         " ".join(rf"\cmidrule(lr){{{a}-{b}}}" for a, b in ends),
         " & ".join(["Method", *[r"$\tau$ & $\times$"] * len(columns)]) + r" \\", r"\midrule",
         *rows, r"\midrule", " & ".join([escaped(NGRAM), *floor]) + r" \\", r"\bottomrule",
         r"\end{tabular}", ""]
    )  # fmt: skip


def _latex_gain(cell: Cell) -> str:
    """In brackets where it does not count; the exponent counts the texts that are not the same."""
    gain = f"{cell.decode_speedup:.2f}"
    if not cell.is_compared:
        return rf"{gain}$^\circ$"
    if cell.different:
        return rf"[{gain}]$^{{\neq {cell.different}}}$"
    return rf"{gain}$^{{\approx {cell.near_tie}}}$" if cell.near_tie else gain


def csv_file(result: BenchResult) -> str:
    """A line per entry and family, then the means; each with where it was measured."""
    content = result.to_dict()
    rows, means, lead = content.pop("rows"), content.pop("means"), content.pop("lead")
    entries = content.pop("entries")
    del content["rule"], content["definitions"], content["outcome"]
    where = _flat(content, "bench.")
    known = _figures(result)
    made = [
        {"kind": "family"} | _flat(row) | known.get((row["drafter"], row["family"]), {}) | where
        for row in rows
    ]
    for drafter, mean in means.items():
        gap = (lead or {"over": {}})["over"].get(drafter, {})
        own = _flat(mean) | _flat(gap, "lead_over_it.") | known.get((drafter, ALL), {})
        made.append({"kind": MEAN, "drafter": drafter} | own | where)
    for line in made:
        line["given"] = entries.get(line["drafter"], line["drafter"])
    text = StringIO()
    names = dict.fromkeys(name for line in made for name in line)
    writer = csv.DictWriter(text, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(made)
    return text.getvalue()


def _figures(result: BenchResult) -> dict[tuple[str, str], dict[str, Any]]:
    """What a paper's table has besides, by entry and column."""
    figures: tuple[Figure, ...] = () if result.outcome is None else result.outcome.figures
    return {
        (figure.drafter, figure.family): {
            "outcome.rank": figure.rank,
            "outcome.latency_ratio": figure.latency_ratio,
            "outcome.expected_speedup": figure.expected_speedup,
            "outcome.verify_ratio": figure.verify_ratio,
        }
        for figure in figures
    }


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            made |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            made[prefix + name] = " ".join(map(str, value))
        else:
            made[prefix + name] = value
    return made


def facts_of(result: BenchResult) -> dict[str, Any]:
    """Where the figures come from."""
    names = ("target", "suite", "dtype", "clock", "repeats", "seed", "commit", "sittings")
    sampling = ", ".join(f"{name} {value}" for name, value in result.sampling.items())
    own = {name: getattr(result, name) for name in names}
    return own | {"sampling": sampling} | result.machine
