"""Batches of task items with masks, drawn on the fly, for the training of the shipped models."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from varifocal.diffusion import tasks
from varifocal.diffusion.tasks import Item

WIDTHS = (32, 48, 64, 96, 128, 160, 192)  # prompt and canvas together; no batch needs padding
_AHEAD = 0.15  # share of items whose canvas is longer than need be
_LATER_END = 0.1  # weight of each end token after the first: there are many and they are easy
_BLOCK = 32


@dataclass(frozen=True)
class Batch:
    """Rows of one width: the truth, what is masked of it, and what each mask weighs in the loss."""

    truth: Int64[Tensor, "B T"]
    is_masked: Bool[Tensor, "B T"]
    weight: Float[Tensor, "B T"]  # of the canvas, masked or not; 0 at prompts


class Batches:
    """An endless stream of batches, a function of its seed and of `scale` at each step.

    Below 1, `scale` is the largest size of a question as a share of its task's largest: a model
    finds out on a few keys how a key is looked up, and on many it takes it ten times as long.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        shares: Mapping[str, float],
        *,
        seed: int,
        batch_tokens: int,
    ) -> None:
        self._tokenizer, self._shares, self._batch_tokens = tokenizer, shares, batch_tokens
        self._seed, self.scale = seed, 1.0

    def __iter__(self) -> Iterator[Batch]:
        rng = Random(f"batches/{self._seed}")
        noise = np.random.default_rng(self._seed)
        names, shares = list(self._shares), list(self._shares.values())
        waiting: dict[int, list[tuple[list[int], list[int]]]] = {width: [] for width in WIDTHS}
        while True:
            name = rng.choices(names, shares)[0]
            task, index = tasks.find(name), rng.randrange(2**40)
            most = max(1, round(task.sizes[1] * self.scale))
            item = task.draw(index, "train", size=None if self.scale >= 1 else rng.randint(1, most))
            prompt, answer = encode(self._tokenizer, item)
            fitting = [width for width in WIDTHS if width > len(prompt) + len(answer)]
            width = rng.choice(fitting) if rng.random() < _AHEAD else fitting[0]
            waiting[width].append((prompt, answer))
            if len(waiting[width]) * width >= self._batch_tokens:
                yield self._batch(waiting[width], width, noise)
                waiting[width] = []

    def _batch(
        self, rows: list[tuple[list[int], list[int]]], width: int, noise: np.random.Generator
    ) -> Batch:
        truth = np.full((len(rows), width), self._tokenizer.eos_token_id)
        is_masked = np.zeros((len(rows), width), dtype=bool)
        weight = np.zeros((len(rows), width), dtype=np.float32)
        for row, (prompt, answer) in enumerate(rows):
            start, stop = len(prompt), len(prompt) + len(answer)
            truth[row, :stop] = prompt + answer
            weight[row, start : stop + 1] = 1.0
            weight[row, stop + 1 :] = _LATER_END
            is_masked[row, start:], counts = draw_masks(noise, width - start, len(answer))
            weight[row, start:] *= counts
        return Batch(*map(torch.from_numpy, (truth, is_masked, weight)))


def draw_masks(noise: np.random.Generator, length: int, text: int) -> tuple[np.ndarray, np.ndarray]:
    """Which positions of a canvas are masked, and which of them count in the loss.

    Either each with a ratio drawn uniformly, as LLaDA is trained; or as decoding by blocks finds
    them: all before a place decided, a block of which a share is masked, and nothing behind it.
    """
    ratio = noise.uniform(0.05, 1.0)
    is_masked = noise.random(length) < ratio
    counts = np.ones(length, dtype=bool)
    if noise.random() < 0.5:
        cut = int(noise.integers(0, text + 1))
        is_masked[:cut], is_masked[cut + _BLOCK :] = False, True
        counts[cut + _BLOCK :] = False
    if not (is_masked & counts).any():
        is_masked[min(text, length - 1)] = True
        counts[min(text, length - 1)] = True
    return is_masked, counts


def encode(tokenizer: PreTrainedTokenizerFast, item: Item) -> tuple[list[int], list[int]]:
    """Prompt and answer as ids. They are encoded apart, as a request's prompt is."""
    core = tokenizer.backend_tokenizer
    return core.encode(item.prompt).ids, core.encode(item.answer).ids
