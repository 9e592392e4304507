"""What became of one question under one gate, small enough to keep for thousands of them."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.formats import Format
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.statistics import never_ids
from varifocal.diffusion.tasks import Item


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run."""

    value: str | None  # the answer in the final text
    is_right: bool  # by the task's scorer; where the task has none: the text is as it should be
    nfe: int
    exit_step: int | None
    num_filled: int  # positions that the exit decided
    num_early: int  # positions that were committed as whole blocks
    text: str  # digest of the text before the first stop token
    num_tokens: int  # before that stop token
    is_whole: bool  # every position was decided (or cut off), by ids that may be said

    @classmethod
    def of(
        cls, result: DiffusionResult, item: Item, format: Format, vocabulary: Vocabulary
    ) -> "Outcome":
        """From a run that has ended."""
        ids = result.token_ids
        ends = [n for n, token in enumerate(ids) if token in vocabulary.stops]
        is_cut = result.finish == "exit" and len(ids) < result.canvas
        return cls(
            value=result.value,
            is_right=is_right(result.text, item, format),
            nfe=result.nfe,
            exit_step=result.exit_step,
            num_filled=result.num_filled,
            num_early=sum(len(step.positions) for step in result.steps if step.is_early),
            text=hashlib.sha256(result.text.encode()).hexdigest()[:12],
            num_tokens=ends[0] if ends else len(ids),
            is_whole=(len(ids) == result.canvas or is_cut)
            and set(never_ids(vocabulary)).isdisjoint(ids),
        )

    @property
    def verdict(self) -> tuple[str | None, bool]:
        """What agrees if two runs do."""
        return self.value, self.is_right

    def packed(self) -> list[Any]:
        """As a list, for JSON."""
        return list(asdict(self).values())

    @classmethod
    def unpacked(cls, row: Sequence[Any]) -> "Outcome":
        """The other way round."""
        return cls(**dict(zip(cls.__dataclass_fields__, row, strict=True)))


def is_right(text: str, item: Item, format: Format) -> bool:
    """Whether a text answers; of an item without a reference the text itself is judged."""
    if not item.reference:
        return text == item.answer
    return format.score(text, item.reference)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Runs with a gate, item by item beside full decoding's."""

    items: int
    helped: int  # wrong -> right
    hurt: int  # right -> wrong
    changed: int  # another answer, no better and no worse
    same_text: int
    exits: int
    premature: int  # exits whose answer is not that of the end of full decoding

    @classmethod
    def of(cls, runs: Sequence[Outcome], full: Sequence[Outcome]) -> "Agreement":
        """Of the same items in the same order."""
        pairs = list(zip(runs, full, strict=True))
        differing = [(a, b) for a, b in pairs if a.verdict != b.verdict]
        exits = [(a, b) for a, b in pairs if a.exit_step is not None]
        return cls(
            items=len(pairs),
            helped=sum(a.is_right and not b.is_right for a, b in differing),
            hurt=sum(b.is_right and not a.is_right for a, b in differing),
            changed=sum(a.is_right == b.is_right for a, b in differing),
            same_text=sum(a.text == b.text for a, b in pairs),
            exits=len(exits),
            premature=sum(a.value != b.value for a, b in exits),
        )

    @property
    def agreeing(self) -> int:
        """Items with the same answer, equally right."""
        return self.items - self.helped - self.hurt - self.changed

    @property
    def premature_share(self) -> float:
        """Of exits; 0 without any."""
        return self.premature / self.exits if self.exits else 0.0


def accuracy(runs: Sequence[Outcome]) -> float:
    """Share of right answers."""
    return sum(run.is_right for run in runs) / len(runs)


def mean_nfe(runs: Sequence[Outcome]) -> float:
    """Forwards a run."""
    return sum(run.nfe for run in runs) / len(runs)
