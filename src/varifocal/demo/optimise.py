"""The pair of optimisers that train the demo: Muon for matrices, AdamW for everything else."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

_QUINTIC = (3.4445, -4.7750, 2.0315)  # coefficients and count of Muon's Newton-Schulz iteration
_TURNS = 5


class StackedMuon(torch.optim.Optimizer):
    """`torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, all matrices of a size at once.

    One matrix at a time leaves a CPU idle: of a training step on the tower it took 28 %.
    """

    def __init__(self, weights: Iterable[nn.Parameter], rate: float, weight_decay: float) -> None:
        settings = {"lr": rate, "weight_decay": weight_decay, "momentum": 0.95}
        super().__init__(list(weights), settings)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # takes no closure
        for group in self.param_groups:
            by_size: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    by_size[weight.shape].append(weight)
            for size, weights in by_size.items():
                updates = [self._with_momentum(weight, group["momentum"]) for weight in weights]
                scale = 0.2 * max(size) ** 0.5  # the size of AdamW's usual update
                for weight, update in zip(weights, orthogonal(torch.stack(updates)), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(update, alpha=-group["lr"] * scale)

    def _with_momentum(self, weight: nn.Parameter, momentum: float) -> Tensor:
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(state["momentum"], momentum)


def orthogonal(matrices: Float[Tensor, "n R C"]) -> Float[Tensor, "n R C"]:
    """The nearly orthogonal matrices next to those of a stack."""
    a, b, c = _QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(_TURNS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


class Optimisers:
    """Both optimisers as one; a parameter that needs no gradient is left out."""

    def __init__(self, model: nn.Module, rate: float, weight_decay: float = 0.01) -> None:
        matrices: list[nn.Parameter] = []
        others: list[nn.Parameter] = []
        for name, weight in model.named_parameters():
            if not weight.requires_grad:
                continue
            (matrices if _is_hidden_matrix(name, weight) else others).append(weight)
        self.parts: list[torch.optim.Optimizer] = [
            StackedMuon(matrices, rate, weight_decay),
            torch.optim.AdamW(
                others, lr=rate, weight_decay=weight_decay, betas=(0.9, 0.98), fused=True
            ),
        ]
        self.rate = rate
        self.weights = matrices + others

    def step(self, *, clip: float = 1.0) -> float:
        """Update and clear the gradients; returns their norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.weights, clip)
        for part in self.parts:
            part.step()
            part.zero_grad(set_to_none=True)
        return float(norm)

    def set_rate(self, factor: float) -> None:
        """Scale the learning rate of both."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = self.rate * factor

    def state(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self.parts]

    def load(self, state: list[dict[str, Any]]) -> None:
        for part, saved in zip(self.parts, state, strict=True):
            part.load_state_dict(saved)


def _is_hidden_matrix(name: str, weight: nn.Parameter) -> bool:
    """Inside a block: embeddings, the patch filter and output heads are no such maps."""
    outer = ("embed", "lm_head", "head.weight", "heads.")
    return weight.ndim == 2 and not any(part in name for part in outer)
