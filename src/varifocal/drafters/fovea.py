"""FOVEA: each draft state reads a bounded, state-dependent part of the picture before it scores.

[FOVEA] Symbols: their h_n is the state of a node after the last block and norm, x_i a projected
visual token, M_img the `Memory`, r_n what was read, hhat_n the corrected state that only the
frozen LM head sees. Recurrence and cache get h_n, so no entry ever changes. PAPERS.md lists where
the paper leaves a choice open and what was chosen.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.drafters._blocks import DraftCache
from varifocal.drafters._eagle import JoinConfig, JoinNetwork
from varifocal.drafters._fovea_loss import fovea_loss
from varifocal.drafters._growth import Scored
from varifocal.drafters._learned import TargetHeadDrafter
from varifocal.drafters._recurrence import draft, note, read
from varifocal.drafters._visual import Memory, VisualCorrection
from varifocal.errors import BadOption
from varifocal.images import load_image
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses
from varifocal.tree import DraftTree, Evidence
from varifocal.verify import Verification


class FoveaNetwork(JoinNetwork):
    """Blocks on joined states and embeddings, and what corrects the states that are scored."""

    def __init__(self, hidden: int, settings: "FoveaDrafter.Config") -> None:
        super().__init__(hidden, settings)
        self.visual = VisualCorrection(hidden, settings)


@dataclass
class FoveaState:
    """One request: the memory of its pictures, the draft cache, and slots not read yet."""

    memory: Memory
    cache: DraftCache
    features: Float[Tensor, "m D"]  # pending slots: target states ...
    tokens: Float[Tensor, "m D"]  # ... embeddings of the tokens after them ...
    positions: Int64[Tensor, " m"]  # ... and where they stand
    next_position: int
    top: Float[Tensor, "1 D"] | None = field(default=None, repr=False)  # the root's state


class FoveaDrafter(TargetHeadDrafter[FoveaState]):
    """Draft blocks on target features, a tree, and a visual correction of each scoring state."""

    name: ClassVar[str] = "fovea"
    pictures: ClassVar[str] = "reads a state-dependent part of each picture's memory"
    needs: ClassVar[str] = "weights trained for the target"
    want = Want(final=True, embeddings=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(JoinConfig):
        """Sizes, retrieval, tree and objective; every ablation of the paper is a field."""

        ARCHITECTURE: ClassVar[frozenset[str]] = JoinConfig.ARCHITECTURE | {
            "memory_width", "bottleneck", "correction", "prefix", "depth_embedding", "gate"
        }  # fmt: skip

        prefix: Literal["text_only", "full"] = "text_only"  # which slots the draft cache holds
        correction: Literal["visual", "none", "blind"] = "visual"  # blind: same size, no picture
        select: Literal["topk", "mass", "dense", "random", "static", "query_agnostic"] = "topk"
        top_k: int = 16  # K_r, for every rule but "mass" and "dense"
        rho: float = 0.9  # mass to reach, for "mass"
        k_min: int = 4
        k_max: int = 64
        memory_width: int = 256  # d_k = d_u
        bottleneck: int = 128  # inner width of f
        max_correction_depth: int = 5  # deepest corrected state; 1 is the paper's preset
        depth_embedding: bool = True
        gate: bool = True
        memory_from: str = ""  # a picture file to read instead of the request's own: a control
        # The objective's coefficients. [FOVEA, Tab. 5]
        gamma_w: float = 1.0  # decay of the weight over draft steps
        lambda_hid: float = 1.0
        lambda_kl: float = 0.2
        lambda_tok: float = 1.0
        beta_h: float = 1.0
        beta_mid: float = 0.1
        beta_ce: float = 1.5
        beta_cmp: float = 0.5
        margin: float = 0.5

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("top_k", "memory_width"):
                if getattr(self, name) < 1:
                    raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
            if not 0 < self.rho <= 1 or not 1 <= self.k_min <= self.k_max:
                raise BadOption(
                    "rho must be in (0, 1] and 1 <= k_min <= k_max, got "
                    f"{self.rho}, {self.k_min}, {self.k_max}"
                )

    config: Config
    network: FoveaNetwork

    def __init__(self, target: Target, config: Config, network: FoveaNetwork | None = None) -> None:
        super().__init__(target, config)
        self.network = network or FoveaNetwork(target.hidden_size, config)
        self.network.to(target.device)

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> FoveaState:
        """Build the memory and read the prompt."""
        assert prefill.final is not None and prefill.embeddings is not None
        visual = prefill.embeddings[prompt.is_image]
        if self.config.memory_from:
            visual = self._foreign_picture
        following = torch.cat([prefill.embeddings[1:], self._embed([root])])
        positions = torch.arange(len(following), device=following.device)
        features = prefill.final
        if self.config.prefix == "text_only":
            keep = torch.cat([~prompt.is_image[1:], torch.ones_like(prompt.is_image[:1])])
            features, following, positions = features[keep], following[keep], positions[keep]
        state = FoveaState(
            self.network.visual.remember(visual.to(self._dtype)),
            DraftCache(),
            features,
            following,
            positions,
            len(prompt.tokens),
        )
        read(self.network, state)
        return state

    def propose(self, state: FoveaState, root: int, budget: Budget) -> DraftTree:
        """Grow a tree below the root."""

        def score(states: Tensor, depth: int) -> Scored:
            return self._score(states, depth, state.memory)

        return draft(self.network, self.target, state, root, score, self.config.width, budget)

    def observe(self, state: FoveaState, verdict: Verification, seen: Forward) -> None:
        """Keep the true features of the accepted path for the next draft; no computation yet."""
        assert seen.final is not None
        note(state, seen.final, self._embed(verdict.tokens))

    def _score(self, h: Tensor, depth: int, memory: Memory) -> Scored:
        """log p^D of the next token for each state, corrected where the depth allows it."""
        evidence: Evidence | None = None
        if self.config.correction != "none" and depth <= self.config.max_correction_depth:
            h, evidence = self.network.visual(h, depth, memory)
        return self._log_probs(h), evidence

    @cached_property
    def _foreign_picture(self) -> Float[Tensor, "M D"]:
        """Visual tokens of the control's picture: a constant of the drafter, not of a request."""
        prompt = self.target.encode(ask("?", [load_image(self.config.memory_from)]))
        _, seen = self.target.prefill(prompt, Want(embeddings=True))
        assert seen.embeddings is not None
        return seen.embeddings[prompt.is_image]

    @property
    def _dtype(self) -> torch.dtype:
        return self.network.join.weight.dtype

    # -- training ------------------------------------------------------------------------------

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """The paper's objective over an unroll of draft steps. [FOVEA, Eq. 10-14]"""
        return fovea_loss(self.network, self.target, self.config, batch)
