"""Disk space that a recording will take, asked for before it begins."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from varifocal.errors import BadOption, VarifocalError
from varifocal.targets._hf import HFTarget
from varifocal.training._script import asked, turns_of
from varifocal.training.artifacts import DTYPES, Origin
from varifocal.training.examples import Example

logger = logging.getLogger(__name__)

_PROBES = 4  # examples encoded to estimate the size
_ROOM = 1.1  # disk space wanted, as a multiple of the estimate


def estimate_bytes(
    target: HFTarget,
    examples: Sequence[Example],
    max_new_tokens: int,
    dtype: str,
    *,
    num_taps: int = 0,
) -> int:
    """Disk space that a recording will take, from the first few examples; answers at 64 tokens."""
    sizes = []
    for example in examples[: _PROBES * 4]:
        try:
            talk = example.read()
            turns = turns_of(talk) or [len(talk)]
            prompt = target.encode(asked(talk[: turns[-1]]))
        except VarifocalError:
            continue
        # `final` for every position, `mid` for all after the pictures, the visual tokens.
        sizes.append((2 + num_taps) * (len(prompt.tokens) + min(max_new_tokens, 64)))
        if len(sizes) == _PROBES:
            break
    rows = sum(sizes) / max(1, len(sizes)) * len(examples)
    return int(rows * target.hidden_size * DTYPES[dtype].itemsize)


def check_room(target: HFTarget, todo: Sequence[Example], out: Path, origin: Origin) -> None:
    """Refuse what the disk cannot hold."""
    wanted = estimate_bytes(
        target, todo, origin.max_new_tokens, origin.dtype, num_taps=len(origin.taps)
    )
    free = shutil.disk_usage(out).free
    logger.info("about %d MiB for %d samples; %d MiB are free", wanted >> 20, len(todo), free >> 20)
    if wanted * _ROOM > free:
        raise BadOption(
            f"{len(todo)} samples need about {wanted >> 20} MiB, but {out} has {free >> 20} MiB "
            "free; make room, record fewer, or choose a folder on another disk"
        )
