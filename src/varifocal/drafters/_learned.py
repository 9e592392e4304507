"""What drafters with weights of their own have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from varifocal.drafter import Drafter
from varifocal.drafters._blocks import BlockShape
from varifocal.errors import BadOption
from varifocal.fast import prepack
from varifocal.target import Target

S = TypeVar("S")


class LearnedDrafter(Drafter[S], Generic[S]):
    """A drafter with a trained `network`."""

    network: nn.Module

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        """The tree's width, and the kind of its blocks."""

        # What the weights were trained as, and options cannot change.
        ARCHITECTURE: ClassVar[frozenset[str]] = frozenset(
            {"inner", "heads", "kv_heads", "head_width", "norms", "eps", "bias", "theta"}
        )

        width: int = 6  # children per node, and nodes expanded per level
        inner: int = 512  # feed-forward width of a block
        heads: int = 4
        kv_heads: int = 0  # heads of keys and values; 0: as many as of queries
        head_width: int = 0  # 0: the hidden size's share
        norms: Literal["layer", "rms"] = "layer"
        eps: float = 1e-6  # of norms
        bias: bool = False  # of queries, keys and values
        theta: float = 10_000.0  # base of the rotary positions

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("width", "inner", "heads"):
                if getattr(self, name) < 1:
                    raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
            if self.kv_heads < 0 or self.heads % (self.kv_heads or self.heads):
                raise BadOption(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
            if self.head_width < 0 or self.head_width % 2:
                raise BadOption(f"head_width must be even, got {self.head_width}")
            if self.norms not in ("layer", "rms"):
                raise BadOption(f'norms must be "layer" or "rms", got {self.norms!r}')

        def shape(self, hidden: int) -> BlockShape:
            """Of the blocks for a target of this hidden size."""
            if not self.head_width and hidden % self.heads:
                raise BadOption(f"heads={self.heads} does not divide {hidden}")
            return BlockShape(
                hidden=hidden,
                heads=self.heads,
                inner=self.inner,
                kv_heads=self.kv_heads or self.heads,
                head_width=self.head_width or hidden // self.heads,
                norms=self.norms,
                eps=self.eps,
                bias=self.bias,
                theta=self.theta,
            )

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
