"""Folders of trained drafters: written atomically, read only if all in them is accounted for.

`model.safetensors` carries the whole description in its header, so that one rename replaces weights
and description together; `config.json` repeats it for people and other programs.
"""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from varifocal.drafter import Drafter
from varifocal.drafters import HUB_ID, check_options, drafter_class
from varifocal.drafters._belongs import check_made_for, made_for
from varifocal.errors import BadArtifact, BadOption
from varifocal.target import Target
from varifocal.training.artifacts import write_atomically

logger = logging.getLogger(__name__)

FORMAT, VERSION = "varifocal-drafter", 2
_READ = (1, VERSION)  # version 1 names neither tokenizer nor features
CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
RECIPE = "RECIPE.json"  # of an ordinary model: how it was made, and for which target
_SHIPPED = Path(__file__).parent.parent / "demo" / "weights" / "drafters"
_DRAFT_MODEL = _SHIPPED.parent / "draft_model"
_HEADER = "varifocal"


@dataclass(frozen=True, kw_only=True)
class Card:
    """How a drafter was made: what it takes to make it again, and how good it was."""

    seed: int
    steps: int
    command: str = ""  # the command line
    data: str = ""  # what it learned from
    scores: dict[str, float] = field(default_factory=dict)
    notes: str = ""


@runtime_checkable
class _Learned(Protocol):
    """A drafter with weights of its own."""

    @property
    def network(self) -> nn.Module:
        """All of them, and none of the target's."""


def save_trained(
    drafter: Drafter[Any], folder: Path, *, card: Card, dtype: torch.dtype = torch.float32
) -> None:
    """Write a drafter as a folder that `load_trained` reads; other files in it stay.

    A kill or a full disk at any moment leaves the old drafter, or none, never a broken one.
    """
    if not isinstance(drafter, _Learned):
        raise BadOption(f"the drafter {drafter.name} has no weights to save")
    state = {name: t.detach().cpu() for name, t in drafter.network.state_dict().items()}
    tensors = {
        name: (t.to(dtype) if t.is_floating_point() else t).contiguous().clone()
        for name, t in state.items()
    }
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise BadArtifact(
                f"{name} of {drafter.name} is not finite in {dtype}; nothing was saved. Train with "
                "a lower learning rate, or save as float32"
            )
    description = _description(drafter, card, _digest(tensors))
    text = json.dumps(description, indent=2)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / CONFIG, text.encode())
    write_atomically(folder / CARD, _card_text(description).encode())
    write_atomically(folder / WEIGHTS, save(tensors, metadata={_HEADER: text}))


def load_trained(folder: Path, target: Target, options: dict[str, Any]) -> Drafter[Any]:
    """The drafter in a folder, if it was trained for this target.

    `options` may change how it drafts (nodes, depth, ...), not what its weights were trained as.
    """
    shown = _read_config(folder)
    description, tensors = read_weights(folder / WEIGHTS)
    _check_unedited(folder, shown, description)
    check_made_for(folder, description["target"], target)
    cls = drafter_class(str(description["drafter"]))
    known = {f.name: f for f in fields(cls.Config)}
    saved = {
        key: _revived(value, known[key]) if key in known else value
        for key, value in description["config"].items()
    }
    if strange := sorted(set(saved) - set(known)):
        raise BadArtifact(
            f"{folder} was saved with the setting {strange[0]!r}, which this version of "
            f"{description['drafter']} does not have; use the version that made it or train again"
        )
    check_options(str(description["drafter"]), cls, options)
    fixed: frozenset[str] = getattr(cls.Config, "ARCHITECTURE", frozenset())
    for key in sorted(set(options) & fixed):
        if options[key] != saved.get(key, options[key]):
            raise BadOption(
                f"{key} is part of the trained weights in {folder} ({saved[key]!r}) and cannot be "
                f"{options[key]!r}; leave it out or train another drafter"
            )
    drafter = cls(target, cls.Config(**{**saved, **options}))
    if not isinstance(drafter, _Learned):
        raise BadArtifact(f"{folder} holds weights, but {description['drafter']} takes none")
    check_made_for(folder, description["target"], target, drafter)
    _fill(drafter.network, tensors, folder / WEIGHTS)
    drafter.network.eval()
    drafter.recipe = description["recipe"]
    return drafter


def shipped_weights(name: str, target: Target, root: Path | None = None) -> Path | None:
    """The folder of weights that this package ships of a drafter, if they fit the target."""
    folder = (root or _SHIPPED) / name
    if not (folder / CONFIG).exists():
        return None
    fingerprint = _read_config(folder)["target"]["fingerprint"]
    return folder if fingerprint == target.fingerprint else None


