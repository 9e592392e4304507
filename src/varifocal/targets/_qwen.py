"""What the Qwen-VL generations share: pictures of any size, rotary positions on three axes."""

from abc import abstractmethod
from pathlib import Path

import torch
from jaxtyping import Int64
from torch import Tensor

from varifocal.errors import BadImage
from varifocal.images import MAX_ASPECT
from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import HFTarget, Pictures, Seen
from varifocal.targets._pictures import PictureProcessor, cells, check_placeholder


class QwenTarget(HFTarget):
    """A Qwen-VL model with a full-attention decoder.

    The tower merges squares of patches, so a picture has one visual token for each merged square
    of its resized version. Positions (M-RoPE) of a picture's slots are its rows and columns; the
    model would keep what they save on itself (`rope_deltas`), here it is `KVCache.offset`.
    """

    image_token = "<|image_pad|>"
    image_frame = ("<|vision_start|>", "<|vision_end|>")

    @classmethod
    def load_processor(cls, path: str | Path) -> PictureProcessor:
        """Without the video processor."""
        return PictureProcessor.load(path)

    def check(self) -> None:
        """Files that contradict each other."""
        check_placeholder(self.model.config.image_token_id, self._image_id, self.name)

    def text_parts(self) -> tuple[torch.nn.Module, torch.nn.Module]:
        """The language model inside, and its head."""
        return self.model.model.language_model, self.model.lm_head

    def process_images(self, request: Request) -> Pictures:
        """Patches in the tower's order. Raises BadImage where a picture is too elongated."""
        images = list(request.images)
        counts = [self.num_image_tokens(i.height, i.width) for i in images]
        made = self.processor.image_processor(images=images, return_tensors="pt")
        pixels = {name: made[name] for name in ("pixel_values", "image_grid_thw")}
        return Pictures(pixels, [[self._image_id] * count for count in counts])

    def num_image_tokens(self, height: int, width: int) -> int:
        """Visual tokens of a picture of this size in pixels."""
        rows, columns = self._grid(height, width)
        return rows * columns

    @abstractmethod
    def see(self, prompt: Prompt) -> Seen:
        """Tower and merger, by the model's own code."""

    def positions(self, prompt: Prompt) -> Int64[Tensor, "*axes T"]:
        """Time, row and column of each token; all three are equal for text."""
        grids = prompt.pixels.get("image_grid_thw")
        if grids is None:
            return super().positions(prompt)
        image_of = prompt.image_of.tolist()
        merge = self.model.config.vision_config.spatial_merge_size
        parts, read, start = [], 0, 0
        for image, (_, height, width) in enumerate(grids.tolist()):
            rows, columns = height // merge, width // merge
            first = image_of.index(image)
            parts.append(_run_of_text(start, first - read))
            start += first - read
            row = torch.arange(rows).repeat_interleave(columns)
            column = torch.arange(columns).repeat(rows)
            parts.append(torch.stack([torch.zeros_like(row), row, column]) + start)
            start += max(rows, columns)
            read = first + rows * columns
        parts.append(_run_of_text(start, len(image_of) - read))
        return torch.cat(parts, 1).to(self.device)

    def regions(self, prompt: Prompt) -> list[Region]:
        """Merged squares, row by row."""
        return [
            Region(number, box)
            for number, image in enumerate(prompt.request.images)
            for box in cells(*self._grid(image.height, image.width))
        ]

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of visual tokens."""
        # Imported here: it takes longer than everything else in `import varifocal` together.
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

        if max(height, width) > MAX_ASPECT * min(height, width):
            raise BadImage(
                f"{self.name} reads pictures of which no side is more than {MAX_ASPECT} times the "
                f"other; this one has {width}x{height} pixels. Cut it into pieces or pad it"
            )
        made = self.processor.image_processor
        square = made.patch_size * made.merge_size
        resized = smart_resize(
            height, width, square, made.size["shortest_edge"], made.size["longest_edge"]
        )
        return resized[0] // square, resized[1] // square


def _run_of_text(start: int, length: int) -> Int64[Tensor, "3 n"]:
    return torch.arange(start, start + length).expand(3, -1)
