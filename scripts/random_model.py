"""A LLaVA-NeXT of any shape with random weights, and drafters for it: nothing is downloaded."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import (
    AutoTokenizer,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
)
from transformers.models.llava_next.image_processing_pil_llava_next import (
    LlavaNextImageProcessorPil,
)

from varifocal.drafter import Drafter
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Forward, Prompt
from varifocal.targets import demo_folder
from varifocal.targets.llava_next import LlavaNextTarget
from varifocal.tree import DraftTree
from varifocal.verify import Verification


@dataclass(frozen=True, kw_only=True)
class Size:
    """The shape of the model."""

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int
    tower: dict[str, int]  # of a CLIP tower
    fovea: dict[str, int]  # of the drafter
    tokens: int  # of each compared answer
    repeats: int  # of each timing


SIZES = {
    "7b": Size(
        layers=32, width=4096, inner=14336, heads=32, kv_heads=8, vocabulary=32064,
        tower={"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
               "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
               "projection_dim": 768},
        fovea={"heads": 32, "inner": 8192, "memory_width": 1024, "bottleneck": 512},
        tokens=64, repeats=9,
    ),
    "small": Size(
        layers=3, width=64, inner=96, heads=4, kv_heads=2, vocabulary=1000,
        tower={"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
               "num_attention_heads": 2, "image_size": 48, "patch_size": 8, "projection_dim": 32},
        fovea={"heads": 4, "inner": 64, "memory_width": 32, "bottleneck": 16},
        tokens=12, repeats=3,
    ),
}  # fmt: skip


def build(size: Size, dtype: torch.dtype, device: torch.device) -> LlavaNextTarget:
    """A LLaVA-NeXT of this shape with random weights, made where it will run."""
    tokenizer = AutoTokenizer.from_pretrained(demo_folder())
    special = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    side = size.tower["image_size"]
    grids = [[side, 2 * side], [2 * side, side], [2 * side, 2 * side]]
    text = LlamaConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        intermediate_size=size.inner,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads,
        max_position_embeddings=8192,
        **special,
    )
    config = LlavaNextConfig(
        vision_config=CLIPVisionConfig(**size.tower),
        text_config=text,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=grids,
        tie_word_embeddings=False,
        **special,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = LlavaNextForConditionalGeneration._from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    pictures = LlavaNextImageProcessorPil(
        size={"shortest_edge": side},
        crop_size={"height": side, "width": side},
        image_grid_pinpoints=grids,
    )
    processor = LlavaNextProcessor(
        image_processor=pictures,
        tokenizer=tokenizer,
        patch_size=size.tower["patch_size"],
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=tokenizer.chat_template,
    )
    return LlavaNextTarget(model.requires_grad_(False), processor, "random")


def random_fovea(target: LlavaNextTarget, size: Size) -> FoveaDrafter:
    """FOVEA with random weights."""
    torch.manual_seed(1)
    with torch.device(target.device):
        drafter = FoveaDrafter(target, FoveaDrafter.Config(nodes=40, **size.fovea))
    drafter.prepare()
    return drafter


class Oracle(Drafter[list[int]]):
    """Is told the answer, so that paths are accepted: a right and a wrong token at each depth."""

    name, pictures = "oracle", "does not see them"

    def __init__(self, target: LlavaNextTarget, answers: Sequence[Sequence[int]]) -> None:
        super().__init__(target, Drafter.Config(depth=5, nodes=10))
        self._answers = [list(answer) for answer in answers]

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> list[int]:
        """The answer so far."""
        return [root]

    def propose(self, state: list[int], root: int, budget: Budget) -> DraftTree:
        """What follows in the answer that begins like this one, if any still does."""
        known = [a for a in self._answers if a[: len(state)] == state]
        coming = known[0][len(state) : len(state) + budget.depth] if known else []
        tokens, parents = [root], [-1]
        for depth, token in enumerate(coming):
            above = 2 * depth - 1 if depth else 0
            tokens += [token, (token + 1) % self.target.vocab_size]
            parents += [above, above]
        device = self.target.device
        return DraftTree(torch.tensor(tokens, device=device), torch.tensor(parents, device=device))

    def observe(self, state: list[int], verdict: Verification, seen: Forward) -> None:
        """The tokens that became text."""
        state += verdict.tokens


def text_prompt(target: LlavaNextTarget, length: int) -> Prompt:
    """Random words."""
    dice = torch.Generator().manual_seed(length)
    tokens = torch.randint(300, 900, (length,), generator=dice).to(target.device)
    return Prompt(tokens, torch.full_like(tokens, -1), {}, ask("words"))


def bush(target: LlavaNextTarget, nodes: int) -> DraftTree:
    """A binary tree."""
    place = torch.arange(nodes, device=target.device)
    parents = (place - 1).div(2, rounding_mode="floor")
    parents[0] = -1
    return DraftTree(300 + place, parents)
