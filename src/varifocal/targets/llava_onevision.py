"""LLaVA-OneVision: tiles of a single picture, shrunk beyond a limit; one view each of several."""

import math
from pathlib import Path
from typing import Any, ClassVar

from varifocal.errors import UnsupportedTarget
from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import Pictures
from varifocal.targets._llava import TiledLlavaTarget, around
from varifocal.targets._pictures import PictureProcessor

_SLACK = 1.1  # the limit on patches may be passed by this factor along a side
_LIMIT = "anyres_max_"


class LlavaOnevisionTarget(TiledLlavaTarget):
    """`LlavaOnevisionForConditionalGeneration`, pictures only."""

    model_types: ClassVar[tuple[str, ...]] = ("llava_onevision",)
    decoders: ClassVar[tuple[str, ...]] = ("qwen2",)
    tested: ClassVar[str] = "Qwen2 with a SigLIP tower; pictures, no videos"

    @classmethod
    def load_processor(cls, path: str | Path) -> Any:
        """Without the video processor, which needs torchvision."""
        return PictureProcessor.load(path)

    @classmethod
    def check_config(cls, config: Any, name: str) -> None:
        """Refuse also limits of another form."""
        super().check_config(config, name)
        form = config.vision_aspect_ratio
        if not (form.startswith(_LIMIT) and form.removeprefix(_LIMIT).isdigit()):
            raise UnsupportedTarget(
                f"{name} has vision_aspect_ratio {form!r}, but only {_LIMIT}N is known here"
            )

    def process_images(self, request: Request) -> Pictures:
        """Pictures of one conversation belong together: several are not cut into tiles."""
        images = list(request.images)
        made = self.processor.image_processor(images=[images], do_pad=True, return_tensors="pt")
        names = ("pixel_values", "image_sizes", "batch_num_images")
        pixels = {name: made[name] for name in names}
        counts = [self.num_image_tokens(i.height, i.width, len(images)) for i in images]
        return Pictures(pixels, [[self._image_id] * count for count in counts])

    def num_image_tokens(self, height: int, width: int, pictures: int = 1) -> int:
        """Visual tokens of a picture of which the request has so many."""
        if pictures > 1:
            return self._side**2 + 1
        rows, columns = self._shrunk(height, width)
        return self._side**2 + rows * (columns + 1)

    def regions(self, prompt: Prompt) -> list[Region]:
        """Of a single picture as in LLaVA-NeXT; of each of several its padded square, a newline."""
        images = prompt.request.images
        if len(images) == 1:
            boxes = self._tiled(*self._shrunk(images[0].height, images[0].width))
            return [Region(0, box) for box in boxes]
        regions = []
        for number, image in enumerate(images):
            side = max(image.height, image.width)
            window = around(image.height, image.width, side, side)
            regions += [Region(number, box) for box in (*self._view(window), None)]
        return regions

    def _shrunk(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visible patches once they are within the limit."""
        rows, columns = self._grid(height, width)
        most = int(self.model.config.vision_aspect_ratio.removeprefix(_LIMIT))
        ratio = math.sqrt(rows * columns / (most * self._side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > _SLACK else (rows, columns)
