"""Weights of a masked transformer in published files: every tensor checked, none guessed."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from varifocal.diffusion.layouts import Layout
from varifocal.diffusion.model import MaskedTransformer
from varifocal.errors import BadArtifact

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_COMPUTED = "rotary_emb.inv_freq"  # old files of Qwen2's layout hold what is computed anyway
_AGAIN = "fetch or copy the files again from where the model was published"


@dataclass(frozen=True)
class _Entry:
    """Where a tensor is, as the header of its file says."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


def read_tensors(
    model: MaskedTransformer,
    layout: Layout,
    folder: Path,
    name: str,
    dtype: torch.dtype | None,
    device: torch.device,
) -> None:
    """Fill a model made on the meta device. Raises BadArtifact for what does not fit, by name.

    All names, shapes and precisions are checked before the first weight is read.
    """
    held = _entries(folder, name)
    wanted = {layout.named(ours): (ours, weight) for ours, weight in _parameters(model).items()}
    twin = layout.named("head.weight") if model.config.tied else None
    _check_names(set(wanted), {t for t in held if t != twin}, name)
    for theirs, (_, weight) in wanted.items():
        _check_entry(theirs, held[theirs], weight, name)
    dtype = dtype or _precision({held[theirs].dtype for theirs in wanted}, device)
    state: dict[str, Tensor] = {}
    for file in sorted({held[theirs].file for theirs in wanted}):
        here = [theirs for theirs in wanted if held[theirs].file == file]
        for theirs, tensor in _read(file, here).items():
            if not bool(tensor.isfinite().all()):
                raise BadArtifact(f"{theirs} of {name} holds NaN or infinity; {_AGAIN}")
            state[wanted[theirs][0]] = tensor.to(device=device, dtype=dtype)
    if twin is not None:
        _check_twin(twin, layout.named("embed.weight"), held, name)
        state["head.weight"] = state["embed.weight"]
    model.load_state_dict(state, assign=True)
    if twin is not None:
        model.head.weight = model.embed.weight


def write_tensors(model: MaskedTransformer, layout: Layout, path: Path) -> None:
    """One file, in the model's precision; a tied head is left out."""
    tensors = {
        layout.named(ours): weight.detach().cpu().contiguous()
        for ours, weight in _parameters(model).items()
    }
    save_file(tensors, path, metadata={"format": "pt"})


def _precision(stored: set[str], device: torch.device) -> torch.dtype:
    """That of the files; float32 for several, and for float16 on a CPU, which is slow in it."""
    dtype = _DTYPES[stored.pop()] if len(stored) == 1 else torch.float32
    return torch.float32 if dtype is torch.float16 and device.type == "cpu" else dtype


def _parameters(model: MaskedTransformer) -> dict[str, Tensor]:
    """By our names; a head that is the embedding appears as that alone."""
    return dict(model.named_parameters())


def _entries(folder: Path, name: str) -> dict[str, _Entry]:
    """Every tensor of every file, from their headers."""
    entries: dict[str, _Entry] = {}
    for file in _files(folder, name):
        try:
            with safe_open(file, framework="pt") as shard:
                for theirs in shard.keys():  # noqa: SIM118  (it is no dict)
                    piece = shard.get_slice(theirs)
                    entries[theirs] = _Entry(file, tuple(piece.get_shape()), piece.get_dtype())
        except (OSError, SafetensorError) as error:
            raise _damaged(file, error) from error
    return entries


def _files(folder: Path, name: str) -> list[Path]:
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    index = folder / _INDEX
    if not index.exists():
        raise BadArtifact(
            f"{name} holds neither {_SINGLE} nor {_INDEX}, so no weights; {_AGAIN}. Weights in "
            "other formats are not read"
        )
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        shards = sorted(set(map(str, listed.values())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(index, error) from error
    if any(Path(shard).name != shard for shard in shards):
        raise BadArtifact(f"{index} names files outside its folder; {_AGAIN}")
    if gone := [shard for shard in shards if not (folder / shard).exists()]:
        raise BadArtifact(
            f"{len(gone)} of the {len(shards)} files that {index} names are missing, {gone[0]} "
            f"among them; {_AGAIN}"
        )
    return [folder / shard for shard in shards]


def _read(file: Path, names: list[str]) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as shard:
            return {theirs: shard.get_tensor(theirs) for theirs in names}
    except (OSError, SafetensorError) as error:
        raise _damaged(file, error) from error


def _check_names(wanted: set[str], held: set[str], name: str) -> None:
    if missing := sorted(wanted - held):
        raise BadArtifact(
            f"{name} lacks {len(missing)} of the {len(wanted)} tensors that its config.json asks "
            f"for, {missing[0]} among them; {_AGAIN}"
        )
    if extra := sorted(t for t in held - wanted if not t.endswith(_COMPUTED)):
        raise BadArtifact(
            f"{name} holds {len(extra)} tensors that its config.json has no place for, {extra[0]} "
            f"among them: weights and configuration do not belong together; {_AGAIN}"
        )


def _check_entry(theirs: str, entry: _Entry, weight: Tensor, name: str) -> None:
    if entry.shape != tuple(weight.shape):
        raise BadArtifact(
            f"{theirs} of {name} has shape {list(entry.shape)}, and its config.json asks for "
            f"{list(weight.shape)}: the two do not belong together; {_AGAIN}"
        )
    if entry.dtype not in _DTYPES:
        raise BadArtifact(
            f"{theirs} of {name} is stored as {entry.dtype}; wanted one of {', '.join(_DTYPES)}. "
            "Take the checkpoint before it was quantized"
        )


def _check_twin(twin: str, embed: str, held: dict[str, _Entry], name: str) -> None:
    """A file may hold the head although the configuration ties it; then it must be the same."""
    if twin not in held:
        return
    head = _read(held[twin].file, [twin])[twin]
    if not torch.equal(head, _read(held[embed].file, [embed])[embed]):
        raise BadArtifact(
            f"the config.json of {name} says that the head is the embedding, and {twin} differs "
            f"from {embed}: weights and configuration do not belong together; {_AGAIN}"
        )


def _damaged(path: Path, error: Exception) -> BadArtifact:
    reason = " ".join(str(error).split())[:200]
    return BadArtifact(
        f"{path} is cut short or damaged ({type(error).__name__}: {reason}); {_AGAIN}"
    )
