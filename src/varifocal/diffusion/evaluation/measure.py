"""Runs of questions: recorded and replayed with many gates, live in batches, or timed alone."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from varifocal.diffusion import formats
from varifocal.diffusion.decode import Decoding
from varifocal.diffusion.denoiser import Denoiser
from varifocal.diffusion.evaluation.audience import Audience
from varifocal.diffusion.evaluation.outcome import Outcome
from varifocal.diffusion.formats import Format
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.gates.full import Full
from varifocal.diffusion.recording import Recording
from varifocal.diffusion.replay import replay
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.row import Clock
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.tasks import Item, Task


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What all runs of a comparison share."""

    denoiser: Denoiser
    task: Task
    plan: Plan
    batch: int

    @property
    def format(self) -> Format:
        """In which the task's answers are stated."""
        return formats.find(self.task.format)

    @property
    def full(self) -> Gate[Any]:
        """No gate."""
        return Full()

    def decoding(
        self,
        items: Sequence[Item],
        sampler: Sampler[Any],
        gate: Gate[Any],
        *,
        recording: bool = False,
        clock: Clock = time.perf_counter,
    ) -> Decoding:
        """Of some questions, not begun."""
        return Decoding(
            self.denoiser,
            [item.prompt for item in items],
            format=self.format,
            plan=self.plan,
            sampler=sampler,
            gate=gate,
            recording=recording,
            clock=clock,
        )

    def outcome(self, result: DiffusionResult, item: Item) -> Outcome:
        """Of a run that has ended."""
        return Outcome.of(result, item, self.format, self.denoiser.vocabulary)


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run by itself: its outcome and where its seconds went."""

    outcome: Outcome
    seconds: float  # from the prompt's text to the answer's
    forward: float
    gate: float
    sample: float
    other: float  # of the loop; what is left of `seconds` is before and after it

    def packed(self) -> list[Any]:
        """As a list, for JSON."""
        return [
            self.outcome.packed(),
            *(self.seconds, self.forward, self.gate, self.sample, self.other),
        ]

    @classmethod
    def unpacked(cls, row: Sequence[Any]) -> "Timed":
        """The other way round."""
        outcome, seconds, forward, gate, sample, other = row
        return cls(
            outcome=Outcome.unpacked(outcome),
            seconds=seconds,
            forward=forward,
            gate=gate,
            sample=sample,
            other=other,
        )


def record(
    setup: Setup, items: Sequence[Item], sampler: Sampler[Any], gate: Gate[Any] | None = None
) -> Iterator[tuple[Item, DiffusionResult, Recording]]:
    """Full runs, a batch at a time; to their end, unless an audience is given as the gate."""
    for some in _batches(items, setup.batch):
        decoding = setup.decoding(some, sampler, gate or setup.full, recording=True)
        finished(decoding)
        yield from zip(some, decoding.results(), decoding.recordings(), strict=True)


def replayed(
    setup: Setup, items: Sequence[Item], sampler: Sampler[Any], gates: Mapping[str, Gate[Any]]
) -> dict[str, list[Outcome]]:
    """What gates that only stop would have done, from one full run of each question.

    Where the plan alone says how many forwards a full run takes, only the first question is taken
    to its end; the others as far as their answer and the gates need.
    """
    made: dict[str, list[Outcome]] = {label: [] for label in gates}
    num_whole = 1 if sampler.has_fixed_pace else len(items)
    runs = chain(
        record(setup, items[:num_whole], sampler),
        record(setup, items[num_whole:], sampler, Audience(gates)),
    )
    whole = 0  # forwards of a full run
    for number, (item, result, recording) in enumerate(runs):
        full = setup.outcome(result, item)
        whole = full.nfe if number < num_whole else whole
        full = replace(full, nfe=whole, exit_step=None, num_filled=0)
        for label, gate in gates.items():
            outcome = full
            if gate.name != "full":
                tokenizer = setup.denoiser.tokenizer
                stopped = replay(recording, gate, tokenizer, format=setup.format)
                outcome = setup.outcome(stopped, item)
            made[label].append(outcome)
    return made


def live(
    setup: Setup, items: Sequence[Item], sampler: Sampler[Any], gate: Gate[Any]
) -> list[Outcome]:
    """A gate that changes the path, a batch at a time."""
    made = []
    for some in _batches(items, setup.batch):
        results = finished(setup.decoding(some, sampler, gate))
        made += [setup.outcome(result, item) for result, item in zip(results, some, strict=True)]
    return made


def timed(setup: Setup, item: Item, sampler: Sampler[Any], gate: Gate[Any], clock: Clock) -> Timed:
    """One question by itself, from its text to the answer's."""
    begin = clock()
    (result,) = finished(setup.decoding([item], sampler, gate, clock=clock))
    seconds = clock() - begin
    parts = result.seconds
    return Timed(
        outcome=setup.outcome(result, item),
        seconds=seconds,
        **{name: parts[name] for name in ("forward", "gate", "sample", "other")},
    )


def finished(decoding: Decoding) -> list[DiffusionResult]:
    """Taken to its end."""
    for _ in decoding:
        pass
    return decoding.results()


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]
