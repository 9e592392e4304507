"""Faster multimodal generation with the same text: public names, nothing else."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varifocal.decode import Generation
    from varifocal.drafter import Drafter
    from varifocal.drafters import load_drafter
    from varifocal.engine import Engine, load
    from varifocal.huggingface import Speculative, generate
    from varifocal.images import load_image
    from varifocal.request import Message, Request, ask
    from varifocal.result import GenerationResult, Round
    from varifocal.sampling import Sampling
    from varifocal.targets import load_target

__all__ = [
    "Drafter",
    "Engine",
    "Generation",
    "GenerationResult",
    "Message",
    "Request",
    "Round",
    "Sampling",
    "Speculative",
    "ask",
    "generate",
    "load",
    "load_drafter",
    "load_image",
    "load_target",
]

# torch and transformers take seconds to import; a name brings them in when it is first used.
_HOME = {
    "Drafter": "drafter",
    "Engine": "engine",
    "Generation": "decode",
    "GenerationResult": "result",
    "Message": "request",
    "Request": "request",
    "Round": "result",
    "Sampling": "sampling",
    "Speculative": "huggingface",
    "ask": "request",
    "generate": "huggingface",
    "load": "engine",
    "load_drafter": "drafters",
    "load_image": "images",
    "load_target": "targets",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
