"""Qwen3-VL: features of inner tower layers are added behind the first decoder layers (DeepStack).

Left out: the mixture-of-experts models (`qwen3_vl_moe`). Their experts see as many rows as are
routed to them, so results depend on which tokens share a forward and rows cannot be made exact.
"""

from typing import ClassVar

import torch

from varifocal.target import Prompt
from varifocal.targets._hf import Seen
from varifocal.targets._qwen import QwenTarget


class Qwen3VLTarget(QwenTarget):
    """`Qwen3VLForConditionalGeneration`."""

    model_types: ClassVar[tuple[str, ...]] = ("qwen3_vl",)

    def see(self, prompt: Prompt) -> Seen:
        """Tower and mergers, by the model's own code."""
        out = self.model.model.get_image_features(
            prompt.pixels["pixel_values"], prompt.pixels["image_grid_thw"]
        )
        deepstack = [torch.cat(list(layer)) for layer in out.deepstack_features]
        extra = {
            "visual_pos_masks": prompt.is_image[None],
            "deepstack_visual_embeds": deepstack,
        }
        return Seen(torch.cat(list(out.pooler_output)), extra)
