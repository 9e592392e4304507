"""Which layers of the target a published drafter reads, in the three ways of counting them.

transformers' hidden_states[l] is the input of layer l (counted from 0), which leaves layer l - 1:
counted from 1 as here, the state that leaves layer l. So ids that index hidden_states, as those of
EAGLE-3, vLLM and speculators do, are `taps` as they are; ids that name the layer whose output is
read, as those of SGLang's eagle_config and of DFlash do, are one less. hidden_states[-1] is taken
behind the last norm, which no tap is.
"""

from collections.abc import Sequence
from typing import Any

from varifocal.drafters._published.facts import Facts
from varifocal.errors import DrafterMismatch
from varifocal.target import Target


def taps_of_inputs(facts: Facts, target: Target, ids: Any) -> tuple[int, ...]:
    """Of ids that index hidden_states; None is what the authors' code takes then."""
    if ids is None:
        ids = [2, target.num_layers // 2, target.num_layers - 3]
    return _checked(facts, target, ids, 0)


def taps_of_outputs(facts: Facts, target: Target, ids: Any) -> tuple[int, ...]:
    """Of ids that name the layer, counted from 0, whose output is read."""
    if ids is None:
        facts.checkpoint.refuse("its config does not say which layers of the target it reads")
    return _checked(facts, target, ids, 1)


def _checked(facts: Facts, target: Target, ids: Any, shift: int) -> tuple[int, ...]:
    checkpoint, last = facts.checkpoint, target.num_layers
    if not isinstance(ids, Sequence) or not all(type(i) is int for i in ids):
        checkpoint.refuse(f"wanted layers of the target, got {ids!r}")
    taps = tuple(i + shift for i in ids)
    said = facts.config.get("num_target_layers")
    if said is not None and said != last:
        raise DrafterMismatch(
            f"{checkpoint.name} is for a target of {said} layers, but {target.name!r} has {last}. "
            "Load it with the target that it was trained for"
        )
    if any(not 0 <= tap <= last for tap in taps):
        raise DrafterMismatch(
            f"{checkpoint.name} reads the layers {list(ids)}, but {target.name!r} has {last}. Load "
            "it with the target that it was trained for"
        )
    if 0 in taps or last in taps:
        checkpoint.refuse(
            "it reads the embeddings or the state behind the last layer, and the draft here reads "
            f"states between layers (its ids are {list(ids)}, and the target has {last} layers)"
        )
    if list(taps) != sorted(set(taps)):
        checkpoint.refuse(f"it reads the layers {list(ids)}, which do not ascend")
    return taps
