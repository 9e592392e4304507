"""Score a model on pictures it never saw: are the parts of its answers that need looking right?"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    LlavaNextForConditionalGeneration,
    LlavaNextProcessor,
)

from varifocal.demo.language import token_accuracy
from varifocal.demo.lessons import Writer
from varifocal.demo.sample import Split, Turn
from varifocal.demo.tokenizer import chat
from varifocal.demo.world import FAMILIES, draw

_WORDS = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class FamilyScore:
    """Shares from 0 to 1 over the first turns of a family's pictures."""

    family: str
    exact: float  # fields read exactly, from the right picture
    exact_shuffled: float  # the same with another picture of the family: what guessing gets
    token_accuracy: float  # answer tokens that come first, given the true ones before them
    items: int


@dataclass(frozen=True)
class Score:
    """Scores of all families with their plain means."""

    mean_exact: float
    mean_exact_shuffled: float
    families: tuple[FamilyScore, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"families": [asdict(family) for family in self.families]}


def exact_fields(answer: str, turn: Turn) -> tuple[int, int]:
    """How many fields of a turn a given answer has exactly, and how many there are.

    The words of both answers are aligned; a field is exact if all its words lie in parts that
    agree. A field that is right but said in another place thus does not count.
    """
    given, wanted = _WORDS.findall(answer), _WORDS.findall(turn.answer)
    agrees = [False] * len(wanted)
    matcher = SequenceMatcher(None, wanted, given, autojunk=False)
    for start, _, length in matcher.get_matching_blocks():
        agrees[start : start + length] = [True] * length
    right = position = 0
    for field in turn.fields:
        words = _WORDS.findall(field)
        position = _find(wanted, words, position)
        right += all(agrees[position : position + len(words)])
        position += len(words)
    return right, len(turn.fields)


def _find(words: Sequence[str], part: Sequence[str], start: int) -> int:
    for position in range(start, len(words) - len(part) + 1):
        if list(words[position : position + len(part)]) == list(part):
            return position
    raise ValueError(f"field {' '.join(part)!r} is not in {' '.join(words)!r} after word {start}")


def score(
    target: Path | LlavaNextForConditionalGeneration,
    processor: LlavaNextProcessor | None = None,
    *,
    split: Split = "test",
    limit: int = 32,
    batch_size: int = 32,
    max_new_tokens: int = 160,
) -> Score:
    """Answer the first turn of `limit` pictures a family, greedily.

    `target` is a folder, or a model together with its processor.
    """
    if isinstance(target, Path):
        processor = AutoProcessor.from_pretrained(target)
        model = AutoModelForImageTextToText.from_pretrained(target, dtype=torch.float32)
    else:
        model = target
    if processor is None:
        raise ValueError("a model needs its processor; got a model alone")
    was_training = model.training
    model.eval()
    with torch.compiler.set_stance("force_eager"):
        families = tuple(
            _score_family(model, processor, family, split, limit, batch_size, max_new_tokens)
            for family in FAMILIES
        )
    model.train(was_training)
    return Score(
        mean_exact=_mean(family.exact for family in families),
        mean_exact_shuffled=_mean(family.exact_shuffled for family in families),
        families=families,
    )


def _score_family(
    model: LlavaNextForConditionalGeneration,
    processor: LlavaNextProcessor,
    family: str,
    split: Split,
    limit: int,
    batch_size: int,
    max_new_tokens: int,
) -> FamilyScore:
    samples = [draw(family, index, split) for index in range(limit)]
    turns = [sample.turns[0] for sample in samples]
    others = samples[1:] + samples[:1]
    shares = []
    for pictures in (samples, others):
        asked = [(p.image, turn.question) for p, turn in zip(pictures, turns, strict=True)]
        answers = answer(model, processor, asked, batch_size, max_new_tokens)
        counts = [exact_fields(text, turn) for text, turn in zip(answers, turns, strict=True)]
        shares.append(sum(right for right, _ in counts) / sum(total for _, total in counts))
    writer = Writer(processor.tokenizer)
    lessons = [writer.lesson(sample, (turn,)) for sample, turn in zip(samples, turns, strict=True)]
    accuracy = token_accuracy(model, lessons, processor.tokenizer.pad_token_id)
    return FamilyScore(family, shares[0], shares[1], accuracy, limit)


@torch.no_grad()
def answer(
    model: LlavaNextForConditionalGeneration,
    processor: LlavaNextProcessor,
    asked: Sequence[tuple[Image.Image, str]],
    batch_size: int,
    max_new_tokens: int,
) -> list[str]:
    """Greedy answers to questions, each about its picture."""
    order = sorted(range(len(asked)), key=lambda number: asked[number][0].size)  # little padding
    answers = [""] * len(asked)
    for start in range(0, len(order), batch_size):
        part = order[start : start + batch_size]
        chats = [chat([(asked[number][1], "")]) for number in part]
        inputs = processor(
            images=[asked[number][0] for number in part],
            text=[processor.apply_chat_template(c, add_generation_prompt=True) for c in chats],
            padding=True,
            return_tensors="pt",
        )
        out = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=max_new_tokens,
            pad_token_id=processor.tokenizer.pad_token_id,
            eos_token_id=processor.tokenizer.eos_token_id,
        )
        said = out[:, inputs["input_ids"].shape[1] :]
        texts = processor.tokenizer.batch_decode(said, skip_special_tokens=True)
        for number, text in zip(part, texts, strict=True):
            answers[number] = text
    return answers


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
