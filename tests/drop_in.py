"""Models as their users hold them: classes of transformers, inputs of their own processors."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from checkpoints import built, families
from tiny import picture, tiny_target

import varifocal
from varifocal.request import ask
from varifocal.targets import load_target
from varifocal.targets._hf import HFTarget

TEXT = "What is shown? the red circle and the red circle and"
PAD = 0


@cache
def target_of(name: str) -> HFTarget:
    """A family's checkpoint as a target; its `model` is what a user holds."""
    return load_target(str(built(name)), dtype=torch.float32)


@cache
def tiny() -> HFTarget:
    """A LLaVA-NeXT whose choices are no near-ties."""
    return tiny_target()


def inputs_of(name: str, text: str = TEXT, pictures: int = 2) -> dict[str, Any]:
    """What the family's own processor makes of a conversation."""
    family = families()[name]
    parts: list[dict[str, Any]] = [
        {"type": "image", "image": picture(seed, size)}
        for seed, size in enumerate(family.sizes[: min(pictures, family.max_pictures)])
    ]
    content: Any = [*parts, {"type": "text", "text": text}] if family.max_pictures else text
    made = family.reference(built(name)).apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        return_tensors="pt",
    )
    made.pop("token_type_ids", None)
    return dict(made)


def tiny_inputs(text: str = TEXT, *, pictures: int = 1) -> dict[str, Any]:
    """The same for the tiny model."""
    prompt = tiny().encode(ask(text, [picture(seed) for seed in range(pictures)]))
    ids = prompt.tokens[None]
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **prompt.pixels}


def padded(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Several inputs as one, padding on the left."""
    width = max(row["input_ids"].shape[1] for row in rows)

    def wide(row: torch.Tensor, fill: int) -> torch.Tensor:
        return torch.nn.functional.pad(row, (width - row.shape[1], 0), value=fill)

    by_token = {"input_ids": PAD, "attention_mask": 0, "mm_token_type_ids": 0}
    return {
        key: torch.cat([wide(r[key], by_token[key]) if key in by_token else r[key] for r in rows])
        for key in rows[0]
    }


def new_ids(sequences: torch.Tensor, inputs: dict[str, Any]) -> list[int]:
    """What follows the prompt of the one row."""
    return sequences[0, inputs["input_ids"].shape[1] :].tolist()


NEW = 24


def right(inputs: dict[str, Any], **options: Any) -> Any:
    """What transformers says by itself with the tiny model."""
    given = {"do_sample": False, "max_new_tokens": NEW, **options}
    return tiny().model.generate(**deepcopy(inputs), **given)


def ours(inputs: dict[str, Any], **options: Any) -> Any:
    """The same by varifocal."""
    given = {"do_sample": False, "max_new_tokens": NEW, **options}
    return varifocal.generate(tiny().model, **deepcopy(inputs), **given)


@cache
def answer() -> tuple[int, ...]:
    """The greedy ids of the tiny model."""
    return tuple(new_ids(right(tiny_inputs()), tiny_inputs()))
