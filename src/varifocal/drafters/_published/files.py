"""The files of a published checkpoint: config, and tensors whatever container they are in."""

import json
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from varifocal.errors import BadArtifact

CONFIG = "config.json"
_SAFE, _PICKLED = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"
WEIGHTS = (_SAFE, _SAFE + _INDEX, _PICKLED, _PICKLED + _INDEX)
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_MAPS = (torch.int64, torch.int32, torch.bool, torch.uint8)  # of vocabularies
_OUTSIDE = ("lm_head.", "d2t", "t2d")  # what engines leave in place when they write "model."
_CACHED = "models--"  # how the hub's cache names the folder of a repository


@dataclass(frozen=True)
class Checkpoint:
    """A folder in a published layout, read whole."""

    folder: Path
    name: str  # for people: the hub's, or that of the folder
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]  # by their published names, without a leading "model."

    @property
    def dtype(self) -> torch.dtype:
        """That of the weights; float32 where they have several."""
        found = {t.dtype for t in self.tensors.values() if t.is_floating_point()}
        return found.pop() if len(found) == 1 else torch.float32

    def refuse(self, reason: str) -> NoReturn:
        """It is sound, but not what can be drafted with here."""
        raise BadArtifact(f"{self.name} cannot be loaded: {reason}")


def read_config(folder: Path) -> dict[str, Any]:
    """Raises BadArtifact where it is missing or no JSON object."""
    path = folder / CONFIG
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadArtifact(
            f"{path} cannot be read ({error.strerror}); a published drafter has its settings there"
        ) from error
    except ValueError as error:
        raise BadArtifact(f"{path} is damaged ({error}); fetch it again") from error
    if not isinstance(content, dict):
        raise BadArtifact(f"{path} holds no JSON object; fetch it again")
    return content


def read_checkpoint(folder: Path) -> Checkpoint:
    """Config and tensors. Raises BadArtifact for what is missing, damaged or quantized."""
    config, path = read_config(folder), _weights_of(folder)
    if "quantization_config" in config:
        raise BadArtifact(
            f"{folder} is quantized; take the checkpoint that it was made of, in float32, float16 "
            "or bfloat16"
        )
    tensors = _without_prefix(_read(path))
    if not tensors:
        raise BadArtifact(f"{path} holds no tensors; fetch it again")
    for name, tensor in tensors.items():
        if tensor.dtype not in (*_FLOATS, *_MAPS):
            raise BadArtifact(
                f"{name} in {path} is {str(tensor.dtype).removeprefix('torch.')}; wanted float32, "
                "float16 or bfloat16. Take the checkpoint before it was quantized"
            )
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise BadArtifact(f"{name} in {path} holds NaN or infinity; fetch it again")
    return Checkpoint(folder, name_of(folder), config, tensors)


def name_of(folder: Path) -> str:
    """The hub's name of a folder in its cache, else the folder's own."""
    for part in folder.resolve().parts:
        if part.startswith(_CACHED):
            return part.removeprefix(_CACHED).replace("--", "/", 1)
    return folder.resolve().name


def _weights_of(folder: Path) -> Path:
    found = [folder / name for name in WEIGHTS if (folder / name).exists()]
    if not found:
        raise BadArtifact(
            f"{folder} has none of {', '.join(WEIGHTS)}: it holds no weights. Fetch them too"
        )
    if found[1:]:
        raise BadArtifact(
            f"{folder} holds {' and '.join(path.name for path in found)}, and nothing says which "
            "of them counts; keep one of them in the folder"
        )
    return found[0]


def _read(path: Path) -> dict[str, Tensor]:
    if path.name.endswith(_INDEX):
        return _read_shards(path)
    return _read_pickled(path) if path.suffix == ".bin" else _read_safe(path)


def _read_safe(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise _damaged(path, error) from error


def _read_pickled(path: Path) -> dict[str, Tensor]:
    """Tensors alone: nothing else in such a file is ever run or kept."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    # What a damaged file raises depends on the place of the damage.
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, pickle.PickleError) as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict) or not all(isinstance(t, Tensor) for t in content.values()):
        raise BadArtifact(
            f"{path} is no plain dict of tensors (a whole training state?); fetch the weights that "
            "were published for inference"
        )
    return {str(name): tensor for name, tensor in content.items()}


def _read_shards(path: Path) -> dict[str, Tensor]:
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(map(str, listed.values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, error) from error
    if any(Path(shard).name != shard for shard in shards):
        raise BadArtifact(f"{path} names files outside its folder; fetch it again")
    if gone := [shard for shard in shards if not (path.parent / shard).exists()]:
        raise BadArtifact(
            f"{path} names {', '.join(gone)}, which {'is' if len(gone) == 1 else 'are'} missing; "
            "fetch all shards"
        )
    tensors: dict[str, Tensor] = {}
    for shard in shards:
        held = _read(path.parent / shard)
        wrong = {name for name in held if listed.get(name) != shard}
        wrong |= {name for name, place in listed.items() if place == shard and name not in held}
        if wrong:
            raise BadArtifact(
                f"{path} and {shard} do not agree on where {', '.join(sorted(wrong)[:5])} is; "
                "fetch all of them again"
            )
        tensors |= held
    return tensors


def _damaged(path: Path, error: Exception) -> BadArtifact:
    reason = " ".join(str(error).split())[:200]
    return BadArtifact(
        f"{path} is missing, cut short or damaged ({type(error).__name__}: {reason}); fetch it "
        "again"
    )


def _without_prefix(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Names as the authors give them, where an engine wrote "model." before them."""
    inner = [name for name in tensors if not name.startswith(_OUTSIDE)]
    if not inner or not all(name.startswith("model.") for name in inner):
        return tensors
    return dict(_renamed(tensors))


def _renamed(tensors: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors.items():
        yield name.removeprefix("model."), tensor