def shipped_names(target: Target, root: Path | None = None) -> list[str]:
    """The drafters that are shipped for the target."""
    folders = sorted(file.parent.name for file in (root or _SHIPPED).glob(f"*/{CONFIG}"))
    return [name for name in folders if shipped_weights(name, target, root)]


def shipped_draft_model(target: Target, folder: Path = _DRAFT_MODEL) -> Path | None:
    """The small ordinary model that this package ships for a target, if it is for this one."""
    recipe = folder / RECIPE
    if not recipe.exists():
        return None
    made_for = json.loads(recipe.read_text(encoding="utf-8"))["target"]["fingerprint"]
    return folder if made_for == target.fingerprint else None


def load_shipped(name: str, target: Target, options: Mapping[str, Any]) -> Drafter[Any]:
    """A drafter by its name, with the weights shipped for this target.

    Raises BadArtifact where none are.
    """
    folder = shipped_weights(name, target)
    if folder is None:
        raise BadArtifact(
            f"no {name} weights are shipped for {target.name}; train them with "
            f"`varifocal record` and `varifocal train --drafter {name}`, then give the "
            "folder as --drafter"
        )
    return load_trained(folder, target, dict(options))


def folder_of(folder_or_hub_id: str | Path) -> Path:
    """The folder itself, or a copy of the hub's, fetched if it is not here yet.

    Raises BadArtifact where there is neither.
    """
    if Path(folder_or_hub_id).is_dir():
        return Path(folder_or_hub_id)
    name = str(folder_or_hub_id)
    if not HUB_ID.fullmatch(name):
        raise BadArtifact(
            f"there is no folder {name}, and it is no hub id either (owner/name); "
            "`varifocal train` writes such folders"
        )
    # Imported here: it takes time that `--help` should not.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    def fetched(*weights: str) -> Path:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, CARD, *weights]))

    try:
        folder = fetched(WEIGHTS, "model-*.safetensors", f"{WEIGHTS}.index.json")
        has_weights = any(folder.glob("*.safetensors"))
        return folder if has_weights else fetched("pytorch_model*")  # as many are published
    except LocalEntryNotFoundError as error:
        raise BadArtifact(
            f"{name} is no folder here, was not fetched before, and the hub cannot be reached "
            "(HF_HUB_OFFLINE may be set). Go online once, or copy its folder and give its path"
        ) from error
    except (OSError, ValueError) as error:  # what the hub answers is an OSError
        line = str(error).strip().split("\n")[0]
        raise BadArtifact(
            f"{name} is no folder here, and it cannot be fetched from the hub: {line}. Check the "
            "name and, for a private one, `hf auth login`; or give the path of a folder"
        ) from error


def network_of(drafter: Drafter[Any]) -> nn.Module | None:
    """What a drafter has learned; None where it learns nothing."""
    return drafter.network if isinstance(drafter, _Learned) else None


def _description(drafter: Drafter[Any], card: Card, digest: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "drafter": _module_name(type(drafter)),
        "config": asdict(drafter.config),
        "target": made_for(drafter),
        "weights_sha256": digest,
        "recipe": asdict(card),
    }


def _module_name(cls: type[Drafter[Any]]) -> str:
    """What `drafter_class` finds it by: the file's name, or a dotted module."""
    module = cls.__module__
    return cls.name if module == f"varifocal.drafters.{cls.name}" else module


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise BadArtifact(
            f"{path} cannot be read ({error.strerror}); {folder} is no trained drafter. Make one "
            "with `varifocal train`"
        ) from error
    return _checked(text, path)


