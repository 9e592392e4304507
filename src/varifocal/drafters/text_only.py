"""Text-only EAGLE: the control that sees of a picture only what the target's states hold. [EAGLE-2]

Slots of pictures are left out of the draft's prefix, so what a text slot knows of them came through
the target's own attention. It differs from FOVEA's network by the absence of the visual memory
alone. Left out: noise on the features; the unroll meets the draft's own errors instead.
"""

from dataclasses import dataclass
from typing import ClassVar

from varifocal.drafters._eagle import EagleConfig, EagleDrafter
from varifocal.drafters._recurrence import Recurrence, begin, read
from varifocal.drafters._unroll import Chain, collate, nothing
from varifocal.target import Forward, Prompt
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses


class TextOnlyDrafter(EagleDrafter):
    """Draft blocks on target features and a tree; no picture, and the target's own head."""

    name: ClassVar[str] = "text_only"
    pictures: ClassVar[str] = "sees none: text slots only, whose target states read the picture"
    needs: ClassVar[str] = "weights trained for the target"

    @dataclass(frozen=True, kw_only=True)
    class Config(EagleConfig):
        """Sizes, tree and objective."""

    config: Config

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> Recurrence:
        """Read the prompt's text."""
        assert prefill.final is not None
        following = self._embed([*prompt.tokens[1:].tolist(), root])
        state = begin(prefill.final, following, prompt.is_image, text_only=True)
        read(self.network, state)
        return state

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """Smooth L1 of the states and cross entropy of the laws, over an unroll. [EAGLE, Sec. 4]"""
        most = self.config.max_bases
        slots = collate(batch, self.target, lambda i: i.final, text_only=True, max_bases=most)
        if slots.bases.shape[1] == 0:
            return nothing(self.network)
        return self._objective(Chain(self.network, slots), slots)
