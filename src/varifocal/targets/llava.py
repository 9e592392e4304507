"""LLaVA-1.5: one view of each picture, as many visual tokens for every size."""

from typing import ClassVar

from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import Pictures, Seen
from varifocal.targets._llava import LlavaTarget, around
from varifocal.targets._pictures import Box
from varifocal.targets._pooled import Pooled


class Llava15Target(LlavaTarget):
    """`LlavaForConditionalGeneration` with a full-attention language model."""

    model_types: ClassVar[tuple[str, ...]] = ("llava",)
    tested: ClassVar[str] = "Llama (Vicuna), Mistral (no window), Qwen2, Qwen3 with CLIP or SigLIP"

    def process_images(self, request: Request) -> Pictures:
        """One square of pixels each."""
        images = list(request.images)
        made = self.processor.image_processor(images=images, return_tensors="pt")
        counts = [self.num_image_tokens(i.height, i.width) for i in images]
        written = [[self._image_id] * count for count in counts]
        return Pictures({"pixel_values": made["pixel_values"]}, written)

    def num_image_tokens(self, height: int, width: int) -> int:
        """Visual tokens of a picture, whatever its size: patches, and the tower's own entry."""
        return self._side**2 + self._has_class - self._drops_first

    def see_pooled(self, prompt: Prompt) -> Pooled:
        """Also the average of every 2x2 patches, projected."""
        full, pooled = self._see_both(prompt)
        return Pooled(full, Seen(pooled.flatten(0, 1)), [pooled.shape[1]] * len(pooled))

    def regions(self, prompt: Prompt) -> list[Region]:
        """Cells of the window that the tower sees; the tower's own entry has none."""
        return [
            Region(number, box)
            for number, image in enumerate(prompt.request.images)
            for box in self._view(self._window(image.height, image.width))
        ]

    def _window(self, height: int, width: int) -> Box:
        """The square that the image processor makes: padded, cut from the middle, or stretched."""
        processor = self.processor.image_processor
        if getattr(processor, "do_pad", False):
            return around(height, width, max(height, width), max(height, width))
        edge = processor.size.get("shortest_edge")
        if not edge:
            return around(height, width, height, width)
        pixels = min(height, width) / edge  # of the picture to one of what the tower reads
        made_height, made_width = self._made_size()
        return around(height, width, made_height * pixels, made_width * pixels)
