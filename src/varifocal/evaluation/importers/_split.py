"""Which records train a drafter and which measure it, as FOVEA's paper divides the public sets.

- drawn: the set has no such parts, so they are drawn: 1,000 records to train on, at most 3,000 of
  the others to measure on, by `train_test_split(random_state=42)`. The sizes are given as in the
  published code of DREAM, whose protocol the paper follows.
- official: the set's own parts. To train on, 1,000 of its training part, drawn in the same way;
  how the paper draws them it does not say.
- whole: never trained on.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from varifocal.errors import BadArtifact

NUM_TRAIN = 1000
MOST_TEST = 3000
SEED = 42

T = TypeVar("T")


def train_test_split(
    items: Sequence[T], *, train_size: int, test_size: int, seed: int = SEED
) -> tuple[list[T], list[T]]:
    """What scikit-learn's function of this name gives for an integer `random_state`.

    One permutation of numpy's legacy generator: its first `test_size` places are the test part,
    the `train_size` after them the training part, both in the order of the permutation.
    """
    assert min(train_size, test_size) >= 0 and train_size + test_size <= len(items)
    order = np.random.RandomState(seed).permutation(len(items)).tolist()
    test, train = order[:test_size], order[test_size : test_size + train_size]
    return [items[n] for n in train], [items[n] for n in test]


def drawn(items: Sequence[T], title: str) -> tuple[list[T], list[T]]:
    """1,000 to train on and at most 3,000 others to measure on."""
    if len(items) <= NUM_TRAIN:
        raise BadArtifact(
            f"{title} is divided into {NUM_TRAIN} records to train on and others to measure on; "
            f"here are only {len(items)}. Give all of its files, or take --split all for an "
            "evaluation without training on any of it"
        )
    test_size = min(MOST_TEST, len(items) - NUM_TRAIN)
    return train_test_split(items, train_size=NUM_TRAIN, test_size=test_size)


def drawn_to_train(items: Sequence[T]) -> list[T]:
    """At most 1,000 of an official training part."""
    train_size = min(NUM_TRAIN, len(items))
    return train_test_split(items, train_size=train_size, test_size=len(items) - train_size)[0]
