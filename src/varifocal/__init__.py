"""Faster multimodal generation with the same text: public names, nothing else."""

from varifocal.decode import Generation, generate
from varifocal.drafters import load_drafter
from varifocal.request import Message, Request, ask
from varifocal.result import GenerationResult, Round
from varifocal.sampling import Sampling
from varifocal.targets import load_target

__all__ = [
    "Generation",
    "GenerationResult",
    "Message",
    "Request",
    "Round",
    "Sampling",
    "ask",
    "generate",
    "load_drafter",
    "load_target",
]
