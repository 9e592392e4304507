"""Noise that belongs to a row's seed, step and position, so that batches cannot change it."""

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

_ORDER = 0x5DEECE66D  # keeps the noise of orders apart from that of tokens


def uniform(seed: int, step: int, length: int) -> Float64[np.ndarray, " G"]:
    """Numbers in (0, 1), one for each canvas position: what orders positions at random."""
    where = np.uint64(step) << np.uint64(32) | np.arange(length, dtype=np.uint64)
    key = np.array([seed ^ _ORDER], dtype=np.uint64)
    bits = _mix(where + _mix(key)) >> np.uint64(12)
    return (bits.astype(np.float64) + 0.5) / 2**52


def gumbel(seed: int, step: int, length: int) -> Float64[np.ndarray, " G"]:
    """Gumbel noise for each canvas position: the k greatest of logits with it are k draws."""
    noise: Float64[np.ndarray, " G"] = -np.log(-np.log(uniform(seed, step, length)))
    return noise


def places(step: int, positions: Int64[Tensor, " n"]) -> Int64[Tensor, " n"]:
    """What `sampling.gumbel` takes for an output position: one number for step and position."""
    return (step << 32) + positions


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64; arrays wrap around."""
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ x >> np.uint64(31)
    return mixed
