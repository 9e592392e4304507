"""LATCH: diffusion language models that stop when their answer has been verified."""
