"""What learned drafters are tested on: a tiny target, and its answer as it was recorded."""

from collections.abc import Iterator

import pytest
import torch
from taught import Recorded, recorded
from tiny import tiny_target

from varifocal.targets._hf import HFTarget


@pytest.fixture(scope="module")
def target() -> HFTarget:
    """Whose greedy answer is no single token. Files about other drafters have one of their own."""
    return tiny_target(seed=3)


@pytest.fixture(scope="module")
def one(target: HFTarget) -> Recorded:
    """An answer about one picture. Not to be changed."""
    return recorded(target)


@pytest.fixture
def without_gradients() -> Iterator[None]:
    """Inference, as everywhere outside of training."""
    with torch.inference_mode():
        yield
