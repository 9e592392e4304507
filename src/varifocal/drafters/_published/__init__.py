"""Checkpoints of drafters in the layouts of their authors: found, understood, tried, loaded."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from varifocal.drafter import Drafter
from varifocal.drafters import check_options, drafter_class
from varifocal.drafters._published import dflash, dream, eagle, eagle3, vispec
from varifocal.drafters._published.files import CONFIG, Checkpoint, read_checkpoint, read_config
from varifocal.drafters._published.gate import Agreement, check_agreement
from varifocal.drafters._published.table import Reading, fill, translate
from varifocal.drafters._weights import FORMAT, Card, load_trained, network_of
from varifocal.errors import BadArtifact, BadOption
from varifocal.target import Target

Reader = Callable[[Checkpoint, Target], Reading]
FAMILIES: dict[str, Reader] = {
    "eagle": eagle.read,
    "msd": eagle.read_msd,
    "vispec": vispec.read,
    "dream": dream.read,
    "eagle3": eagle3.read,
    "speculators": eagle3.read_speculators,
    "dflash": dflash.read,
}


def is_published(folder: Path) -> bool:
    """Whether a folder is not one of ours, but its config says that it holds some model."""
    if not (folder / CONFIG).exists():
        return False
    try:
        config = read_config(folder)
    except BadArtifact:  # damaged: what reads our own says so
        return False
    return bool(config) and config.get("format") != FORMAT


def load_folder(
    folder: Path,
    target: Target,
    options: Mapping[str, Any],
    *,
    check: bool | None = None,
    family: str | None = None,
) -> Drafter[Any]:
    """A drafter from a folder in our layout or in a published one, ready to draft."""
    if is_published(folder):
        return load_published(
            folder, target, options, check=check is not False, family=family or ""
        )
    if check is not None or family is not None:
        raise BadOption(
            "check and family are for checkpoints in a published layout; "
            f"{folder} is in the layout of varifocal, which knows both"
        )
    drafter = load_trained(folder, target, dict(options))
    drafter.prepare()
    return drafter


def load_published(
    folder: Path,
    target: Target,
    options: Mapping[str, Any],
    *,
    check: bool = True,
    family: str = "",
) -> Drafter[Any]:
    """The drafter in a folder of its authors' layout, ready to draft.

    Raises BadArtifact or DrafterMismatch for what cannot be loaded exactly, and with `check` for
    what hardly ever guesses right.
    """
    checkpoint = read_checkpoint(folder)
    drafter = build(checkpoint, understood(checkpoint, target, family), target, options)
    drafter.prepare()
    if check:
        check_agreement(drafter, checkpoint.name)
    return drafter


def understood(checkpoint: Checkpoint, target: Target, family: str = "") -> Reading:
    """Which drafter a checkpoint is; `family` decides where its tensors leave that open."""
    if family and family not in FAMILIES:
        raise BadOption(f"no family is called {family!r}; there are {', '.join(FAMILIES)}")
    return FAMILIES[family or family_of(checkpoint)](checkpoint, target)


def family_of(checkpoint: Checkpoint) -> str:
    """By what only one of them has; for EAGLE-2 and MSD, which share all, by the name."""
    names = checkpoint.tensors
    if "speculators_model_type" in checkpoint.config:
        return "speculators"
    if "imadpt.q" in names:
        return "vispec"
    if any(name.startswith("layers.1.cross_attn.") for name in names):
        return "dream"
    if any(name.endswith(".hidden_norm.weight") for name in names):
        return "eagle3"
    if "hidden_norm.weight" in names:
        return "dflash"
    fc = names.get("fc.weight")
    if fc is None or fc.dim() != 2 or fc.shape[1] != 2 * fc.shape[0]:
        checkpoint.refuse(
            "its tensors are those of no drafter that is known here "
            f"({', '.join(sorted(names)[:5])}, ...). Known are {', '.join(FAMILIES)}: see "
            "docs/published.md"
        )
    said = checkpoint.name.lower()
    if "layers.0.input_layernorm.weight" in names or "msd" in said:
        return "msd"
    if "eagle" in said:
        return "eagle"
    raise BadOption(
        f"{checkpoint.name} may be EAGLE-1/2 or MSD: their tensors have the same names, and what "
        "they make of a picture differs. Give family='eagle' or family='msd' (--family, or --set "
        "family=msd)"
    )


def build(
    checkpoint: Checkpoint, reading: Reading, target: Target, options: Mapping[str, Any]
) -> Drafter[Any]:
    """The drafter with its weights in float32, not yet ready to draft. `options` are how."""
    cls = drafter_class(reading.drafter)
    check_options(reading.drafter, cls, dict(options))
    fixed: frozenset[str] = getattr(cls.Config, "ARCHITECTURE", frozenset())
    for key in sorted(set(options) & fixed):
        raise BadOption(
            f"{key} is part of the weights of {checkpoint.name}, and they tell it themselves; "
            "leave it out"
        )
    settings = {**reading.settings, **options}
    with torch.random.fork_rng(devices=[]):  # first weights, of which none stays
        drafter = cls(target, cls.Config(**settings))
    network = network_of(drafter)
    assert network is not None
    fill(network, translate(checkpoint, reading), checkpoint)
    network.eval()
    drafter.recipe = asdict(card_of(checkpoint, reading))
    return drafter


def card_of(checkpoint: Checkpoint, reading: Reading, found: Agreement | None = None) -> Card:
    """What is known of how it was made."""
    tried = f" On loading, {found}." if found else ""
    return Card(
        seed=0,
        steps=0,
        data=f"not known; the weights are those of {checkpoint.name}",
        notes=(
            f"\nConverted from `{checkpoint.name}`, published in the layout {reading.layout}; seed "
            f"and updates of its training are not known. {reading.notes}{tried}"
        ).rstrip(),
    )
