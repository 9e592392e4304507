"""The state of a training run on disk: everything that the next step depends on, atomically."""

import io
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import torch

from varifocal.errors import BadArtifact
from varifocal.training.artifacts import write_atomically

logger = logging.getLogger(__name__)
STATE, LOG = "trainer_state.pt", "log.jsonl"


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint; a kill in between leaves the old one whole."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any]:
    """Read a checkpoint; raises BadArtifact when it is damaged."""
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        return state
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise BadArtifact(
            f"{path} is damaged ({str(error).splitlines()[0]}); delete it and train again"
        ) from error


class Log:
    """JSON lines, one a report; after a resume it goes on where the checkpoint was."""

    def __init__(self, folder: Path, step: int) -> None:
        self.path = folder / LOG
        kept = [line for line in self._lines() if line.get("step", 0) <= step] if step else []
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
        self._board = _board(folder, step)

    def _lines(self) -> list[dict[str, Any]]:
        lines = []
        for line in (
            self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        ):
            try:
                lines.append(json.loads(line))
            except ValueError:  # the last line before a kill
                continue
        return lines

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        """Add a line, and a point to each curve of TensorBoard."""
        finite = {k: v if abs(v) < float("inf") else None for k, v in values.items()}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, "kind": kind, **finite}) + "\n")
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Flush TensorBoard."""
        if self._board is not None:
            self._board.close()


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        logger.info("no TensorBoard curves: install varifocal[train] for them")
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)
