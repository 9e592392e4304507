"""FOVEA: each draft state reads a bounded, state-dependent part of the picture before it scores.

[FOVEA] Symbols: their h_n is the state of a node after the last block and norm, x_i a projected
visual token, M_img the `Memory`, r_n what was read, hhat_n the corrected state that only the
frozen LM head sees. Recurrence and cache get h_n, so no entry ever changes. PAPERS.md lists where
the paper leaves a choice open and what was chosen.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from varifocal.drafters._blocks import Block, DraftCache, PairBlock
from varifocal.drafters._fovea_loss import fovea_loss
from varifocal.drafters._growth import Scored
from varifocal.drafters._learned import TargetHeadDrafter
from varifocal.drafters._recurrence import draft, note, read
from varifocal.drafters._tapped import find_layers, layers_of, side_by_side
from varifocal.drafters._visual import Memory, VisualCorrection
from varifocal.errors import BadOption
from varifocal.images import load_image
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.training.artifacts import Artifact, Subset
from varifocal.training.losses import Losses
from varifocal.tree import DraftTree, Evidence
from varifocal.verify import Verification


class FoveaNetwork(nn.Module):
    """Everything that is trained; the target's embeddings and head stay frozen outside."""

    def __init__(self, hidden: int, settings: "FoveaDrafter.Config") -> None:
        super().__init__()
        self.shape = shape = settings.shape(hidden)
        self.is_joined = settings.entry == "join"
        first: Block = PairBlock(shape)
        if self.is_joined:
            self.feature_norm = shape.norm()
            self.token_norm = shape.norm()
            self.join = nn.Linear(2 * hidden, hidden, bias=False)
            first = Block(shape)
        self.blocks = nn.ModuleList([first, *(Block(shape) for _ in range(settings.blocks - 1))])
        # The states that it imitates need not have zero mean.
        self.norm = shape.norm(bias=True)
        self.visual = VisualCorrection(hidden, settings)
        if settings.features == "taps":
            self.fuse = nn.Linear(3 * hidden, hidden, bias=False)

    def enter(self, feature: Float[Tensor, "*b F"], token: Float[Tensor, "*b D"]) -> Tensor:
        """The first block's input from a state and the embedding of the token after it.

        Layers of the target, which are 3 D wide, are fused into one state first.
        """
        if feature.shape[-1] != token.shape[-1]:
            feature = self.fuse(feature)
        if not self.is_joined:
            return torch.cat([token, feature], -1)
        joined: Tensor = self.join(
            torch.cat([self.feature_norm(feature), self.token_norm(token)], -1)
        )
        return joined


@dataclass
class FoveaState:
    """One request: the memory of its pictures, the draft cache, and slots not read yet."""

    memory: Memory
    cache: DraftCache
    features: Float[Tensor, "m F"]  # pending slots: what is read of the target ...
    tokens: Float[Tensor, "m D"]  # ... embeddings of the tokens after them ...
    positions: Int64[Tensor, " m"]  # ... and where they stand
    next_position: int
    top: Float[Tensor, "1 D"] | None = field(default=None, repr=False)  # the root's state


