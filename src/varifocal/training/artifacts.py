"""Artifacts: what a frozen target computed for recorded texts, as checked shards on disk."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from varifocal.errors import BadArtifact
from varifocal.training._files import LOCK as LOCK  # what recordings need of a folder
from varifocal.training._files import MANIFEST as MANIFEST
from varifocal.training._files import locked as locked
from varifocal.training._files import write_atomically as write_atomically

FORMAT, VERSION = "varifocal-artifacts", 1
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
_SORTED_TOGETHER = 32  # batches whose samples are sorted by length among themselves


@dataclass(frozen=True)
class Artifact:
    """One recorded conversation: T tokens, M of them visual, in a target of width D."""

    id: str
    family: str
    tokens: Int64[Tensor, " T"]
    image_of: Int64[Tensor, " T"]  # the picture whose slot this is, -1 for text
    supervised: Bool[Tensor, " T"]  # answer tokens, the end token included
    final: Float[Tensor, "T D"]  # the state after the last norm, which the head reads
    visual: Float[Tensor, "M D"]  # projected visual tokens, in slot order
    mid: Float[Tensor, "T D"] | None = (
        None  # of the layer of least attention entropy; 0 before answers
    )
    taps: Float[Tensor, "T L D"] | None = None  # states leaving `tap_layers`
    tap_layers: tuple[int, ...] = ()  # counted from 1

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True)
class Row:
    """A sample as the manifest lists it."""

    id: str
    family: str
    length: int
    num_visual: int
    num_supervised: int
    mid_start: int  # `mid` is stored from this position on


@dataclass(frozen=True)
class Shard:
    """A file of the store."""

    file: str
    sha256: str
    num_bytes: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the recording depends on; a folder holds recordings of one origin only."""

    target: str
    fingerprint: str
    vocab_size: int
    hidden_size: int
    layers: tuple[int, ...]  # searched for `mid`, counted from 1
    answers: str  # "target" or "reference"
    max_new_tokens: int  # of a regenerated answer
    dtype: str  # of the states on disk
    taps: tuple[int, ...] = ()  # layers whose states are kept, counted from 1


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The list of everything in a folder of artifacts. Replaced atomically after each shard."""

    origin: Origin
    shards: tuple[Shard, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)  # id -> why it is not here

    @property
    def rows(self) -> list[Row]:
        return [row for shard in self.shards for row in shard.rows]

    @property
    def num_supervised(self) -> int:
        return sum(row.num_supervised for row in self.rows)

    @property
    def num_bytes(self) -> int:
        return sum(shard.num_bytes for shard in self.shards)

    def write(self, folder: Path) -> None:
        """Replace the folder's manifest."""
        counts = {
            "num_samples": len(self.rows),
            "num_tokens": sum(row.length for row in self.rows),
            "num_supervised": self.num_supervised,
        }
        content = {"format": FORMAT, "version": VERSION, **counts, **asdict(self)}
        write_atomically(folder / MANIFEST, json.dumps(content).encode())

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """The folder's manifest; raises BadArtifact when it is missing or damaged."""
        path = folder / MANIFEST
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BadArtifact(
                f"{folder} holds no {MANIFEST}, so no artifacts. Make some with "
                f"`varifocal record --target demo --data demo --out {folder}`"
            ) from None
        except (OSError, ValueError) as error:
            raise BadArtifact(f"{path} is damaged ({error}); {_again(folder)}") from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise BadArtifact(f"{path} is no list of artifacts; {_again(folder)}")
        if content.get("version") != VERSION:
            raise BadArtifact(
                f"{path} has format version {content.get('version')}, wanted {VERSION}; "
                f"{_again(folder)}"
            )
        try:
            return cls(
                origin=_origin(content["origin"]),
                shards=tuple(_shard(entry) for entry in content["shards"]),
                skipped=dict(content["skipped"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise BadArtifact(f"{path} lacks or misspells {error}; {_again(folder)}") from error


class ArtifactStore:
    """Recorded samples by number, read from disk when asked for; states come as float32."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.rows = manifest.rows
        self._ends = list(accumulate(len(shard.rows) for shard in manifest.shards))
        self._files: dict[int, Any] = {}

    @classmethod
    def open(cls, folder: Path, *, check: bool = True) -> "ArtifactStore":
        """The store in a folder. `check` reads every byte once and compares checksums."""
        manifest = Manifest.read(folder)
        for shard in manifest.shards:
            check_shard(folder, shard, contents=check)
        return cls(folder, manifest)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Artifact:
        s, k, tokens = self._place(number)
        rows = self.manifest.shards[s].rows
        row, before = rows[k], rows[:k]
        seen = sum(r.num_visual for r in before)
        visual = slice(seen, seen + row.num_visual)
        mid_at = sum(r.length - r.mid_start for r in before)
        file = self._open(s)
        mid = None
        if self.manifest.origin.layers:
            mid = torch.zeros(row.length, self.manifest.origin.hidden_size)
            mid[row.mid_start :] = file.get_slice("mid")[
                mid_at : mid_at + row.length - row.mid_start
            ]
        return Artifact(
            id=row.id,
            family=row.family,
            tokens=file.get_slice("tokens")[tokens].long(),
            image_of=file.get_slice("image_of")[tokens].long(),
            supervised=file.get_slice("supervised")[tokens].bool(),
            final=file.get_slice("final")[tokens].float(),
            visual=file.get_slice("visual")[visual].float(),
            mid=mid,
            taps=file.get_slice("taps")[tokens].float() if self.manifest.origin.taps else None,
            tap_layers=self.manifest.origin.taps,
        )

    def answer(self, number: int) -> Int64[Tensor, " n"]:
        """The supervised tokens of a sample; its states are not read."""
        s, _, tokens = self._place(number)
        file = self._open(s)
        marks = file.get_slice("supervised")[tokens].bool()
        said: Tensor = file.get_slice("tokens")[tokens].long()[marks]
        return said

    def _place(self, number: int) -> tuple[int, int, slice]:
        """The shard of a sample, its number there, and its tokens."""
        if not 0 <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        s = bisect_right(self._ends, number)
        rows = self.manifest.shards[s].rows
        k = number - (self._ends[s - 1] if s else 0)
        at = sum(r.length for r in rows[:k])
        return s, k, slice(at, at + rows[k].length)

    def _open(self, number: int) -> Any:
        if number not in self._files:
            path = self.folder / self.manifest.shards[number].file
            try:
                self._files[number] = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise BadArtifact(f"{path} cannot be read ({error}); {_again(path)}") from error
        return self._files[number]

    @property
    def all(self) -> "Subset":
        """Every sample."""
        return Subset(self, tuple(range(len(self))))

    def split(self, valid: float | Collection[str] = 0.05) -> tuple["Subset", "Subset"]:
        """Training and held-out samples: a share chosen by a hash of the id, or explicit ids.

        A hash, so that an id stays on its side whatever else is recorded.
        """
        if isinstance(valid, float | int):
            held_out = {row.id for row in self.rows if _share_of(row.id) < valid}
        else:
            held_out = set(valid)
            unknown = held_out - {row.id for row in self.rows}
            if unknown:
                raise BadArtifact(
                    f"{self.folder} holds no sample {min(unknown)!r} ({len(unknown)} such ids)"
                )
        sides: tuple[list[int], list[int]] = ([], [])
        for number, row in enumerate(self.rows):
            sides[row.id in held_out].append(number)
        return Subset(self, tuple(sides[0])), Subset(self, tuple(sides[1]))


@dataclass(frozen=True)
class Subset:
    """Some samples of a store, in an order that is a pure function of a seed and a batch number."""

    store: ArtifactStore
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, k: int) -> Artifact:
        return self.store[self.numbers[k]]

    def __iter__(self) -> Iterator[Artifact]:
        return (self.store[number] for number in self.numbers)

    @cached_property
    def num_supervised(self) -> int:
        """Answer tokens in all of it."""
        return sum(self.store.rows[number].num_supervised for number in self.numbers)

    def answer_counts(self) -> Int64[Tensor, " V"]:
        """How often each token is said in the answers."""
        size = self.store.manifest.origin.vocab_size
        counts = torch.zeros(size, dtype=torch.int64)
        for number in self.numbers:
            counts += torch.bincount(self.store.answer(number), minlength=size)
        return counts

    @cached_property
    def digest(self) -> str:
        """Changes when a sample is added, removed or recorded anew."""
        parts = [self.store.manifest.origin.fingerprint]
        parts += [shard.sha256 for shard in self.store.manifest.shards]
        return hashlib.sha256(repr((parts, self.numbers)).encode()).hexdigest()[:16]

    def num_batches(self, size: int) -> int:
        """Batches an epoch; the last one may be smaller."""
        return -(-len(self) // size)

    def epoch(self, number: int, size: int, seed: int) -> list[list[int]]:
        """Sample numbers of each batch of an epoch: shuffled, but of similar lengths in a batch."""
        rng = Random(f"{seed}/{number}")
        order = list(self.numbers)
        rng.shuffle(order)
        batches = []
        for start in range(0, len(order), size * _SORTED_TOGETHER):
            together = order[start : start + size * _SORTED_TOGETHER]
            together.sort(key=lambda n: self.store.rows[n].length)
            batches += [together[i : i + size] for i in range(0, len(together), size)]
        rng.shuffle(batches)
        return batches

    def batches(self, size: int, seed: int, *, start: int = 0) -> Iterator[list[Artifact]]:
        """Batch number `start` and all after it, epoch after epoch, without end."""
        per_epoch = self.num_batches(size)
        if not per_epoch:
            raise BadArtifact(f"there are no samples to train on in {self.store.folder}")
        number = start // per_epoch
        skip = start % per_epoch
        while True:
            for batch in self.epoch(number, size, seed)[skip:]:
                yield [self.store[n] for n in batch]
            number, skip = number + 1, 0


def write_shard(folder: Path, file: str, samples: Sequence[Artifact], dtype: str) -> Shard:
    """Write samples as one file, whole or not at all."""
    rows = tuple(_row(sample) for sample in samples)
    stored = DTYPES[dtype]
    tensors = {
        "tokens": torch.cat([s.tokens for s in samples]).int(),
        "image_of": torch.cat([s.image_of for s in samples]).short(),
        "supervised": torch.cat([s.supervised for s in samples]),
        "final": torch.cat([s.final for s in samples]).to(stored),
        "visual": torch.cat([s.visual for s in samples]).to(stored),
    }
    mids = [s.mid[r.mid_start :] for s, r in zip(samples, rows, strict=True) if s.mid is not None]
    if mids:
        tensors["mid"] = torch.cat(mids).to(stored)
    taps = [s.taps for s in samples if s.taps is not None]
    if taps:
        tensors["taps"] = torch.cat(taps).to(stored)
    data = save({name: t.cpu().contiguous() for name, t in tensors.items()})
    write_atomically(folder / file, data)
    return Shard(file, hashlib.sha256(data).hexdigest(), len(data), rows)


def check_shard(folder: Path, shard: Shard, *, contents: bool) -> None:
    """Raise BadArtifact unless the file is the one that was written."""
    if damage := damage_of(folder, shard, contents=contents):
        raise BadArtifact(f"{damage}; {_again(folder / shard.file)}")


def damage_of(folder: Path, shard: Shard, *, contents: bool) -> str | None:
    """What is wrong with a file, or None if it is the one that was written."""
    path = folder / shard.file
    try:
        size = path.stat().st_size
        if size != shard.num_bytes:
            return f"{path} has {size} bytes, wanted {shard.num_bytes}"
        if contents:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != shard.sha256:
                    return f"{path} is damaged (its checksum is wrong)"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None


def _row(sample: Artifact) -> Row:
    supervised = sample.supervised.nonzero()
    first = int(supervised[0]) if len(supervised) else len(sample)
    return Row(
        id=sample.id,
        family=sample.family,
        length=len(sample),
        num_visual=len(sample.visual),
        num_supervised=len(supervised),
        mid_start=max(0, first - 1),
    )


def _origin(entry: dict[str, Any]) -> Origin:
    lists = {"layers": tuple(entry["layers"]), "taps": tuple(entry.get("taps", ()))}
    return Origin(**{**entry, **lists})


def _shard(entry: dict[str, Any]) -> Shard:
    rows = tuple(Row(**row) for row in entry["rows"])
    return Shard(str(entry["file"]), str(entry["sha256"]), int(entry["num_bytes"]), rows)


def _share_of(id: str) -> float:
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:6], "big") / 2**48


def _again(path: Path) -> str:
    return (
        f"delete {path} and run the same `varifocal record` command again: it makes what is missing"
    )
