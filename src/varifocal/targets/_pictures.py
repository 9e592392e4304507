"""What families whose checkpoints also read videos share: their processor, cells of a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from varifocal.errors import UnsupportedTarget

Box = tuple[float, float, float, float]  # left, top, right, bottom in fractions of a picture


@dataclass(frozen=True)
class PictureProcessor:
    """Image processor, tokenizer and chat template of a checkpoint, its video processor left out.

    transformers' own processor classes of these families cannot be made without a video
    processor, which needs torchvision (and, for SmolVLM, num2words). Pictures need neither.
    """

    image_processor: Any
    tokenizer: Any
    chat_template: str | None

    @classmethod
    def load(cls, path: str | Path) -> "PictureProcessor":
        """From a folder or hub id, in any of the layouts in which processors are published."""
        # Imported here: they take seconds.
        from transformers import AutoImageProcessor, AutoTokenizer, ProcessorMixin

        tokenizer = AutoTokenizer.from_pretrained(path)
        stored, _ = ProcessorMixin.get_processor_dict(path)
        template = stored.get("chat_template") or tokenizer.chat_template
        if isinstance(template, dict):  # several by name
            template = template.get("default")
        return cls(AutoImageProcessor.from_pretrained(path), tokenizer, template)

    def apply_chat_template(self, messages: Sequence[dict[str, Any]], **options: Any) -> Any:
        """As of the tokenizer, with the checkpoint's template for pictures."""
        return self.tokenizer.apply_chat_template(
            messages, chat_template=self.chat_template, **options
        )


def cells(rows: int, columns: int, within: Box = (0.0, 0.0, 1.0, 1.0)) -> list[Box]:
    """Boxes of an even grid over a part of a picture, row by row."""
    left, top, right, bottom = within
    across, down = (right - left) / columns, (bottom - top) / rows
    return [
        (
            left + c * across,
            top + r * down,
            left + (c + 1) * across,
            top + (r + 1) * down,
        )
        for r in range(rows)
        for c in range(columns)
    ]


def tiled_cells(rows: int, columns: int, side: int) -> list[Box]:
    """Cells of the tiles of a picture, tile by tile, then those of a view of the whole picture.

    Each tile, and the view, has side x side cells. A picture of one tile is that view alone, and
    so is one of none.
    """
    tiles = cells(rows, columns) if rows * columns > 1 else []
    return [box for tile in (*tiles, (0.0, 0.0, 1.0, 1.0)) for box in cells(side, side, tile)]


def check_placeholder(configured: int, known: int, name: str) -> None:
    """Refuse a checkpoint whose configuration and tokenizer disagree about the slots' token."""
    if configured != known:
        raise UnsupportedTarget(
            f"the config.json of {name} has {configured} as the id of a picture's placeholder, its "
            f"tokenizer {known}: they do not belong together. Fetch or copy both again."
        )
