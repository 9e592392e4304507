"""Text-only EAGLE: the control that sees of a picture only what the target's states hold. [EAGLE-2]

Slots of pictures are left out of the draft's prefix, so what a text slot knows of them came through
the target's own attention. It differs from FOVEA's network by the absence of the visual memory
alone. Left out: noise on the features; the unroll meets the draft's own errors instead.

With `prefix="full"` it is EAGLE-2 as published: every slot joins the target's state with what the
target reads next, of a picture its projected embedding.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from varifocal.drafters._eagle import EagleConfig, EagleDrafter
from varifocal.drafters._recurrence import Recurrence, begin, read
from varifocal.drafters._unroll import Chain, collate, nothing
from varifocal.errors import BadOption
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.training.artifacts import Artifact
from varifocal.training.losses import Losses


class TextOnlyDrafter(EagleDrafter[Recurrence]):
    """Draft blocks on target features and a tree; by default no picture, and the target's head."""

    name: ClassVar[str] = "text_only"
    pictures: ClassVar[str] = "sees none: text slots only, whose target states read the picture"
    needs: ClassVar[str] = "weights trained for the target"

    @dataclass(frozen=True, kw_only=True)
    class Config(EagleConfig):
        """Sizes, tree and objective."""

        ARCHITECTURE: ClassVar[frozenset[str]] = EagleConfig.ARCHITECTURE | {"prefix"}

        prefix: Literal["text_only", "full"] = "text_only"  # full: pictures' slots too

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.prefix not in ("text_only", "full"):
                raise BadOption(f'prefix must be "text_only" or "full", got {self.prefix!r}')

    config: Config

    def __init__(self, target: Target, config: Config) -> None:
        super().__init__(target, config)
        self.want = Want(final=True, embeddings=config.prefix == "full")

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> Recurrence:
        """Read the prompt, its text alone or all of it."""
        assert prefill.final is not None
        text_only = self.config.prefix == "text_only"
        if text_only:
            following = self._embed([*prompt.tokens[1:].tolist(), root])
        else:
            following = self._following(prefill, root)
        state = begin(prefill.final, following, prompt.is_image, text_only=text_only)
        read(self.network, state)
        return state

    def loss(self, batch: list[Artifact], progress: float) -> Losses:
        """Smooth L1 of the states and cross entropy of the laws, over an unroll. [EAGLE, Sec. 4]"""
        slots = collate(
            batch,
            self.target,
            lambda item: item.final,
            text_only=self.config.prefix == "text_only",
            max_bases=self.config.max_bases,
            visual=True,
        )
        if slots.bases.shape[1] == 0:
            return nothing(self.network)
        return self._objective(Chain(self.network, slots), slots)
