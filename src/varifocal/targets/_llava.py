"""What the LLaVA families share: parts of the model, towers, and the tiles of any resolution."""

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.errors import UnsupportedTarget
from varifocal.target import Prompt
from varifocal.targets._hf import HFTarget, Seen
from varifocal.targets._pictures import Box, cells
from varifocal.targets._pooled import entering, pool

_WHOLE: Box = (0.0, 0.0, 1.0, 1.0)

# Whether the tower puts an entry of its own before those of the patches.
_TOWERS = {"clip_vision_model": True, "siglip_vision_model": False}


class LlavaTarget(HFTarget):
    """A CLIP or SigLIP tower, a projector of two layers, and a full-attention language model."""

    decoders: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "qwen3")  # tested inside

    def text_parts(self) -> tuple[Any, Any]:
        """The language model inside, and its head."""
        return self.model.model.language_model, self.model.lm_head

    @property
    def image_token(self) -> str:  # type: ignore[override]  # a constant of the checkpoint
        """The placeholder of one picture."""
        token = getattr(self.tokenizer, "image_token", None)
        return str(token or getattr(self.processor, "image_token", "<image>"))

    @classmethod
    def check_config(cls, config: Any, name: str) -> None:
        """Refuse towers and language models that are not tested."""
        _check_tested(name, config.vision_config.model_type, "a tower", tuple(_TOWERS))
        _check_tested(name, config.text_config.model_type, "a language model", cls.decoders)

    def check(self) -> None:
        """Refuse files that contradict each other."""
        config = self.model.config
        if config.image_token_id != self._image_id:
            raise UnsupportedTarget(
                f"the config.json of {self.name} has {config.image_token_id} as the id of a "
                f"picture's placeholder, its tokenizer {self._image_id}: they do not belong "
                "together. Fetch or copy both again."
            )
        made, read = self._made_size(), (int(config.vision_config.image_size),) * 2
        if made != read:
            raise UnsupportedTarget(
                f"the processor of {self.name} makes pictures of {made} pixels, but the tower "
                f"reads {read}: they do not belong together. Fetch or copy both again."
            )

    def see(self, prompt: Prompt) -> Seen:
        """Tower, projector and packing by the model's own code."""
        config = self.model.config
        pixels = dict(prompt.pixels)
        out = self.model.model.get_image_features(
            pixel_values=pixels.pop("pixel_values").to(self.dtype),
            vision_feature_layer=config.vision_feature_layer,
            vision_feature_select_strategy=config.vision_feature_select_strategy,
            **pixels,
        )
        return Seen(torch.cat(list(out.pooler_output), dim=0))

    def _see_both(self, prompt: Prompt) -> tuple[Seen, Float[Tensor, "n Q D"]]:
        """What `see` makes, and each view's projected entries pooled."""
        projector = self.model.model.multi_modal_projector
        with entering(projector) as taken:
            full = self.see(prompt)
        return full, projector(pool(torch.cat(taken), self._side))

    @property
    def _side(self) -> int:
        """Patches along one side of the picture that the tower reads."""
        vision = self.model.config.vision_config
        return int(vision.image_size // vision.patch_size)

    @property
    def _has_class(self) -> bool:
        return _TOWERS[self.model.config.vision_config.model_type]

    @property
    def _drops_first(self) -> bool:
        return bool(self.model.config.vision_feature_select_strategy == "default")

    def _view(self, within: Box = _WHOLE) -> list[Box | None]:
        """Boxes of one view's entries, of which `within` is what it shows of the picture."""
        boxes: list[Box | None] = [_inside(box) for box in cells(self._side, self._side, within)]
        if self._has_class:
            boxes.insert(0, None)
        return boxes[1:] if self._drops_first else boxes

    def _made_size(self) -> tuple[int, int]:
        """Height and width that the image processor makes."""
        processor = self.processor.image_processor
        size = processor.crop_size if processor.do_center_crop else processor.size
        edge = size.get("shortest_edge")
        return (edge, edge) if edge else (int(size["height"]), int(size["width"]))


class TiledLlavaTarget(LlavaTarget):
    """Pictures of any resolution: a view of the whole, then tiles, a newline after each row."""

    @classmethod
    def check_config(cls, config: Any, name: str) -> None:
        """Refuse also features that do not fill the tiles."""
        super().check_config(config, name)
        right = "default" if _TOWERS[config.vision_config.model_type] else "full"
        if config.vision_feature_select_strategy != right:
            raise UnsupportedTarget(
                f"{name} has vision_feature_select_strategy "
                f"{config.vision_feature_select_strategy!r}, with which the features of a "
                f"{config.vision_config.model_type} do not fill its tiles; it must be {right!r}"
            )

    def _grid(self, height: int, width: int, side: int = 0) -> tuple[int, int]:
        """Rows and columns of visible patches, of which a tile has `side` (0: all) along a side.

        A very elongated picture may have none: then only its base view is read.
        """
        side = side or self._side
        rows, columns = (count * side for count in self._tiles(height, width))
        # The picture keeps its shape inside the chosen resolution; padded patches are cut away.
        if width / height > columns / rows:
            visible = int(round(height * (columns / width), 7))
            rows -= (rows - visible) // 2 * 2
        else:
            visible = int(round(width * (rows / height), 7))
            columns -= (columns - visible) // 2 * 2
        return rows, columns

    def _tiles(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of tiles, padding included."""
        # Imported here: it takes longer than everything else in `import varifocal` together.
        from transformers.image_processing_utils import select_best_resolution

        config = self.model.config
        best_h, best_w = select_best_resolution((height, width), config.image_grid_pinpoints)
        tile = config.vision_config.image_size
        return best_h // tile, best_w // tile

    def _tiled(self, rows: int, columns: int) -> list[Box | None]:
        """Boxes of the base view's entries, then of visible patches, newlines between the rows."""
        boxes = self._view()
        grid = cells(rows, columns) if rows * columns else []
        for row in range(rows):
            boxes += [*grid[row * columns : (row + 1) * columns], None]
        return boxes


def _check_tested(name: str, kind: str, what: str, tested: tuple[str, ...]) -> None:
    if kind not in tested:
        raise UnsupportedTarget(
            f"{name} has {what} of type {kind!r}; this family is tested with "
            f"{', '.join(tested)}. Choose one of these, or decode it with transformers' own "
            "generate."
        )


def _inside(box: Box) -> Box | None:
    """The part of a box that lies on the picture; None if it shows padding only."""
    left, top, right, bottom = (min(max(edge, 0.0), 1.0) for edge in box)
    return (left, top, right, bottom) if left < right and top < bottom else None


def around(height: int, width: int, seen_height: int | float, seen_width: int | float) -> Box:
    """What a centred window of these sizes shows; beyond 0 and 1 where it shows padding."""
    across, down = seen_width / width, seen_height / height
    return ((1 - across) / 2, (1 - down) / 2, (1 + across) / 2, (1 + down) / 2)
