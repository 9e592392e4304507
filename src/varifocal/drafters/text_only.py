"""Text-only EAGLE: the control that sees of a picture only what the target's states hold. [EAGLE-2]

Symbols: their f_i is `Forward.final`, fc is `join`; w_reg is `regression`, w_cls `classification`.
Slots of pictures are left out of the draft's prefix, so what a text slot knows of them came through
the target's own attention. It differs from FOVEA's network by the absence of the visual memory
alone. Left out: noise on the features; the unroll meets the draft's own errors instead.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from varifocal.drafters._blocks import Block, norm
from varifocal.drafters._growth import Scored
from varifocal.drafters._learned import TargetHeadDrafter
from varifocal.drafters._recurrence import Recurrence, begin, draft, note, read
from varifocal.drafters._unroll import Chain, Judged, Teacher, collate, gather, nothing, unroll
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses, depth_weight
from varifocal.tree import DraftTree
from varifocal.verify import Verification


class TextOnlyNetwork(nn.Module):
    """Everything that is trained; the target's embeddings and head stay frozen outside."""

    def __init__(self, hidden: int, settings: "TextOnlyDrafter.Config") -> None:
        super().__init__()
        self.hidden, self.heads = hidden, settings.heads
        self.feature_norm = norm(hidden)
        self.token_norm = norm(hidden)
        self.join = nn.Linear(2 * hidden, hidden, bias=False)
        self.blocks = nn.ModuleList(
            Block(hidden, settings.heads, settings.inner) for _ in range(settings.blocks)
        )
        self.norm = norm(hidden, bias=True)

    def enter(self, feature: Float[Tensor, "*b D"], token: Float[Tensor, "*b D"]) -> Tensor:
        """The first block's input from a state and the embedding of the token after it."""
        return self.join(torch.cat([self.feature_norm(feature), self.token_norm(token)], -1))  # type: ignore[no-any-return]


class TextOnlyDrafter(TargetHeadDrafter[Recurrence]):
    """Draft blocks on target features and a tree; no picture, and the target's own head."""

    name: ClassVar[str] = "text_only"
    pictures: ClassVar[str] = "sees none: text slots only, whose target states read the picture"
    needs: ClassVar[str] = "weights trained for the target"
    want = Want(final=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetHeadDrafter.Config):
        """Sizes, tree and objective. blocks=1, unroll=1 is the setting of [EAGLE-2]."""

        ARCHITECTURE: ClassVar[frozenset[str]] = frozenset({"blocks", "inner", "heads"})

        width: int = 6  # children per node, and nodes expanded per level
        blocks: int = 2
        inner: int = 512  # feed-forward width of a block
        heads: int = 4
        unroll: int = 6  # draft steps seen in training
        max_bases: int = 64  # positions of a sample from which drafts are unrolled; 0 is all
        gamma_w: float = 1.0  # decay of the weight over draft steps, as FOVEA's
        regression: float = 1.0  # weight of smooth L1 between draft state and target state
        classification: float = 0.1  # weight of the cross entropy with the target's law

        def __post_init__(self) -> None:
            super().__post_init__()
            for name in ("width", "blocks", "inner", "heads", "unroll"):
                if getattr(self, name) < 1:
                    raise BadOption(f"{name} must be at least 1, got {getattr(self, name)}")
            if self.max_bases < 0 or self.gamma_w <= 0:
                raise BadOption(
                    "max_bases must be at least 0 and gamma_w positive, got "
                    f"{self.max_bases} and {self.gamma_w}"
                )

    config: Config
    network: TextOnlyNetwork

    def __init__(self, target: Target, config: Config) -> None:
        super().__init__(target, config)
        self.network = TextOnlyNetwork(target.hidden_size, config).to(target.device)

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> Recurrence:
        """Read the prompt's text."""
        assert prefill.final is not None
        following = self._embed([*prompt.tokens[1:].tolist(), root])
        state = begin(prefill.final, following, prompt.is_image, text_only=True)
        read(self.network, state)
        return state

    def propose(self, state: Recurrence, root: int, budget: Budget) -> DraftTree:
        """Grow a tree below the root."""
        width = self.config.width
        return draft(self.network, self.target, state, root, self._score, width, budget)

    def observe(self, state: Recurrence, verdict: Verification, seen: Forward) -> None:
        """Keep the true features of the accepted path for the next draft; no computation yet."""
        assert seen.final is not None
        note(state, seen.final, self._embed(verdict.tokens))

    def _score(self, states: Float[Tensor, "n D"], depth: int) -> Scored:
        """Log-probabilities of the next token for each state."""
        return self._log_probs(states), None

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """w_reg * smooth L1 of the states + w_cls * cross entropy of the laws. [EAGLE, Sec. 4]"""
        config, target = self.config, self.target
        slots = collate(
            batch, target, lambda item: item.final, text_only=True, max_bases=config.max_bases
        )
        if slots.bases.shape[1] == 0:
            return nothing(self.network)
        teacher = Teacher(target, slots.final, slots.answer)

        def judge(step: int, h: Tensor, place: Tensor, alive: Tensor) -> Judged:
            states, row = h[alive].float(), gather(teacher.place, place)[alive]
            wanted = gather(slots.final, place)[alive]
            log_q = target.head(states.to(target.dtype)).float().log_softmax(-1)
            values = {
                "regression": F.smooth_l1_loss(states, wanted, reduction="none").mean(-1).sum(),
                "classification": -(teacher.p[row] * log_q).sum(),
            }
            hits = (log_q.argmax(-1) == teacher.labels[row]).float().sum()
            return Judged(values, hits, alive.sum())

        weights = [depth_weight(n + 1, config.gamma_w) for n in range(config.unroll)]
        parts, agree = unroll(Chain(self.network, slots), slots, weights, judge)
        total = (
            config.regression * parts["regression"]
            + config.classification * parts["classification"]
        )
        return Losses(total, {name: value.detach() for name, value in (parts | agree).items()})
