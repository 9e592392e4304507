"""`varifocal drafters`: what there is to draft with."""

from rich.table import Table

from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.drafters import drafter_class, drafter_names


def drafters(output: OutputOptions) -> None:
    """List the drafters."""
    rows = []
    for name in drafter_names():
        cls = drafter_class(name)
        rows.append(
            {
                "name": name,
                "trained": cls.needs != "nothing",
                "needs": cls.needs,
                "pictures": cls.pictures,
            }
        )
    out = Output(output)
    out.write({"drafters": rows})
    table = Table("drafter", "trained", "needs", "pictures")
    for row in rows:
        table.add_row(
            str(row["name"]),
            "yes" if row["trained"] else "no",
            str(row["needs"]),
            str(row["pictures"]),
        )
    out.table(table)
