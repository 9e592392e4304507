"""Turn samples into batches of token ids and views for training the language model."""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from varifocal.demo.labels import SIDE, TILE, Bytes, cut
from varifocal.demo.sample import Sample, Split, Turn
from varifocal.demo.tokenizer import ASSISTANT, END, IMAGE, USER
from varifocal.demo.world import FAMILIES, draw, draw_lines

BLIND = (0, 0)  # the grid of a lesson without a picture
BUCKET = 32  # sequence lengths are rounded up to this, so that few shapes get compiled
TOKENS = 8192  # per batch, padding included
_GOLDEN = 0.618034  # spreads the reading practice evenly over the numbers
_SILVER = 0.414214  # and lessons without a picture, apart from it


@dataclass(frozen=True)
class Lesson:
    """One picture with all its turns as a sequence."""

    grid: tuple[int, int]  # rows and columns of tiles
    views: Bytes  # (1 + tiles, TILE, TILE, 3)
    ids: NDArray[np.int64]  # (T,)
    is_answer: NDArray[np.bool_]  # (T,) tokens that the assistant has to say


@dataclass(frozen=True)
class LessonBatch:
    """Lessons of one grid, padded on the right to one length."""

    grid: tuple[int, int]
    views: Bytes  # (B, 1 + tiles, TILE, TILE, 3)
    ids: NDArray[np.int64]  # (B, T)
    is_answer: NDArray[np.bool_]  # (B, T)


def num_image_tokens(grid: tuple[int, int]) -> int:
    """Tokens of the whole picture, then of each row of patches with its line break."""
    rows, columns = grid
    if grid == BLIND:
        return 0
    return SIDE * SIDE + rows * SIDE * (columns * SIDE + 1)


class Writer:
    """Write lessons with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        ids = tokenizer.convert_tokens_to_ids([USER, ASSISTANT, END, IMAGE])
        self._user, self._assistant, self._end, self._image = ids

    def lesson(self, sample: Sample, turns: tuple[Turn, ...]) -> Lesson:
        """The picture of `sample` with these turns: its own, or those of another picture."""
        width, height = sample.image.size
        grid = (height // TILE, width // TILE)
        picture = [self._image] * num_image_tokens(grid)
        return self._written(turns, grid, cut(sample.image), picture)

    def blind(self, sample: Sample, turns: tuple[Turn, ...], instead: str) -> Lesson:
        """These turns with a text in the place of the picture."""
        views = np.zeros((0, TILE, TILE, 3), np.uint8)
        return self._written(turns, BLIND, views, self._encode(instead))

    def _written(
        self, turns: tuple[Turn, ...], grid: tuple[int, int], views: Bytes, shown: list[int]
    ) -> Lesson:
        ids: list[int] = []
        is_answer: list[bool] = []
        for number, turn in enumerate(turns):
            question = self._encode(turn.question if number else "\n" + turn.question)
            picture = [] if number else shown
            asked = [self._user, *picture, *question, self._end, self._assistant]
            said = [*self._encode(turn.answer), self._end]
            ids += asked + said
            is_answer += [False] * len(asked) + [True] * len(said)
        return Lesson(grid, views, np.array(ids), np.array(is_answer))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def batch_of(lessons: list[Lesson], length: int, pad: int) -> LessonBatch:
    """Pad lessons of one grid to `length` tokens."""
    ids = np.full((len(lessons), length), pad, np.int64)
    is_answer = np.zeros((len(lessons), length), np.bool_)
    for row, lesson in enumerate(lessons):
        ids[row, : len(lesson.ids)] = lesson.ids
        is_answer[row, : len(lesson.ids)] = lesson.is_answer
    return LessonBatch(lessons[0].grid, np.stack([x.views for x in lessons]), ids, is_answer)


@dataclass(frozen=True, kw_only=True)
class Mix:
    """How much reading practice there is among the lessons."""

    first: float = 0.5  # share of `draw_lines` at the start
    last: float = 0.08
    pictures: int = 12_000  # over which the one falls to the other
    again: tuple[str, ...] = ()  # families that come once more in every turn: the weak ones
    blind: float = 0.0  # share without a picture: half with its caption instead, half with nothing


class LessonBatches:
    """Draw samples from an index on until lessons of one shape fill a batch.

    Every number draws one sample: a family in turn, or reading practice.
    """

    def __init__(self, tokenizer: Path, mix: Mix) -> None:
        self.tokenizer, self.mix = tokenizer, mix
        self._writer: Writer | None = None
        self._waiting: dict[tuple[tuple[int, int], int], list[Lesson]] = defaultdict(list)

    def __call__(self, index: int) -> tuple[LessonBatch, int]:
        if self._writer is None:  # not in __init__: tokenizers need no pickling this way
            tokenizer = PreTrainedTokenizerFast.from_pretrained(self.tokenizer)
            self._writer, self._pad = Writer(tokenizer), tokenizer.pad_token_id
        while True:
            lesson = self._draw(self._writer, index)
            index += 1
            length = -(-len(lesson.ids) // BUCKET) * BUCKET
            waiting = self._waiting[lesson.grid, length]
            waiting.append(lesson)
            if len(waiting) == TOKENS // length // 2 * 2:
                del self._waiting[lesson.grid, length]
                return batch_of(waiting, length, self._pad), index

    def _draw(self, writer: Writer, index: int) -> Lesson:
        fall = min(1.0, index / self.mix.pictures)
        share = self.mix.first + (self.mix.last - self.mix.first) * fall
        if (index * _GOLDEN) % 1 < share:
            sample = draw_lines(index, "train")
        else:
            turn = (*FAMILIES, *self.mix.again)
            sample = draw(turn[index % len(turn)], index, "train")
        place = (index * _SILVER) % 1
        if place >= self.mix.blind:
            return writer.lesson(sample, sample.turns)
        is_captioned = sample.caption and place < self.mix.blind / 2
        instead = f"image: {sample.caption}" if is_captioned else "\n"
        return writer.blind(sample, sample.turns, instead)


def held_out(
    writer: Writer, family: str, number: int, *, split: Split = "valid"
) -> list[tuple[Lesson, Lesson]]:
    """Lessons of a family, each also with the picture of the next one instead of its own."""
    samples = [draw(family, index, split) for index in range(number)]
    others = samples[1:] + samples[:1]
    return [
        (writer.lesson(own, own.turns), writer.lesson(other, own.turns))
        for own, other in zip(samples, others, strict=True)
    ]
