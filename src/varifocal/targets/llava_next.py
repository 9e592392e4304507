"""LLaVA-NeXT: a base view and tiles of each picture, rows of tiles ended by a newline entry."""

from typing import ClassVar

from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import Pictures
from varifocal.targets._llava import TiledLlavaTarget


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

    def regions(self, prompt: Prompt) -> list[Region]:
        """Base view cells, then the visible patches row by row."""
        return [
            Region(number, box)
            for number, image in enumerate(prompt.request.images)
            for box in self._tiled(*self._grid(image.height, image.width))
        ]
