"""What drafters with weights of their own have in common."""

from collections.abc import Mapping
from typing import Any, Generic, Self, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from varifocal.drafter import Drafter
from varifocal.errors import BadOption
from varifocal.fast import prepack
from varifocal.target import Target

S = TypeVar("S")


class LearnedDrafter(Drafter[S], Generic[S]):
    """A drafter with a trained `network`, whose config has `heads`."""

    network: nn.Module

    def __init__(self, target: Target, config: Any) -> None:
        super().__init__(target, config)
        if target.hidden_size % config.heads:
            raise BadOption(f"heads={config.heads} does not divide {target.hidden_size}")

    @classmethod
    def load(cls, target: Target, options: Mapping[str, Any]) -> Self:
        """With the weights shipped for this target."""
        from varifocal.drafters._weights import load_shipped

        return cast(Self, load_shipped(cls.name, target, options))

    def prepare(self) -> None:
        """The target's precision; on a CPU the layout in which oneDNN multiplies."""
        self.network.to(self.target.dtype).eval()
        if self.target.device.type == "cpu":
            prepack(self.network)

    @property
    def memory_bytes(self) -> int:
        """Weights of the network."""
        return sum(p.numel() * p.element_size() for p in self.network.parameters())

    def _embed(self, tokens: list[int]) -> Float[Tensor, "n D"]:
        return self.target.embed(torch.tensor(tokens, device=self.target.device))


class TargetHeadDrafter(LearnedDrafter[S], Generic[S]):
    """A learned drafter whose states go to the target's own frozen LM head."""

    def __init__(self, target: Target, config: Any) -> None:
        super().__init__(target, config)
        self._banned = torch.zeros(target.vocab_size, device=target.device)
        self._banned[sorted(target.banned_ids)] = float("-inf")
        self._readout: nn.Module = target.readout

    def prepare(self) -> None:
        """The head too gets a packed copy, for this drafter alone."""
        super().prepare()
        if self.target.device.type == "cpu":
            self._readout = nn.Sequential(self.target.readout)
            prepack(self._readout)

    def _log_probs(self, states: Float[Tensor, "n D"]) -> Float[Tensor, "n V"]:
        """log p^D of the next token; -inf for what must never be proposed."""
        logits: Tensor = self._readout(states.to(self.target.dtype)).float() + self._banned
        return logits.log_softmax(-1)
