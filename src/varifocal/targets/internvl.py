"""InternVL 2.5 to 3.5 in transformers' own layout (the checkpoints called `-hf`)."""

from pathlib import Path
from typing import Any, ClassVar

from varifocal.errors import UnsupportedTarget
from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import HFTarget, Pictures, Seen
from varifocal.targets._pictures import PictureProcessor, check_placeholder, tiled_cells

_DECODERS = ("llama", "qwen2", "qwen3")


class InternVLTarget(HFTarget):
    """`InternVLForConditionalGeneration` with a dense full-attention language model.

    A picture is cut into tiles of one size, chosen by its shape, and followed by a thumbnail.
    """

    model_types: ClassVar[tuple[str, ...]] = ("internvl",)

    tested: ClassVar[str] = "Qwen2, Qwen3 and Llama inside"
    image_token = "<IMG_CONTEXT>"

    def check(self) -> None:
        """Language models that are not tested, and files that contradict each other."""
        kind = self.model.config.text_config.model_type
        if kind not in _DECODERS:
            raise UnsupportedTarget(
                f"{self.name} has a language model of type {kind!r}; this family is tested with "
                f"{', '.join(_DECODERS)}. Choose one of these, or decode it with transformers' own "
                "generate."
            )
        check_placeholder(self.model.config.image_token_id, self._image_id, self.name)

    @classmethod
    def load_processor(cls, path: str | Path) -> PictureProcessor:
        """Without the video processor."""
        return PictureProcessor.load(path)

    def text_parts(self) -> tuple[Any, Any]:
        """The language model inside, and its head."""
        return self.model.model.language_model, self.model.lm_head

    def process_images(self, request: Request) -> Pictures:
        """Tiles of all pictures one after the other; a start and an end token frame a picture."""
        images = list(request.images)
        # The family's processor cuts pictures whatever the image processor's own setting says.
        made = self.processor.image_processor(
            images=images, crop_to_patches=True, return_tensors="pt"
        )
        start, end = self.tokenizer.convert_tokens_to_ids(["<img>", "</img>"])
        counts = [self.num_image_tokens(i.height, i.width) for i in images]
        written = [[start, *[self._image_id] * count, end] for count in counts]
        return Pictures({"pixel_values": made["pixel_values"]}, written)

    def num_image_tokens(self, height: int, width: int) -> int:
        """Visual tokens of a picture of this size in pixels, the framing tokens not among them."""
        return len(tiled_cells(*self._tiles(height, width), self._side))

    def see(self, prompt: Prompt) -> Seen:
        """Tower and projector, by the model's own code."""
        config = self.model.config
        out = self.model.model.get_image_features(
            pixel_values=prompt.pixels["pixel_values"],
            vision_feature_layer=config.vision_feature_layer,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
        )
        return Seen(out.pooler_output.flatten(0, 1))

    def regions(self, prompt: Prompt) -> list[Region]:
        """Cells of the tiles, tile by tile, then those of the thumbnail."""
        return [
            Region(number, box)
            for number, image in enumerate(prompt.request.images)
            for box in tiled_cells(*self._tiles(image.height, image.width), self._side)
        ]

    @property
    def _side(self) -> int:
        """Visual tokens along a side of a tile."""
        vision = self.model.config.vision_config
        return int(
            vision.image_size[0] // vision.patch_size[0] * self.model.config.downsample_ratio
        )

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles, the thumbnail not among them."""
        # Imported here: it takes longer than everything else in `import varifocal` together.
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import (
            get_optimal_tiled_canvas,
        )

        made = self.processor.image_processor
        if made.max_patches <= 1:
            return 1, 1
        tile = (made.size["height"], made.size["width"])
        columns, rows = get_optimal_tiled_canvas(
            (height, width), tile, made.min_patches, made.max_patches
        )
        return rows, columns
