"""A benchmark of gates as a folder to show: a page, Markdown, JSON, a picture."""

import json
from pathlib import Path

from varifocal.diffusion.evaluation.bench import BenchResult
from varifocal.diffusion.evaluation.page import described, page, png
from varifocal.diffusion.evaluation.summary import story
from varifocal.diffusion.evaluation.table import heading, markdown
from varifocal.errors import BadOption
from varifocal.training.artifacts import write_atomically

CELLS = "cells"  # what the report is made of, beside it


def write_report(result: BenchResult, folder: Path) -> None:
    """All is made before the first file is written; each file appears whole or not at all."""
    files = {
        "bench.json": json.dumps(result.to_dict(), ensure_ascii=False, indent=1).encode(),
        "bench.md": markdown_page(result).encode(),
        "bench.png": png(result),
        "index.html": page(result).encode(),
    }
    for name, data in files.items():
        write_atomically(folder / name, data)


def claim(folder: Path, *, is_fresh: bool = False) -> Path:
    """Make the folder, and say where its pieces are kept.

    Raises BadOption if it holds something else than a benchmark; not with `is_fresh`.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(
            f"the report needs a folder, and {folder} cannot be one ({error.strerror or error}); "
            "name another with --report"
        ) from error
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    if names and CELLS not in names and not is_fresh:
        raise BadOption(
            "--report wants a new or empty folder, or one in which a benchmark of gates was begun; "
            f"{folder} holds {', '.join(names[:3])}. Name another, or --fresh to write into it"
        )
    return folder / CELLS


def markdown_page(result: BenchResult) -> str:
    """What came out, every row, and where it was measured."""
    facts = {"commit": result.commit, "clock": result.clock, "seed": result.seed, **result.machine}
    return "\n".join(
        [
            "# varifocal diffusion bench",
            "",
            f"**{heading(result)}**",
            "",
            result.frozen,
            "",
            *(f"- {sentence}" for sentence in story(result.rows, result.summaries)),
            "",
            f"![{described(result)}](bench.png)",
            "",
            markdown(result),
            "## What the numbers mean",
            "",
            *(f"- {name}: {text}" for name, text in result.definitions.items()),
            "",
            "## Measured with",
            "",
            *(f"- {name}: {value}" for name, value in facts.items()),
            "",
        ]
    )