def _checked(text: str, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BadArtifact(f"{path} is damaged ({error}); copy or train it again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadArtifact(f"{path} does not describe a varifocal drafter")
    if content.get("version") not in _READ:
        raise BadArtifact(
            f"{path} has format version {content.get('version')}, wanted {VERSION}; use the "
            "program that wrote it or train again"
        )
    needed = {
        "drafter": str, "config": dict, "target": dict, "weights_sha256": str, "recipe": dict
    }  # fmt: skip
    for key, kind in needed.items():
        if not isinstance(content.get(key), kind):
            raise BadArtifact(f"{path} lacks {key!r}; copy or train it again")
    wanted = {"name", "fingerprint", "vocab_size", "hidden_size"}
    if content["version"] > 1:
        wanted |= {"tokenizer", "features"}
    missing = wanted - set(content["target"])
    if missing:
        raise BadArtifact(f"{path} lacks target.{min(missing)}; copy or train it again")
    return content


def read_weights(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Description and tensors, checked against their checksum."""
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_HEADER, "")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise BadArtifact(
            f"{path} is missing, cut short or damaged ({str(error).strip()}); copy it again"
        ) from error
    description = _checked(header or "null", path)
    if _digest(tensors) != description["weights_sha256"]:
        raise BadArtifact(f"{path} is damaged (its checksum is wrong); copy or train it again")
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise BadArtifact(f"{name} in {path} holds NaN or infinity; train it again")
    return description, tensors


def _check_unedited(folder: Path, shown: dict[str, Any], kept: dict[str, Any]) -> None:
    """Refuse edits of config.json: they would have no effect, since the weights' header counts."""
    if shown["weights_sha256"] != kept["weights_sha256"]:  # no edit: a save that was cut short
        logger.warning(
            "%s describes other weights than those in %s, which say themselves what they are; the "
            "newest save was cut short, so train or copy again to have its weights",
            folder / CONFIG,
            WEIGHTS,
        )
        return
    new, old = _leaves(shown), _leaves(kept)
    edited = sorted(dict(new.items() ^ old.items()))
    if not edited:
        return
    listed = ", ".join(
        f"{k} ({old.get(k, 'absent')}, edited to {new.get(k, 'absent')})" for k in edited
    )
    settings = [key for key in edited if key in new and key.startswith("config.")]
    typed = " ".join(f"--set {key.removeprefix('config.')}={new[key]}" for key in settings)
    raise BadArtifact(
        f"{folder / CONFIG} was edited, which has no effect: what counts is the description in "
        f"{WEIGHTS}. They differ in {listed}. Undo the edit"
        + (f", and draft otherwise with {typed} (in Python with options)" if typed else "")
    )


def _leaves(value: Any, name: str = "") -> dict[str, str]:
    """Every entry of nested objects by its dotted name, as JSON."""
    if not isinstance(value, dict):
        return {name: json.dumps(value)}
    parts = [_leaves(one, f"{name}.{key}" if name else str(key)) for key, one in value.items()]
    return {key: leaf for part in parts for key, leaf in part.items()}


def _revived(value: Any, setting: Field[Any]) -> Any:
    """A setting as it was before it became JSON: tuples, and dataclasses inside dataclasses."""
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict) and setting.default_factory is not MISSING:
        kind = type(setting.default_factory())
        return kind(**value) if is_dataclass(kind) else value
    return value


def _fill(network: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Copy every tensor into the network; all names and shapes must agree."""
    wanted = network.state_dict()
    problems = [f"{n} is missing" for n in sorted(set(wanted) - set(tensors))]
    problems += [f"{n} is not part of the network" for n in sorted(set(tensors) - set(wanted))]
    problems += [
        f"{n} is {tuple(tensors[n].shape)}, wanted {tuple(wanted[n].shape)}"
        for n in sorted(set(tensors) & set(wanted))
        if tensors[n].shape != wanted[n].shape
    ]
    if problems:
        raise BadArtifact(
            f"{path} does not fit its own description: {'; '.join(problems[:5])}. Use the version "
            "that wrote it or train again"
        )
    network.load_state_dict(tensors)


def _digest(tensors: dict[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _card_text(description: dict[str, Any]) -> str:
    target, recipe = description["target"], description["recipe"]
    scores = "\n".join(f"| {k} | {v:.4g} |" for k, v in recipe["scores"].items())
    settings = "\n".join(f"- `{k}`: {v}" for k, v in description["config"].items())
    return f"""# {description["drafter"]} for {target["name"]}

A drafter for varifocal (`pip install varifocal`). It only guesses: the target checks
every token, so the text is the target's own. It works with one target: `{target["name"]}`,
fingerprint `{target["fingerprint"]}`, {target["vocab_size"]} tokens, width {target["hidden_size"]},
{_told(target)}.

```python
drafter = varifocal.Drafter.from_pretrained("FOLDER", model, tokenizer=processor)
varifocal.generate(model, **inputs, drafter=drafter, max_new_tokens=256)
```

## How it was made

- command: `{recipe["command"]}`
- data: {recipe["data"]}
- updates: {recipe["steps"]}, seed {recipe["seed"]}
{recipe["notes"]}

## Scores

tau is the mean number of tokens per target forward after the prefill; plain decoding has 1.

| what | value |
|---|---|
{scores}

## Settings

{settings}
"""


def _told(target: dict[str, Any]) -> str:
    """Tokenizer and features, where the description has them."""
    features = target.get("features") or {}
    if not features:
        return "tokenizer and features as of that target"
    read = [f"decoder layers {features['layers']} (before the last norm)"] * bool(
        features["layers"]
    )
    read += ["the last state (after the last norm)"] * bool(features["final"])
    read += ["input embeddings"] * bool(features["embeddings"])
    return f"tokenizer `{target['tokenizer']}`; it reads {', '.join(read) or 'ids only'}"
