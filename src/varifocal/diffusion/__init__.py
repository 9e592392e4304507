"""LATCH: diffusion language models that stop when their answer has been verified."""

from varifocal.diffusion.decode import Decoding, generate
from varifocal.diffusion.loading import load_denoiser
from varifocal.diffusion.schedule import Plan

__all__ = ["Decoding", "Plan", "generate", "load_denoiser"]
