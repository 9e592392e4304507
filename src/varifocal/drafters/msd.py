"""MSD: a picture's slots enter the draft as the projected embeddings themselves. [MSD]

The slot whose following token is a picture's reads that token's projected embedding and no state
of the target; a text slot reads the join (their fc) of state and embedding. All slots stay in the
draft's cache. Left out: noise on the features, since the unroll meets the draft's own errors; and
a second pool of samples without pictures, for which the first part of the curriculum leaves out
the slots of the pictures.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varifocal.drafters._eagle import EagleConfig, EagleDrafter, JoinNetwork
from varifocal.drafters._recurrence import Recurrence, absorb, begin
from varifocal.drafters._unroll import Chain, collate, nothing
from varifocal.errors import BadOption
from varifocal.target import Forward, Prompt, Want
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses


class MsdNetwork(JoinNetwork):
    """Blocks on joins for text, and on visual embeddings as they are."""

    def decouple(
        self,
        feature: Float[Tensor, "*b D"],
        following: Float[Tensor, "*b D"],
        is_visual: Bool[Tensor, "*b"],
    ) -> Float[Tensor, "*b D"]:
        """The first block's inputs; `is_visual` says which slots a picture's token follows."""
        is_text = ~is_visual
        joined = self.enter(feature[is_text], following[is_text])
        x = following.to(joined.dtype, copy=True)
        x[is_text] = joined
        return x


class MsdDrafter(EagleDrafter[Recurrence]):
    """Draft blocks over text and all of the picture, a tree, and the target's own head."""

    name: ClassVar[str] = "msd"
    pictures: ClassVar[str] = "holds all visual tokens in its cache, as projected embeddings"
    needs: ClassVar[str] = "weights trained for the target"
    want = Want(final=True, embeddings=True)

    @dataclass(frozen=True, kw_only=True)
    class Config(EagleConfig):
        """Sizes, tree, objective and curriculum; the paper's is visual_from=0.5, visual_rise=0.5.

        In the paper, classification=0.1.
        """

        classification: float = 1.0  # weight of the cross entropy with the target's law
        visual_from: float = 0.0  # share of the training before which no batch has its pictures
        visual_rise: float = 0.0  # share of it over which batches with them rise from none to all

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 <= self.visual_from < 1:
                raise BadOption(f"visual_from must be in [0, 1), got {self.visual_from}")
            if not 0 <= self.visual_rise <= 1 - self.visual_from:
                raise BadOption(
                    "visual_rise must be at least 0 and at most 1 - visual_from, got "
                    f"{self.visual_rise} with visual_from={self.visual_from}"
                )

    config: Config
    network: MsdNetwork

    def _made(self, hidden: int) -> MsdNetwork:
        """A network with fresh weights."""
        return MsdNetwork(hidden, self.config)

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> Recurrence:
        """Read the prompt, pictures included."""
        assert prefill.final is not None
        following = self._following(prefill, root)
        state = begin(prefill.final, following, prompt.is_image, text_only=False)
        is_visual = torch.cat([prompt.is_image[1:], torch.zeros_like(prompt.is_image[:1])])
        kind = self.network.join.weight.dtype
        x = self.network.decouple(state.features.to(kind), following.to(kind), is_visual)
        absorb(self.network, state, x)
        return state

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """EAGLE's objective over an unroll, with the pictures that the curriculum allows by now."""
        most = self.config.max_bases
        slots = collate(
            batch,
            self.target,
            lambda item: item.final,
            text_only=not self._shows(progress),
            max_bases=most,
            visual=True,
        )
        if slots.bases.shape[1] == 0:
            return nothing(self.network)
        x = self.network.decouple(slots.features, slots.embeddings, slots.is_visual)
        return self._objective(Chain(self.network, slots, x), slots)

    def _shows(self, progress: float) -> bool:
        """Whether this batch has its pictures; a draw while their share rises."""
        since = progress - self.config.visual_from
        if since < 0 or not self.config.visual_rise:
            return since >= 0
        return float(torch.rand(())) < since / self.config.visual_rise
