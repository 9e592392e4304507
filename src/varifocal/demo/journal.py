"""Keep what a training run must not lose: its checkpoint, its log, and when each is due."""

import json
import time
from pathlib import Path
from typing import Any

import torch


def save_atomically(payload: object, path: Path) -> None:
    """Write a checkpoint so that a kill in between leaves the old one whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    torch.save(payload, fresh)
    fresh.replace(path)


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Add one JSON line to a log file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as log:
        log.write(json.dumps(record) + "\n")


class Every:
    """Says when so many seconds have passed since it last said so."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self._last = seconds, time.monotonic()

    def is_due(self) -> bool:
        if time.monotonic() - self._last < self.seconds:
            return False
        self._last = time.monotonic()
        return True
