"""LATCH: diffusion language models that stop when their answer has been verified."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varifocal.diffusion.decode import Decoding, generate
    from varifocal.diffusion.loading import load_denoiser
    from varifocal.diffusion.result import DiffusionResult, StepRecord
    from varifocal.diffusion.schedule import Plan

__all__ = [
    "Decoding",
    "DiffusionResult",
    "Plan",
    "StepRecord",
    "generate",
    "load_denoiser",
]

# Brought in when first used: the parts of the package do without one another.
_HOME = {
    "Decoding": "decode",
    "DiffusionResult": "result",
    "Plan": "schedule",
    "StepRecord": "result",
    "generate": "decode",
    "load_denoiser": "loading",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