class FoveaDrafter(TargetHeadDrafter[FoveaState]):
    """Draft blocks on target features, a tree, and a visual correction of each scoring state."""

    name: ClassVar[str] = "fovea"
    pictures: ClassVar[str] = "reads a state-dependent part of each picture's memory"
    needs: ClassVar[str] = "weights trained for the target, on artifacts with taps"
    want = Want(final=True, embeddings=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetHeadDrafter.Config):
        """Sizes, retrieval, tree and objective; every ablation of the paper is a field."""

        ARCHITECTURE: ClassVar[frozenset[str]] = TargetHeadDrafter.Config.ARCHITECTURE | {
            "blocks", "entry", "features", "evidence", "taps", "prefix", "correction", "bottleneck",
            "memory_width", "depth_embedding", "gate", "unroll"
        }  # fmt: skip

        depth: int = 14
        blocks: int = 1
        entry: Literal["beside", "join"] = "beside"  # how a state meets the token after it
        features: Literal["taps", "final"] = "taps"  # three layers of the target fused, or its last
        evidence: Literal["contextual", "projected"] = "contextual"  # see `_evidence`
        taps: tuple[int, ...] = ()  # those layers, counted from 1; () is low, middle and high
        prefix: Literal["text_only", "full"] = "text_only"  # which slots the draft cache holds
        correction: Literal["visual", "none", "blind"] = "visual"  # blind: same size, no picture
        select: Literal["topk", "mass", "dense", "random", "static", "query_agnostic"] = "topk"
        top_k: int = 16  # K_r, for every rule but "mass" and "dense"
        rho: float = 0.9  # mass to reach, for "mass"
        k_min: int = 4
        k_max: int = 64
        memory_width: int = 256  # d_k = d_u
        bottleneck: int = 128  # inner width of f
        max_correction_depth: int = 63  # deepest corrected state; 1 is the paper's preset
        depth_embedding: bool = True
        gate: bool = True
        memory_from: str = ""  # a picture file to read instead of the request's own: a control
        unroll: int = 6  # draft steps seen in training
        max_bases: int = 64  # positions of a sample from which drafts are unrolled; 0 is all
        # The objective's coefficients. [FOVEA, Tab. 5]
        gamma_w: float = 4.0  # decay of the weight over draft steps
        lambda_hid: float = 1.0
        lambda_kl: float = 0.2
        lambda_tok: float = 1.0
        beta_h: float = 1.0
        beta_mid: float = 0.0
        beta_ce: float = 1.5
        beta_cmp: float = 0.5
        margin: float = 0.5

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("blocks", "top_k", "memory_width", "unroll"):
                if getattr(self, name) < 1:
                    raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
            if self.taps and len(self.taps) != 3:
                raise BadOption(f"taps must be three layers, got {self.taps}")
            if not 0 < self.rho <= 1 or not 1 <= self.k_min <= self.k_max:
                raise BadOption(
                    "rho must be in (0, 1] and 1 <= k_min <= k_max, got "
                    f"{self.rho}, {self.k_min}, {self.k_max}"
                )

    config: Config
    network: FoveaNetwork

    def __init__(self, target: Target, config: Config, network: FoveaNetwork | None = None) -> None:
        super().__init__(target, config)
        if config.features == "taps" or config.evidence == "contextual":
            self.want = replace(self.want, layers=layers_of(target, config.taps))
        self.network = network or FoveaNetwork(target.hidden_size, config)
        self.network.to(target.device)

    # -- decoding ------------------------------------------------------------------------------

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> FoveaState:
        """Build the memory and read the prompt."""
        assert prefill.final is not None and prefill.embeddings is not None
        visual = self._evidence(prompt, prefill)
        if self.config.memory_from:
            visual = self._foreign_picture
        following = torch.cat([prefill.embeddings[1:], self._embed([root])])
        positions = torch.arange(len(following), device=following.device)
        features = self._features(prefill)
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
            log_probs, evidence = self._score(states, depth, state.memory)
            # To carry it along costs as much as the correction.
            return log_probs, evidence if budget.looks else None

        return draft(self.network, self.target, state, root, score, self.config.width, budget)

    def observe(self, state: FoveaState, verdict: Verification, seen: Forward) -> None:
        """Keep the true features of the accepted path for the next draft; no computation yet."""
        note(state, self._features(seen), self._embed(verdict.tokens))

    def _features(self, seen: Forward) -> Float[Tensor, "n F"]:
        """What the recurrence reads of the target."""
        assert seen.final is not None
        return side_by_side(seen) if self.config.features == "taps" else seen.final

    def _evidence(self, prompt: Prompt, seen: Forward) -> Float[Tensor, "M E"]:
        """What the memory is made of."""
        assert seen.embeddings is not None
        is_contextual = self.config.evidence == "contextual"
        return (side_by_side(seen) if is_contextual else seen.embeddings)[prompt.is_image]

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
        _, seen = self.target.prefill(prompt, self.want)
        return self._evidence(prompt, seen)

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    # -- training ------------------------------------------------------------------------------

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """The paper's objective over an unroll of draft steps. [FOVEA, Eq. 10-14]"""
        return fovea_loss(self.network, self.target, self.config, batch, self.want.layers)

    def survey(self, data: Subset) -> None:
        """Refuse a recording without the layers that it reads, before the first update."""
        known = data.store.manifest.origin.taps
        find_layers(self.want.layers, known, self.name, str(data.store.folder))
