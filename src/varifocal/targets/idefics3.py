"""Idefics3, SmolVLM and the pictures of SmolVLM2."""

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from varifocal.errors import UnsupportedTarget
from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import HFTarget, Pictures, Seen
from varifocal.targets._pictures import PictureProcessor, check_placeholder, tiled_cells

_FRAME, _WHOLE = "<fake_token_around_image>", "<global-img>"


class Idefics3Target(HFTarget):
    """`Idefics3ForConditionalGeneration` and `SmolVLMForConditionalGeneration`.

    A picture is enlarged or shrunk to a longest side, stretched to whole tiles, cut into them and
    followed by a view of the whole picture. In the prompt each tile is announced by its row and
    column, and rows of tiles end with a line feed.
    """

    model_types: ClassVar[tuple[str, ...]] = ("idefics3", "smolvlm")

    tested: ClassVar[str] = "Llama inside"
    image_token = "<image>"

    def check(self) -> None:
        """Language models that are not tested, and files that contradict each other."""
        kind = self.model.config.text_config.model_type
        if kind != "llama":
            raise UnsupportedTarget(
                f"{self.name} has a language model of type {kind!r}; this family is tested with "
                "llama. Choose such a checkpoint, or decode it with transformers' own generate."
            )
        check_placeholder(self.model.config.image_token_id, self._image_id, self.name)

    @classmethod
    def load_processor(cls, path: str | Path) -> PictureProcessor:
        """Without the video processor."""
        return PictureProcessor.load(path)

    def text_parts(self) -> tuple[Any, Any]:
        """The Llama inside, and its head."""
        return self.model.model.text_model, self.model.lm_head

    def process_images(self, request: Request) -> Pictures:
        """Tiles of all pictures one after the other, and what announces them in the prompt."""
        images = list(request.images)
        made = self.processor.image_processor(images=[images], return_tensors="pt")
        pixels = {"pixel_values": made["pixel_values"]}
        return Pictures(pixels, [self._written(*self._tiles(i.height, i.width)) for i in images])

    def num_image_tokens(self, height: int, width: int) -> int:
        """Visual tokens of a picture of this size in pixels, the framing tokens not among them."""
        return len(tiled_cells(*self._tiles(height, width), self._side))

    def see(self, prompt: Prompt) -> Seen:
        """Tower and connector, by the model's own code. No tile is padded, so no mask is needed."""
        out = self.model.model.get_image_features(prompt.pixels["pixel_values"])
        # By tile, or all tiles together, in older and newer transformers.
        return Seen(torch.cat([part.flatten(0, -2) for part in out.pooler_output]))

    def regions(self, prompt: Prompt) -> list[Region]:
        """Cells of the tiles, tile by tile, then those of the view of the whole picture."""
        return [
            Region(number, box)
            for number, image in enumerate(prompt.request.images)
            for box in tiled_cells(*self._tiles(image.height, image.width), self._side)
        ]

    @property
    def _side(self) -> int:
        """Visual tokens along a side of a tile."""
        config = self.model.config
        vision = config.vision_config
        return int(vision.image_size // vision.patch_size // config.scale_factor)

    def _written(self, rows: int, columns: int) -> list[int]:
        """Ids of everything that stands for a picture of so many tiles."""
        slots = self.image_token * self._side**2
        text = ""
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                text += f"{_FRAME}<row_{row}_col_{column}>{slots}"
            text += "\n"
        text += ("\n" if rows else "") + f"{_FRAME}{_WHOLE}{slots}{_FRAME}"
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles, the view of the whole picture not among them; may be none."""
        # Imported here: it takes longer than everything else in `import varifocal` together.
        from transformers.models.idefics3.image_processing_pil_idefics3 import (
            get_resize_output_image_size,
        )

        made = self.processor.image_processor
        if not made.do_image_splitting:
            return 0, 0
        if made.do_resize:
            shape_only = np.broadcast_to(np.uint8(0), (1, height, width))
            height, width = get_resize_output_image_size(shape_only, made.size["longest_edge"])
        tile = made.max_image_size["longest_edge"]
        # The longer side grows to whole tiles first; the shorter follows it, then grows too.
        aspect = width / height
        if width >= height:
            columns = math.ceil(width / tile)
            rows = math.ceil(int(columns * tile / aspect) / tile)
        else:
            rows = math.ceil(height / tile)
            columns = math.ceil(int(rows * tile * aspect) / tile)
        return (rows, columns) if max(rows, columns) > 1 else (0, 0)
