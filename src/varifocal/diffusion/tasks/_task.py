"""What a task is: a seeded writer of questions, the text that answers them, and the right value."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Literal, get_args

from varifocal.errors import BadOption

Split = Literal["train", "valid", "test"]
Regime = Literal["short", "long"]

_SHARES = 10  # of all prompts, one share is for testing, one for validation


@dataclass(frozen=True)
class Item:
    """One question, the whole text that should stand on the canvas, and the value in it."""

    prompt: str
    answer: str  # all of the canvas before its end
    reference: str  # what a scorer of the task's format compares with; "" where there is none
    task: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """A family of questions with one output format."""

    name: str
    format: str  # a name of diffusion/formats/
    regime: Regime  # a short answer on a long canvas, or a long text that leads to the answer
    canvas: int  # length that the task is meant for; the longest answers need all but a few of 128
    sizes: tuple[int, int]  # least and most numbers (nodes, digits ...) that a question is about
    write: Callable[[Random, int], tuple[str, str, str]]  # of that size: prompt, answer, reference
    is_scored: bool = True

    def draw(self, index: int, split: Split, *, size: int | None = None) -> Item:
        """Question number `index` of a split: the same on every machine.

        The splits share no prompt: its hash alone says which of them it belongs to. A `size`,
        which may be below the least of `sizes`, is for training that begins with the easy ones.
        """
        if split not in get_args(Split):
            raise BadOption(f"no split is called {split!r}; there are {', '.join(get_args(Split))}")
        rng = Random(f"{self.name}/{split}/{index}")
        while True:
            prompt, answer, reference = self.write(rng, size or rng.randint(*self.sizes))
            if split_of(prompt) == split:
                return Item(prompt, answer, reference, self.name)


def split_of(prompt: str) -> Split:
    """The only split that may hold a prompt."""
    share = sha256(prompt.encode()).digest()[0] % _SHARES
    return "test" if share == 0 else "valid" if share == 1 else "train"


LABELS = "abcdefghijklmnopqrstuvwxyz"
