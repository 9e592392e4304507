"""Weights packed once in the layout that oneDNN multiplies with, instead of at every call.

Only for inference on a CPU in bfloat16 or float32. In bfloat16 the results are bit-equal to
`nn.Linear`; in float32 oneDNN takes the place of MKL and the last bits differ. A call of the packed
operator has a fixed cost of some 12 microseconds, so small layers are left alone, or use it from a
few rows on only.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

if TYPE_CHECKING:  # drafters use this file too
    from varifocal.drafter import Drafter
    from varifocal.targets._hf import HFTarget

logger = logging.getLogger(__name__)

_ROWS = 40  # rows that the layout is chosen for; any number works
_FEW = 4  # rows from which layers of middling size gain
# Weights from which a layer gains at a few rows, and at a single one; measured on an AMD EPYC 9004.
_GAINS = {torch.bfloat16: (0, 2**14), torch.float32: (2**17, 2**19)}


@dataclass(frozen=True)
class Packing:
    """What `prepack` did: names of packed layers, and of those left alone with the reason."""

    packed: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        reasons = sorted({reason for _, reason in self.skipped})
        left = f", {len(self.skipped)} left alone ({'; '.join(reasons)})" if reasons else ""
        return f"{len(self.packed)} linear layers packed{left}"

    def __add__(self, other: Packing) -> Packing:
        return Packing(self.packed + other.packed, self.skipped + other.skipped)


class PackedLinear(nn.Module):
    """A linear layer with a packed copy of its weight, which it multiplies with.

    `weight` and `bias` stay registered under their names, so checkpoints and digests agree. Calls
    with fewer than `from_rows` rows go to the ordinary kernel, which is faster there.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.train(linear.training)
        self.from_rows = 1 if linear.weight.numel() >= _GAINS[linear.weight.dtype][1] else _FEW
        weight = linear.weight.detach().contiguous()
        self._packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._multiply = torch.ops.mkldnn._linear_pointwise.default

    def forward(self, x: Float[Tensor, "... I"]) -> Float[Tensor, "... O"]:
        """x W^T + b, without gradients where the packed operator is used."""
        if x.numel() < self.from_rows * self.in_features:
            return nn.functional.linear(x, self.weight, self.bias)
        made: Tensor = self._multiply(x, self._packed, self.bias, "none", [], "")
        return made

    def _apply(self, fn: Any, recurse: bool = True) -> PackedLinear:
        raise RuntimeError(
            "a packed layer cannot be moved or cast; move the model first, then pack it"
        )


def prepack(module: nn.Module) -> Packing:
    """Replace every linear layer below `module` by a packed one, in place.

    The report says what was left alone and why; where the operators are missing that is all of
    them. `module` itself is never replaced: hand in its parent.
    """
    return _pack(type(module).__name__, list(_linears(module)))


def packed_matrix(weight: Float[Tensor, "O I"]) -> nn.Module | None:
    """x -> x weight^T with a packed copy of a matrix that many products share, if that can be."""
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    holder = nn.Sequential(layer)
    return holder if _obstacle(layer) is None and prepack(holder).packed else None


def is_packed(module: nn.Module) -> bool:
    """Whether any layer of it is packed."""
    return any(isinstance(m, PackedLinear) for m in module.modules())


def fast_target(target: HFTarget) -> HFTarget:
    """A second target for the same requests whose language model and head are packed.

    Its modules, configuration and hooks are its own; the frozen weights are shared, and the
    packed copies come on top. A target that is packed already is returned as it is.
    """
    if is_packed(target.model):
        return target
    model = target.model
    memo: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, memo)
    decoder, head = (memo[id(part)] for part in target.text_parts())
    wanted = {id(m) for m in (*decoder.modules(), head)}
    _pack(target.name, [place for place in _linears(twin) if id(place.layer) in wanted])
    return type(target)(twin, target.processor, target.name, exact_rows=target.exact_rows)


def fast_drafter(drafter: Drafter[Any]) -> Packing:
    """Pack the networks of a drafter in place; the target's own are not touched."""
    report = Packing()
    for member in getattr(drafter, "members", ()):  # of a drafter that is made of others
        report += fast_drafter(member)
    for value in vars(drafter).values():
        if isinstance(value, nn.Module):
            report += prepack(value)
    return report


@dataclass(frozen=True)
class _Place:
    """Where a linear layer hangs."""

    parent: nn.Module
    attribute: str
    name: str
    layer: nn.Linear


def _linears(module: nn.Module) -> Iterator[_Place]:
    """Every linear layer below."""
    for path, parent in module.named_modules():
        for attribute, child in parent.named_children():
            if isinstance(child, nn.Linear):
                yield _Place(parent, attribute, f"{path}.{attribute}".lstrip("."), child)


def _pack(owner: str, places: Sequence[_Place]) -> Packing:
    packed, skipped = [], []
    for place in places:
        reason = _obstacle(place.layer)
        if reason is None:
            try:
                setattr(place.parent, place.attribute, PackedLinear(place.layer))
            except RuntimeError as error:  # this CPU lacks the instructions for the type
                reason = str(error).strip().split("\n")[0]
        if reason is None:
            packed.append(place.name)
        else:
            skipped.append((place.name, reason))
    report = Packing(tuple(packed), tuple(skipped))
    (logger.info if packed else logger.warning)("%s: %s", owner, report)
    return report


def _obstacle(linear: nn.Linear) -> str | None:
    """Why a layer cannot be packed, if so."""
    ops = torch.ops.mkldnn
    if not torch.backends.mkldnn.is_available() or not all(
        hasattr(ops, name) for name in ("_reorder_linear_weight", "_linear_pointwise")
    ):
        return "this build of torch lacks oneDNN's packed linear operators"
    if type(linear) is not nn.Linear:
        return f"{type(linear).__name__} is not a plain linear layer"
    if linear._forward_hooks or linear._forward_pre_hooks:
        return "it has hooks"
    if linear.weight.device.type != "cpu":
        return f"its weights are on {linear.weight.device.type}, packing is for the CPU"
    if linear.weight.dtype not in _GAINS:
        return f"its weights are {linear.weight.dtype}, packing takes bfloat16 and float32"
    if linear.weight.numel() < _GAINS[linear.weight.dtype][0]:
        return "too small to gain"
    return None
