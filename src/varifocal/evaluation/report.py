"""A benchmark as a folder to show: a page, Markdown, LaTeX, CSV, JSON, a picture."""

import json
from pathlib import Path

from varifocal.errors import BadOption
from varifocal.evaluation.figures import BenchResult
from varifocal.evaluation.page import page, speedups
from varifocal.evaluation.picture import described, png
from varifocal.evaluation.text import csv_file, latex, markdown_page
from varifocal.training.artifacts import write_atomically

JOURNAL = "journal.jsonl"  # the runs that a report is made of, beside it


def write_report(result: BenchResult, folder: Path) -> None:
    """All is made before the first file is written; each file appears whole or not at all."""
    files = {
        "bench.json": json.dumps(result.to_dict(), ensure_ascii=False, indent=1).encode(),
        "bench.csv": csv_file(result).encode(),
        "bench.md": markdown_page(result, described(speedups(result))).encode(),
        "bench.tex": latex(result).encode(),
        "bench.png": png(result),
        "index.html": page(result).encode(),
    }
    _made(folder)
    for name, data in files.items():
        write_atomically(folder / name, data)


def claim(folder: Path, *, is_fresh: bool = False) -> None:
    """Make the folder; raise BadOption if it holds something else than a benchmark's runs.

    `is_fresh`: write into it all the same. Hidden files do not count.
    """
    _made(folder)
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names and JOURNAL not in names and not is_fresh:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        raise BadOption(
            f"--report wants a new or empty folder, or one in which this benchmark was begun; "
            f"{folder} holds {', '.join(names[:3])}{more} and no {JOURNAL}. Name another, or "
            "--fresh to write into it"
        )


def _made(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"the report needs a folder, and {folder} cannot be one ({error.strerror or error}); "
            "name another with --report"
        ) from error
