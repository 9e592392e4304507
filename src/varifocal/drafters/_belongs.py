"""What a trained drafter belongs to: a model, its tokenizer, and the features it was trained on."""

import hashlib
from pathlib import Path
from typing import Any

from varifocal.drafter import Drafter
from varifocal.errors import DrafterMismatch
from varifocal.target import Target

_TRAIN = "train one for this target with `varifocal record` and `varifocal train`"


def made_for(drafter: Drafter[Any]) -> dict[str, Any]:
    """The target of a drafter, as a folder describes it."""
    target = drafter.target
    return {
        "name": target.name,
        "fingerprint": target.fingerprint,
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        "tokenizer": tokenizer_digest(target),
        "features": features_of(drafter),
    }


def tokenizer_digest(target: Target) -> str | None:
    """Of vocabulary and special tokens; None for a target without a tokenizer of transformers."""
    tokenizer: Any = getattr(target, "tokenizer", None)
    if not hasattr(tokenizer, "get_vocab"):
        return None
    added = getattr(tokenizer, "added_tokens_decoder", {}).items()
    special = sorted((int(i), str(token)) for i, token in added if token.special)
    parts = (sorted(tokenizer.get_vocab().items()), special)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def features_of(drafter: Drafter[Any]) -> dict[str, Any]:
    """What it reads of the target's forward.

    States leaving `layers` (counted from 1) are taken before the model's last norm, and `final` is
    taken behind it: a drafter trained on one of these cannot read the other.
    """
    want = drafter.want
    return {
        "layers": list(want.layers),
        "final": "post-norm" if want.final else None,
        "embeddings": want.embeddings,
        "hidden_size": drafter.target.hidden_size,
    }


def check_made_for(
    folder: Path, made: dict[str, Any], target: Target, drafter: Drafter[Any] | None = None
) -> None:
    """Refuse another model, another tokenizer, or other features, by that name.

    What only the drafter knows is compared once there is one.
    """
    _check_width(folder, made, target)
    digest = made.get("tokenizer")
    came = tokenizer_digest(target)
    if None not in (digest, came) and digest != came:
        raise DrafterMismatch(
            f"the drafter in {folder} was trained for {made['name']!r}, and the tokenizer of the "
            f"target {target.name!r} differs from its tokenizer (vocabulary or special tokens: "
            f"{digest} and {came}). Load the model with the tokenizer it was published with, or "
            f"{_TRAIN}"
        )
    if made["fingerprint"] != target.fingerprint:
        raise DrafterMismatch(
            f"the drafter in {folder} was trained for {made['name']!r} (fingerprint "
            f"{made['fingerprint']}), but the target is {target.name!r} (fingerprint "
            f"{target.fingerprint}): the weights differ. Load it with its own target, or {_TRAIN}"
        )
    if drafter is not None and (features := made.get("features")) is not None:
        _check_features(folder, features, drafter)


def _check_width(folder: Path, made: dict[str, Any], target: Target) -> None:
    for key in ("vocab_size", "hidden_size"):
        if made[key] != getattr(target, key):
            raise DrafterMismatch(
                f"the drafter in {folder} was trained for {made['name']!r} ({key} {made[key]}), "
                f"but the target is {target.name!r} ({key} {getattr(target, key)}). Load it with "
                f"its own target, or {_TRAIN}"
            )


def _check_features(folder: Path, made: dict[str, Any], drafter: Drafter[Any]) -> None:
    came = features_of(drafter)
    for key, value in came.items():
        if made.get(key) != value:
            raise DrafterMismatch(
                f"the drafter in {folder} was trained on other features of the target: {key} was "
                f"{made.get(key)!r}, and {drafter.name} reads {value!r} now. Use the version of "
                f"varifocal, or the options, that it was trained with, or {_TRAIN}"
            )
