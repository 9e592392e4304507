"""What drafters on the target's last state share: network, objective, decoding. [EAGLE-2]

Their fc is `join`; w_reg is `regression`, w_cls `classification`. With `bare`, `first_norm=False`
and `norms="rms"` the network is the published one, which has no norms but those inside the block.
"""

from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from varifocal.drafters._blocks import Block
from varifocal.drafters._growth import Scored
from varifocal.drafters._learned import LearnedDrafter, TargetHeadDrafter
from varifocal.drafters._recurrence import Reader, draft, note
from varifocal.drafters._unroll import Chain, Judged, Teacher, Unrolled, gather, unroll
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Target, Want
from varifocal.training.losses import Losses, depth_weight
from varifocal.tree import DraftTree
from varifocal.verify import Verification

R = TypeVar("R", bound=Reader)


@dataclass(frozen=True, kw_only=True)
class JoinConfig(LearnedDrafter.Config):
    """Of networks whose first block reads a state joined with the embedding after it."""

    ARCHITECTURE: ClassVar[frozenset[str]] = LearnedDrafter.Config.ARCHITECTURE | {
        "blocks", "bare", "first_norm", "join_bias"
    }  # fmt: skip

    blocks: int = 2
    bare: bool = False  # no norms of what is joined, none before the head
    first_norm: bool = True  # norm before the first block's attention
    join_bias: bool = False
    unroll: int = 6  # draft steps seen in training
    max_bases: int = 64  # positions of a sample from which drafts are unrolled; 0 is all

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("blocks", "unroll"):
            if getattr(self, name) < 1:
                raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_bases < 0:
            raise BadOption(f"max_bases must be at least 0, got {self.max_bases}")


@dataclass(frozen=True, kw_only=True)
class EagleConfig(JoinConfig):
    """Sizes, tree and objective. blocks=1, unroll=1 is the setting of [EAGLE-2]."""

    gamma_w: float = 1.0  # decay of the weight over draft steps, as FOVEA's
    regression: float = 1.0  # weight of smooth L1 between draft state and target state
    classification: float = 0.1  # weight of the cross entropy with the target's law

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma_w <= 0:
            raise BadOption(f"gamma_w must be positive, got {self.gamma_w}")


class JoinNetwork(nn.Module):
    """Everything that is trained; the target's embeddings and head stay frozen outside."""

    def __init__(self, hidden: int, settings: JoinConfig) -> None:
        super().__init__()
        self.shape = shape = settings.shape(hidden)
        bare = settings.bare
        self.feature_norm = nn.Identity() if bare else shape.norm()
        self.token_norm = nn.Identity() if bare else shape.norm()
        self.join = nn.Linear(2 * hidden, hidden, bias=settings.join_bias)
        self.blocks = nn.ModuleList(
            Block(shape, has_input_norm=n > 0 or settings.first_norm)
            for n in range(settings.blocks)
        )
        # The states that it imitates need not have zero mean.
        self.norm = nn.Identity() if bare else shape.norm(bias=True)

    def enter(self, feature: Float[Tensor, "*b D"], token: Float[Tensor, "*b D"]) -> Tensor:
        """The first block's input from a state and the embedding of the token after it."""
        return self.join(torch.cat([self.feature_norm(feature), self.token_norm(token)], -1))  # type: ignore[no-any-return]


@runtime_checkable
class Supervised(Unrolled, Protocol):
    """A padded batch with the states that the target's head reads."""

    @property
    def final(self) -> Tensor:
        """[B, S, D]."""


class EagleDrafter(TargetHeadDrafter[R], Generic[R]):
    """Drafts on the target's last state with its own head; what it sees of pictures is open."""

    want = Want(final=True)
    Config = EagleConfig

    config: EagleConfig
    network: JoinNetwork

    def __init__(self, target: Target, config: EagleConfig) -> None:
        super().__init__(target, config)
        self.network = self._made(target.hidden_size).to(target.device)

    def _made(self, hidden: int) -> JoinNetwork:
        """A network with fresh weights."""
        return JoinNetwork(hidden, self.config)

    def propose(self, state: R, root: int, budget: Budget) -> DraftTree:
        """Grow a tree below the root."""
        width = self.config.width
        return draft(self.network, self.target, state, root, self._score, width, budget)

    def observe(self, state: R, verdict: Verification, seen: Forward) -> None:
        """Keep the true features of the accepted path for the next draft; no computation yet."""
        assert seen.final is not None
        note(state, seen.final, self._embed(verdict.tokens))

    def _following(self, prefill: Forward, root: int) -> Float[Tensor, "T D"]:
        """What the target reads after each slot of the prompt: pictures as projected embeddings."""
        assert prefill.embeddings is not None
        return torch.cat([prefill.embeddings[1:], self._embed([root])])

    def _score(self, states: Float[Tensor, "n D"], depth: int) -> Scored:
        """Log-probabilities of the next token for each state."""
        return self._log_probs(states), None

    def _objective(self, chain: Chain, slots: Supervised) -> Losses:
        """w_reg * smooth L1 of the states + w_cls * cross entropy of the laws. [EAGLE, Sec. 4]"""
        config, target = self.config, self.target
        teacher = Teacher(target, slots.final, slots.answer)

        def judge(step: int, h: Tensor, place: Tensor, alive: Tensor) -> Judged:
            states, row = h[alive].float(), gather(teacher.place, place)[alive]
            wanted = gather(slots.final, place)[alive]
            log_q = target.head(states.to(target.dtype)).float().log_softmax(-1)
            p = teacher.p[row]
            values = {
                "regression": F.smooth_l1_loss(states, wanted, reduction="none").mean(-1).sum(),
                "classification": -(p * log_q).sum(),
                **self._further(p, log_q),
            }
            hits = (log_q.argmax(-1) == teacher.labels[row]).float().sum()
            return Judged(values, hits, alive.sum())

        weights = [depth_weight(n + 1, config.gamma_w) for n in range(config.unroll)]
        parts, agree = unroll(chain, slots, weights, judge)
        total = torch.stack([getattr(config, name) * part for name, part in parts.items()]).sum()
        return Losses(total, {name: value.detach() for name, value in (parts | agree).items()})

    def _further(
        self, p: Float[Tensor, "n V"], log_q: Float[Tensor, "n V"]
    ) -> dict[str, Float[Tensor, ""]]:
        """More terms of a method's own, summed over states; a setting of its name weighs each."""
        return {}
