"""What a request's state keeps alive, counted once, without what all requests share."""

import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from scripted import Scripted, saying
from torch import Tensor, nn

from varifocal.drafters import load_drafter
from varifocal.drafters._blocks import DraftCache
from varifocal.evaluation.memory import state_bytes, weights_of
from varifocal.fast import PackedLinear, prepack
from varifocal.request import ask


@dataclass
class State:
    """As drafters have it."""

    keys: Tensor
    values: Tensor
    more: dict = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    """Without a dictionary of its own."""

    rows: Tensor


KIB = torch.zeros(256)  # 1 KiB


def tensors_of(state, shared=()):
    """Bytes of tensors alone: what is counted beyond the same state with empty ones."""
    total = state_bytes(state, shared)
    return total // 1024


def test_tensors_count_with_all_that_they_keep_alive():
    whole = torch.zeros(100, 256)
    assert tensors_of(State(whole[:1], KIB.clone())) == 101  # a view keeps its whole storage


def test_what_is_there_twice_counts_once():
    rows = torch.zeros(10, 256)
    state = State(rows, rows[3:], {"again": rows.T, "list": [rows, rows]})
    assert tensors_of(state) == tensors_of(State(rows, rows)) == 10


def test_weights_and_requests_do_not_count():
    layer = nn.Linear(256, 256, bias=False)
    state = State(layer.weight.detach()[:2], KIB.clone(), {"request": ask("x" * 100_000)})
    assert tensors_of(state, weights_of(nn.Sequential(layer))) == 1
    assert tensors_of(state) == 257


def test_modules_of_a_state_count_with_their_packed_copies():
    holder = nn.Sequential(nn.Linear(256, 256, bias=False, dtype=torch.bfloat16))
    plain = tensors_of({"match": holder})
    prepack(holder)
    assert plain == 128
    if isinstance(holder[0], PackedLinear):
        assert tensors_of({"match": holder}) == 256
    assert sum(t.numel() for t in weights_of(holder)) >= 256 * 256


def test_python_objects_and_arrays_count_as_well():
    numbers = [10**6 + n for n in range(1000)]
    assert state_bytes(numbers) == sys.getsizeof(numbers) + 1000 * sys.getsizeof(10**6)
    assert state_bytes(np.zeros(1000)) >= 8000
    assert tensors_of([Slotted(KIB.clone()), Slotted(KIB.clone())]) == 2
    assert state_bytes(None) == 0


def test_a_state_that_holds_itself_is_counted_to_its_end():
    state = State(KIB.clone(), KIB.clone())
    state.more["self"] = state
    assert tensors_of(state) == 2


def test_buffers_of_a_draft_cache_count_with_their_room():
    cache = DraftCache()
    cache.append(0, torch.zeros(4, 3, 16), torch.zeros(4, 3, 16))
    assert state_bytes(cache) >= cache.buffers[0].untyped_storage().nbytes() > 2 * 4 * 3 * 16 * 4


def test_states_of_drafters_without_weights_grow_with_the_text():
    target = Scripted(saying([]))
    for name in ("lookup", "lookahead"):
        drafter = load_drafter(name, target)
        sizes = []
        for length in (2, 200):
            target.prompt_length = length
            prompt = target.encode(ask("x"))
            prompt.tokens.copy_(torch.arange(2, 2 + length) % 200 + 2)
            _, seen = target.prefill(prompt, drafter.want)
            sizes.append(state_bytes(drafter.start(prompt, seen, 2)))
        assert 0 < sizes[0] < sizes[1]
