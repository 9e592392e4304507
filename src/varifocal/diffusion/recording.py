"""Full runs as data: what gates read at every step, for them to be replayed on. [NumPy's .npz]

Letters: G canvas positions, S steps.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int32, Int64

from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.row import Row
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.statistics import Seen
from varifocal.errors import BadArtifact
from varifocal.sampling import Sampling

FORMAT, VERSION = "varifocal-diffusion-recording", 1
_DAMAGE = (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a recorded run depended on."""

    model: str
    sampler: str  # as typed
    format: str | None
    plan: Plan
    temperature: float
    seed: int
    mask: int
    stops: tuple[int, ...]
    prompt: tuple[int, ...]  # token ids

    @classmethod
    def of(cls, stored: dict[str, Any]) -> "Facts":
        """From JSON."""
        plan = dict(stored["plan"])
        plan["pins"] = tuple((int(at), int(token)) for at, token in plan["pins"])
        rest = {**stored, "plan": Plan(**plan)}
        return cls(**{**rest, **{name: tuple(rest[name]) for name in ("stops", "prompt")}})


@dataclass(frozen=True, kw_only=True)
class Recording:
    """One row of a full run. Memory: about G x S x 17 bytes; a third of that on disk."""

    facts: Facts
    argmax: Int32[np.ndarray, "S G"]
    confidence: Float32[np.ndarray, "S G"]
    gap: Float32[np.ndarray, "S G"]
    entropy: Float32[np.ndarray, "S G"]
    fresh: Bool[np.ndarray, "S G"]
    tokens: Int64[np.ndarray, " G"]  # committed
    token_confidence: Float32[np.ndarray, " G"]  # when they were
    token_step: Int64[np.ndarray, " G"]  # when that was; 0: pinned
    num_computed: Int64[np.ndarray, " S"]  # positions of each forward
    seconds: Float64[np.ndarray, "S 3"]  # forward, sample, other

    @property
    def num_steps(self) -> int:
        """S: the NFE of the full run."""
        return len(self.argmax)

    def seen(self, step: int) -> Seen:
        """What the forward of a step, counted from 1, said."""
        at = step - 1
        argmax, confidence = self.argmax[at].astype(np.int64), self.confidence[at]
        return Seen(
            fresh=self.fresh[at],
            argmax=argmax,
            confidence=confidence,
            picks=argmax,
            pick_confidence=confidence,
            gap=self.gap[at],
            entropy=self.entropy[at],
        )


_ARRAYS = [name for name in Recording.__dataclass_fields__ if name != "facts"]


class Recorder:
    """Notes the steps of one row."""

    def __init__(self, vocabulary: Vocabulary, sampling: Sampling) -> None:
        self._vocabulary, self._sampling = vocabulary, sampling
        self._seen: list[Seen] = []

    def add(self, row: Row) -> None:
        """The row's newest step."""
        assert row.seen is not None
        self._seen.append(row.seen)

    def recording(self, row: Row, prompt: Sequence[int]) -> Recording:
        """Of a row that has ended."""
        origin, decided, steps = row.origin, row.decided, row.steps
        facts = Facts(
            model=origin.model,
            sampler=origin.sampler,
            format=origin.format,
            plan=origin.plan,
            temperature=float(self._sampling.temperature),
            seed=origin.seed,
            mask=origin.mask,
            stops=tuple(sorted(self._vocabulary.stops)),
            prompt=tuple(prompt),
        )
        stacked = {
            name: np.stack([getattr(seen, name) for seen in self._seen])
            for name in ("argmax", "confidence", "gap", "entropy", "fresh")
        }
        return Recording(
            facts=facts,
            **{**stacked, "argmax": stacked["argmax"].astype(np.int32)},
            tokens=decided.tokens,
            token_confidence=decided.confidence,
            token_step=decided.step,
            num_computed=np.array([step.num_computed for step in steps], np.int64),
            seconds=np.array(
                [[s.forward_seconds, s.sample_seconds, s.other_seconds] for s in steps]
            ),
        )


def save_recordings(path: str | Path, recordings: Sequence[Recording]) -> None:
    """All of them in one file, which is written whole or not at all."""
    header = {
        "format": FORMAT,
        "version": VERSION,
        "rows": [asdict(recording.facts) for recording in recordings],
    }
    arrays = {
        f"{number}.{name}": getattr(recording, name)
        for number, recording in enumerate(recordings)
        for name in _ARRAYS
    }
    place = Path(path)
    partial = place.with_name(f".{place.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)
        partial.replace(place)
    finally:
        partial.unlink(missing_ok=True)


def load_recordings(path: str | Path) -> list[Recording]:
    """What `save_recordings` wrote. Executes nothing of the file."""
    try:
        with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            header = json.loads(str(stored["header"]))
            if header.get("format") != FORMAT or header.get("version") != VERSION:
                raise BadArtifact(
                    f"{path} is no recording of this version ({FORMAT} {VERSION}); record again"
                )
            return [
                Recording(
                    facts=Facts.of(facts),
                    **{name: stored[f"{number}.{name}"] for name in _ARRAYS},
                )
                for number, facts in enumerate(header["rows"])
            ]
    except FileNotFoundError as error:
        raise BadArtifact(
            f"there is no recording {path}; varifocal diffusion record writes one"
        ) from error
    except _DAMAGE as error:
        raise BadArtifact(f"{path} is damaged or no recording ({error}); record again") from error
