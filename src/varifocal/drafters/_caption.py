"""Pictures as a line of text, for a view that reads no pictures: by any model that can say it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from varifocal.errors import BadOption, UnsupportedTarget
from varifocal.request import ask
from varifocal.target import Want
from varifocal.targets import load_target, target_classes
from varifocal.targets._fetched import place_of
from varifocal.targets._hf import HFTarget
from varifocal.targets._refuse import first_line
from varifocal.tree import DraftTree

# What says in words what a picture shows. Called once for each picture of a request.
Captioner = Callable[[Image.Image], str]

_TASKS = {"florence2": "<CAPTION>"}  # prompts that a captioning model was trained with


@dataclass(frozen=True)
class ChatCaptioner:
    """A chat model that is asked for a caption and answers greedily, such as the draft model."""

    model: HFTarget
    prompt: str
    max_tokens: int

    def __call__(self, picture: Image.Image) -> str:
        """The answer on one line. Raises BadRequest where the model reads no pictures."""
        model = self.model
        prompt = model.encode(ask(self.prompt, [picture], max_new_tokens=self.max_tokens))
        cache, seen = model.prefill(prompt, Want())
        said: list[int] = []
        while len(said) < self.max_tokens:
            if said:
                newest = DraftTree.chain(said[-1:], model.device)
                (seen,) = model.forward([newest], [cache], Want())
            token = int(seen.logits[-1].argmax())
            if token in model.eos_ids:
                break
            said.append(token)
        return one_line(model.decode(said))


@dataclass(frozen=True)
class ModelCaptioner:
    """A captioning model of transformers with its processor (BLIP, GIT, Florence-2, ...)."""

    model: Any
    processor: Any
    max_tokens: int

    @torch.inference_mode()
    def __call__(self, picture: Image.Image) -> str:
        """What it generates greedily, on one line; a task prompt is not repeated."""
        task = _TASKS.get(self.model.config.model_type)
        text = {} if task is None else {"text": task}
        made = self.processor(images=picture.convert("RGB"), return_tensors="pt", **text)
        inputs = made.to(self.model.device)
        inputs["pixel_values"] = inputs["pixel_values"].to(self.model.dtype)
        ids = self.model.generate(
            **inputs, max_new_tokens=self.max_tokens, do_sample=False, num_beams=1
        )
        (said,) = self.processor.batch_decode(ids, skip_special_tokens=True)
        return one_line(said)


def load_captioner(place: str, *, device: torch.device, prompt: str, max_tokens: int) -> Captioner:
    """From a folder or hub id: a chat model of a known family, else transformers' own.

    Raises UnsupportedTarget where nothing of that name can be loaded, and BadOption for a model
    that reads no pictures.
    """
    # Imported here: these take two seconds.
    from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor

    try:
        where: str | Path = place_of(place)
        kind = AutoConfig.from_pretrained(where).model_type
        if any(kind in family.model_types for family in target_classes().values()):
            chat = load_target(place, device=device)
            if chat.image_token is None:
                raise BadOption(f"the captioner {place} reads no pictures; choose one that does")
            return ChatCaptioner(chat, prompt, max_tokens)
        model = AutoModelForImageTextToText.from_pretrained(where).to(device).eval()
        return ModelCaptioner(model, AutoProcessor.from_pretrained(where), max_tokens)
    except (OSError, ValueError, ImportError, RuntimeError) as error:
        raise UnsupportedTarget(
            f"the captioner {place!r} cannot be loaded ({first_line(error)}); give the folder or "
            "hub id of a captioning model that transformers' AutoModelForImageTextToText loads, "
            'or captioner="draft" for the draft model itself'
        ) from error


def one_line(said: str) -> str:
    """Without line ends and runs of spaces."""
    return " ".join(said.split())
