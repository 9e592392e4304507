"""Models that read text only; pictures are refused by name."""

from pathlib import Path
from typing import Any, ClassVar

from varifocal.errors import BadRequest
from varifocal.request import Request
from varifocal.target import Prompt, Region
from varifocal.targets._hf import HFTarget, Pictures, Seen


class TextTarget(HFTarget):
    """A causal language model of transformers whose head is a plain matrix."""

    model_types: ClassVar[tuple[str, ...]] = (
        "llama",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    )
    tested: ClassVar[str] = "each with full attention in all layers; text only"

    @classmethod
    def load_processor(cls, path: str | Path) -> Any:
        """The tokenizer."""
        # Imported here: it takes two seconds.
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(path)

    def text_parts(self) -> tuple[Any, Any]:
        """The decoder, and its head."""
        return self.model.model, self.model.lm_head

    def process_images(self, request: Request) -> Pictures:
        """There are none: `encode` has refused them."""
        raise BadRequest(f"{self.name} reads no pictures")

    def see(self, prompt: Prompt) -> Seen:
        """There is no tower."""
        raise BadRequest(f"{self.name} reads no pictures")

    def regions(self, prompt: Prompt) -> list[Region]:
        """Nothing of a prompt is visual."""
        return []
