"""`varifocal targets`: which families of models can answer."""

from rich.table import Table

from varifocal.cli._options import OutputOptions
from varifocal.cli._output import Output
from varifocal.errors import UnsupportedTarget
from varifocal.targets import demo_folder, target_classes


def targets(output: OutputOptions) -> None:
    """List the families of targets."""
    embedded = _embedded()
    rows = []
    for name, cls in target_classes().items():
        types = list(cls.model_types)
        status = "supported; the embedded demo is one" if embedded in types else "supported"
        rows.append({"name": name, "model_types": types, "tested": cls.tested, "status": status})
    out = Output(output)
    out.write({"targets": rows})
    table = Table("target", "model types", "tested with", "status")
    for row in rows:
        listed = ", ".join(row["model_types"])
        table.add_row(str(row["name"]), listed, str(row["tested"]), str(row["status"]))
    out.table(table)


def _embedded() -> str | None:
    """The model type of the embedded model, if it is there."""
    import json

    try:
        config = json.loads((demo_folder() / "config.json").read_text(encoding="utf-8"))
    except (UnsupportedTarget, OSError, ValueError):
        return None
    return str(config.get("model_type"))
