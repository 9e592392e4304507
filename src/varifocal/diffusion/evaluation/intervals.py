"""95 % intervals: of shares, of paired differences between shares, of ratios of sums."""

import math

import numpy as np
from jaxtyping import Float

from varifocal.evaluation.lead import interval

Floats = Float[np.ndarray, "..."]
Ends = tuple[float, float]
_Z = 1.959964  # two-sided 95 % of the normal law


def wilson(count: int, total: int) -> Ends:
    """Of a share. [Wilson 1927]"""
    share, scale = count / total, _Z * _Z / total
    middle = share + scale / 2
    half = _Z * math.sqrt(share * (1 - share) / total + scale / (4 * total))
    low, high = ((middle + sign * half) / (1 + scale) for sign in (-1, 1))
    return max(low, 0.0), min(high, 1.0)


def paired_difference(won: int, lost: int, total: int, seed: int, draws: int) -> Ends:
    """Of the difference of two shares of the same items, of which `won` and `lost` differ.

    Items are drawn anew with replacement. To each of the four kinds of pairs half a pair is added,
    as [Agresti & Min 2005] do: or a dozen items without a difference would look like a proof.
    """
    weights = np.array([won + 0.5, lost + 0.5, total - won - lost + 1.0])
    drawn = np.random.default_rng(seed).multinomial(total, weights / weights.sum(), draws)
    return interval((drawn[:, 0] - drawn[:, 1]) / total)


def ratio_draws(above: Floats, below: Floats, seed: int, draws: int) -> Floats:
    """Ratios of the sums of items drawn anew with replacement, both of the same items."""
    picked = np.random.default_rng(seed).integers(0, len(above), (draws, len(above)))
    made: Floats = above[picked].sum(1) / below[picked].sum(1)
    return made
