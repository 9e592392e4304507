"""Qwen2-VL and Qwen2.5-VL."""

from typing import ClassVar

import torch

from varifocal.target import Prompt
from varifocal.targets._hf import Seen
from varifocal.targets._qwen import QwenTarget


class Qwen2VLTarget(QwenTarget):
    """`Qwen2VLForConditionalGeneration` and `Qwen2_5_VLForConditionalGeneration`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen2_vl", "qwen2_5_vl")

    def see(self, prompt: Prompt) -> Seen:
        """Tower and merger, by the model's own code."""
        out = self.model.model.get_image_features(
            prompt.pixels["pixel_values"], prompt.pixels["image_grid_thw"]
        )
        return Seen(torch.cat(list(out.pooler_output)))
