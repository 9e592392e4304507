"""LLaVA-NeXT: a base view and tiles of each picture, rows of tiles ended by a newline entry."""

from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import Pictures, Seen
from varifocal.targets._llava import TiledLlavaTarget
from varifocal.targets._pooled import Pooled, pooled_side


class LlavaNextTarget(TiledLlavaTarget):
    """`LlavaNextForConditionalGeneration` with a full-attention language model."""

    model_types: ClassVar[tuple[str, ...]] = ("llava_next",)
    tested: ClassVar[str] = "Llama, Mistral (no window), Qwen2, Qwen3 with a CLIP or SigLIP tower"

    def process_images(self, request: Request) -> Pictures:
        """Tiles as the checkpoint's own image processor cuts them."""
        images = list(request.images)
        made = self.processor.image_processor(images=images, do_pad=True, return_tensors="pt")
        pixels = {"pixel_values": made["pixel_values"], "image_sizes": made["image_sizes"]}
        counts = [self.num_image_tokens(i.height, i.width) for i in images]
        return Pictures(pixels, [[self._image_id] * count for count in counts])

    def num_image_tokens(self, height: int, width: int) -> int:
        """Visual tokens of a picture: base view, visible patches, one newline a row."""
        rows, columns = self._grid(height, width)
        return self._side**2 + rows * (columns + 1)

    def see_pooled(self, prompt: Prompt) -> Pooled:
        """Also every view with the average of its 2x2 patches, packed as the model packs views."""
        full, views = self._see_both(prompt)
        made, begin = [], 0
        for height, width in prompt.pixels["image_sizes"].tolist():
            down, across = self._tiles(height, width)
            end = begin + 1 + down * across
            made.append(self._packed(views[begin:end], (height, width), (down, across)))
            begin = end
        return Pooled(full, Seen(torch.cat(made)), [len(one) for one in made])

    def _packed(
        self, views: Float[Tensor, "n Q D"], size: tuple[int, int], tiles: tuple[int, int]
    ) -> Float[Tensor, "S D"]:
        """The base view, then the visible part of the tiles with a newline after each row."""
        side = pooled_side(self._side)
        whole = views[1:].unflatten(0, tiles).unflatten(2, (side, side))
        whole = whole.transpose(1, 2).flatten(2, 3).flatten(0, 1)  # rows, columns, D
        rows, columns = self._grid(*size, side)
        top, left = (whole.shape[0] - rows) // 2, (whole.shape[1] - columns) // 2
        seen = whole[top : top + rows, left : left + columns]
        newline = self.model.model.image_newline.expand(rows, 1, -1).to(seen.dtype)
        return torch.cat([views[0], torch.cat([seen, newline], 1).flatten(0, 1)])

    def regions(self, prompt: Prompt) -> list[Region]:
        """Base view cells, then the visible patches row by row."""
        return [
            Region(number, box)
            for number, image in enumerate(prompt.request.images)
            for box in self._tiled(*self._grid(image.height, image.width))
        ]
