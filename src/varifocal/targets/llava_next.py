"""LLaVA-NeXT: a base view and tiles of each picture, rows of tiles ended by a newline entry."""

from typing import Any, ClassVar

import torch

from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import HFTarget, Pictures, Seen


class LlavaNextTarget(HFTarget):
    """`LlavaNextForConditionalGeneration` with a full-attention language model."""

    model_types: ClassVar[tuple[str, ...]] = ("llava_next",)

    def text_parts(self) -> tuple[Any, Any]:
        """The Llama inside, and its head."""
        return self.model.model.language_model, self.model.lm_head

    @property
    def image_token(self) -> str:  # type: ignore[override]  # a constant of the processor
        """The placeholder of one picture."""
        return str(self.processor.image_token)

    def process_images(self, request: Request) -> Pictures:
        """Tiles as the checkpoint's own image processor cuts them."""
        images = list(request.images)
        made = self.processor.image_processor(images=images, return_tensors="pt")
        pixels = {"pixel_values": made["pixel_values"], "image_sizes": made["image_sizes"]}
        counts = [self.num_image_tokens(i.height, i.width) for i in images]
        return Pictures(pixels, [[self._image_id] * count for count in counts])

    def num_image_tokens(self, height: int, width: int) -> int:
        """Visual tokens of a picture: base view, visible patches, one newline a row."""
        rows, columns = self._grid(height, width)
        return self._side**2 + rows * (columns + 1)

    def see(self, prompt: Prompt) -> Seen:
        """Tower and projector, packed by the model's own code."""
        config = self.model.config
        out = self.model.model.get_image_features(
            pixel_values=prompt.pixels["pixel_values"].to(self.dtype),
            image_sizes=prompt.pixels["image_sizes"],
            vision_feature_layer=config.vision_feature_layer,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
        )
        return Seen(torch.cat(list(out.pooler_output), dim=0))

    def regions(self, prompt: Prompt) -> list[Region]:
        """Base view cells, then the visible patches row by row."""
        regions = []
        for number, image in enumerate(prompt.request.images):
            regions += [Region(number, box) for box in _cells(self._side, self._side)]
            rows, columns = self._grid(image.height, image.width)
            cells = iter(_cells(rows, columns))
            for _ in range(rows):
                regions += [Region(number, next(cells)) for _ in range(columns)]
                regions.append(Region(number, None))
        return regions

    @property
    def _side(self) -> int:
        vision = self.model.config.vision_config
        return int(vision.image_size // vision.patch_size)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visible patches.

        A very elongated picture may have none: then only its base view is read.
        """
        # Imported here: it takes longer than everything else in `import varifocal` together.
        from transformers.image_processing_utils import select_best_resolution

        config = self.model.config
        best_h, best_w = select_best_resolution((height, width), config.image_grid_pinpoints)
        tile = config.vision_config.image_size
        rows, columns = best_h // tile * self._side, best_w // tile * self._side
        # The picture keeps its shape inside the chosen resolution; padded patches are cut away.
        if width / height > columns / rows:
            visible = int(round(height * (columns / width), 7))
            rows -= (rows - visible) // 2 * 2
        else:
            visible = int(round(width * (rows / height), 7))
            columns -= (columns - visible) // 2 * 2
        return rows, columns


def _cells(rows: int, columns: int) -> list[tuple[float, float, float, float]]:
    """Boxes of an even grid over the whole picture, row by row."""
    return [
        (c / columns, r / rows, (c + 1) / columns, (r + 1) / rows)
        for r in range(rows)
        for c in range(columns)
    ]
