"""What an indexer is trained on and scored on: windows of documents, or the tiny model's tasks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from random import Random

import torch
from jaxtyping import Int64
from torch import Tensor

from varifocal.errors import BadOption, BadRequest
from varifocal.sparse.decoding import TINY, text_ids
from varifocal.sparse.texts import documentation, read_text
from varifocal.targets._hf import HFTarget

_HELD_OUT = 2  # windows or texts of each length that are scored on


class Texts(ABC):
    """Token ids without end; each text depends on its step alone."""

    name: str

    def __init__(self, lengths: Sequence[int]) -> None:
        self.lengths = lengths

    @abstractmethod
    def train(self, step: int) -> Int64[Tensor, " T"]:
        """The text of a step."""

    @abstractmethod
    def held_out(self) -> dict[str, list[Int64[Tensor, " T"]]]:
        """By name of what they have in common; none of it is in a text to train on."""


class Windows(Texts):
    """Windows of documents, of which the last tenth is held out."""

    def __init__(
        self,
        target: HFTarget,
        documents: Sequence[tuple[str, str]],
        lengths: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__(lengths)
        self.name, self._seed = ", ".join(name for name, _ in documents), seed
        self._train, self._rest = [], []
        for name, text in documents:
            ids = torch.tensor(text_ids(target, text))
            cut = len(ids) * 9 // 10
            if len(ids) - cut < max(lengths):
                raise BadRequest(
                    f"the text {name} has {len(ids)} tokens, and its last tenth is held out: too "
                    f"few for windows of {max(lengths)}; give a longer text or shorter --lengths"
                )
            self._train.append(ids[:cut])
            self._rest.append(ids[cut:])

    def train(self, step: int) -> Int64[Tensor, " T"]:
        """A window anywhere in a document."""
        random = Random(f"{self._seed} {step}")
        ids, length = random.choice(self._train), self.lengths[step % len(self.lengths)]
        start = random.randint(0, len(ids) - length)
        return ids[start : start + length]

    def held_out(self) -> dict[str, list[Int64[Tensor, " T"]]]:
        """The first and the last window of each length."""
        return {
            f"{length} tokens": [
                window for ids in self._rest for window in (ids[:length], ids[-length:])
            ]
            for length in self.lengths
        }


class Tasks(Texts):
    """Texts of the kind that the tiny model was taught."""

    name = "recall"

    def __init__(self, target: HFTarget, lengths: Sequence[int], seed: int) -> None:
        super().__init__(lengths)
        self._vocabulary, self._seed = target.tokenizer.get_vocab(), seed

    def train(self, step: int) -> Int64[Tensor, " T"]:
        """A text of all kinds."""
        from varifocal.demo.recall import draw_long  # of a part above this one

        length = self.lengths[step % len(self.lengths)]
        return self._ids(draw_long(self._kinds, length, self._seed * 1_000_003 + step).written()[0])

    def held_out(self) -> dict[str, list[Int64[Tensor, " T"]]]:
        """Texts that neither the model nor the indexer has read, by kind and length."""
        from varifocal.demo.recall import draw_long

        return {
            f"{kind} {length}": [
                self._ids(draw_long((kind,), length, index, "test").written()[0])
                for index in range(_HELD_OUT)
            ]
            for length in self.lengths
            for kind in self._kinds
        }

    @property
    def _kinds(self) -> tuple[str, ...]:
        from varifocal.demo.recall import KINDS

        return KINDS

    def _ids(self, words: Sequence[str]) -> Int64[Tensor, " T"]:
        return torch.tensor([self._vocabulary[word] for word in words])


def texts_for(target: HFTarget, files: Sequence[Path], lengths: str, seed: int) -> Texts:
    """Of these files; without any, of the tiny model's tasks or Python's documentation."""
    try:
        asked = [int(length) for length in lengths.split(",")]
    except ValueError:
        raise BadOption(f"--lengths wants numbers, got {lengths!r}") from None
    if min(asked) < 2 or max(asked) > target.context_length:
        raise BadOption(
            f"--lengths must be within 2 and the {target.context_length} tokens that "
            f"{target.name} holds, got {lengths}"
        )
    if target.name == TINY and not files:
        return Tasks(target, asked, seed)
    documents = [(path.name, read_text(path)) for path in files]
    return Windows(target, documents or [("Python's documentation", documentation())], asked, seed)
