"""`varifocal sparse`: dynamic sparse attention with PRR, held to what it promises."""

from collections import Counter
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.table import Table

from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.errors import BadOption


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """The random cases to compare on."""

    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="How many cases; 100 take a few seconds.")
    ] = 700
    seed: Annotated[int, typer.Option("--seed", help="Which cases are drawn.")] = 0


def verify(cases: CaseOptions, output: OutputOptions) -> None:
    """Compare PRR with plain sparse attention, bit for bit, over random cases.

    Each case is one predictor on one drawn setting: selector, block size, page layout, batch,
    heads, precision, drafted and rejected tokens. Exit code 0: all are identical; 1: one is not.
    """
    from varifocal.sparse.cases import check_cases

    if cases.limit < 1:
        raise BadOption(f"--limit must be at least 1, got {cases.limit}")
    out = Output(output)
    counts, identical, different = Counter[str](), Counter[str](), []
    for setting, predictor, is_same in check_cases(cases.limit, seed=cases.seed):
        counts[predictor] += 1
        identical[predictor] += is_same
        if not is_same:
            different.append(f"{predictor}: {setting}")
    out.write({"requests": counts.total(), "identical": identical.total()})
    table = Table("predictor", "cases", "identical to plain")
    for predictor, count in counts.items():
        table.add_row(predictor, str(count), str(identical[predictor]))
    out.table(table)
    for named in different[:3]:
        out.note(f"differs: {named}")
    if different:
        raise typer.Exit(1)
