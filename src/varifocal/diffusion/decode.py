"""The one denoising loop: a forward, the gate's word, commits; for rows that end on their own.

Letters: B rows, T = P + G positions of prompt and canvas, W of a window, V vocabulary.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.decode import synchronised
from varifocal.diffusion import formats, gates, samplers
from varifocal.diffusion.decided import Commits, Cost
from varifocal.diffusion.denoiser import Canvas, Denoiser
from varifocal.diffusion.formats import Format
from varifocal.diffusion.gate import Gate, Setting
from varifocal.diffusion.recording import Recorder, Recording
from varifocal.diffusion.request import (
    Prompt,
    check_choices,
    check_recorded,
    prompt_ids,
    samplings,
    text_decoder,
)
from varifocal.diffusion.result import DiffusionResult, StepRecord
from varifocal.diffusion.row import Clock, Origin, Row
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.statistics import Ask, Seen, Statistics, Want, never_ids
from varifocal.diffusion.view import View
from varifocal.errors import BadOption, BadRequest
from varifocal.sampling import Sampling

PLAN, GREEDY = Plan(), Sampling()
_EVERYTHING = Want(gap=True, entropy=True, committed=True)  # what recordings hold


@dataclass
class _Live:
    """A row and what the loop keeps for it."""

    row: Row
    sampling: Sampling
    choose: Callable[[View], Commits]
    recorder: Recorder | None


@dataclass
class _Group:
    """Rows whose forwards are one: their windows are the same."""

    canvas: Canvas
    statistics: Statistics
    rows: list[_Live]


class Decoding:
    """A batch of prompts being denoised. Iterate over its steps; `results()` folds them.

    Rows go at their own pace: each has its own block and steps, and leaves the batch when it ends.
    A row's text does not depend on the others. With a cache, rows that come to stand in different
    blocks compute different windows; from there on their forwards are separate.

    Breaking off early is fine at any point: nothing lives outside this object. A step that is
    interrupted is not taken, and what was decided before it stays.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        prompts: Sequence[Prompt],
        *,
        format: str | Format | None,
        plan: Plan = PLAN,
        sampler: str | Sampler[Any] = "low_confidence",
        gate: str | Gate[Any] = "latch",
        sampling: Sampling | Sequence[Sampling] = GREEDY,
        recording: bool = False,
        clock: Clock = time.perf_counter,
    ) -> None:
        if isinstance(prompts, str):
            raise BadRequest(f"wanted a list of prompts, got the text {prompts!r:.40}")
        if not isinstance(denoiser, Denoiser):
            raise BadRequest(
                f"a diffusion language model is wanted, as diffusion.load_denoiser gives it, got "
                f"{type(denoiser).__name__}"
            )
        self.denoiser, self.sampler = denoiser, samplers.find(sampler)
        self.gate = gates.find(gate)
        self.format = None if format is None else formats.find(format)
        self.plan = self.gate.plan(plan, denoiser.tokenizer)
        self._is_recording = recording
        self._want = self.sampler.want | self.gate.want | (_EVERYTHING if recording else Want())
        self._clock = synchronised(clock, denoiser.device)
        check_choices(self.gate, self.sampler, self.format, self.plan, plan)
        if recording:
            check_recorded(self.gate)
        ids = [prompt_ids(denoiser, prompt, self.plan, n) for n, prompt in enumerate(prompts)]
        each = samplings(sampling, len(ids))
        self._live = [self._begin(n, prompt, each[n]) for n, prompt in enumerate(ids)]
        self._prompts = ids
        self._groups = [self._group(ids)] if ids else []
        self._is_cancelled = False
        self._to_come = self._decide()

    # -- the caller's side ---------------------------------------------------------------------

    def __iter__(self) -> Iterator[StepRecord]:
        """The steps still to come, row by row: a second loop goes on where the first was left."""
        return self._to_come

    @property
    def is_done(self) -> bool:
        """Whether no step is to come."""
        return self._is_cancelled or all(live.row.ending is not None for live in self._live)

    def cancel(self) -> None:
        """Take no further step. What was decided stays."""
        self._is_cancelled = True

    def results(self) -> list[DiffusionResult]:
        """One for each prompt; rows that have not ended are "cancelled"."""
        return [live.row.result() for live in self._live]

    def recordings(self) -> list[Recording]:
        """One for each row that was denoised to its end."""
        if not self._is_recording:
            raise BadOption("nothing was recorded: give recording=True")
        return [
            live.recorder.recording(live.row, self._prompts[n])
            for n, live in enumerate(self._live)
            if live.recorder is not None and live.row.ending is not None
        ]

    # -- the loop ------------------------------------------------------------------------------

    def _decide(self) -> Iterator[StepRecord]:
        while not self.is_done:
            yield from self._advance()

    def _advance(self) -> list[StepRecord]:
        """A step of every open row."""
        begin, groups = self._clock(), []
        for group in self._groups:
            groups += self._regroup(group)
        self._groups = groups
        records: list[StepRecord] = []
        for group in groups:
            records += self._step(group, begin)
            begin = self._clock()
        return records

    def _step(self, group: _Group, since: float) -> list[StepRecord]:
        """One forward, and what each of its rows makes of it."""
        canvas, rows = group.canvas, group.rows
        window, caching = self._window(rows[0].row, canvas)
        shown = max(window.start - canvas.start, 0), window.stop - canvas.start
        begin = self._clock()
        logits = self._forward(canvas, window, caching)
        done = self._clock()
        asks = [self._ask(live, shown) for live in rows]
        seen = self._measure(group, logits, window, asks)
        measured = self._clock()
        part = 1 / len(rows)
        records = []
        for index, (live, own) in enumerate(zip(rows, seen, strict=True)):
            watched = (measured - done) * part
            # What is measured beyond the choice of commits is measured for the gate.
            beyond = watched * (1 - len(asks[index].open) / len(asks[index].positions))
            real = canvas.padding[index]
            cost = Cost(
                forward=(done - begin) * part,
                gate=beyond,
                sample=watched - beyond,
                other=(begin - since) * part,
                window=shown,
                num_computed=window.stop - max(window.start, real),
            )
            records.append(live.row.advance(own, live.choose, cost))
            if live.recorder is not None:
                live.recorder.add(live.row)
        return records

    @torch.inference_mode()  # for this call alone: a generator must not hold a thread's mode
    def _forward(self, canvas: Canvas, window: slice, caching: bool) -> Float[Tensor, "B W V"]:
        return self.denoiser.forward(canvas, window, caching=caching)

    @torch.inference_mode()
    def _measure(
        self, group: _Group, logits: Float[Tensor, "B W V"], window: slice, asks: list[Ask]
    ) -> list[Seen]:
        canvas = group.canvas
        first = max(window.start, canvas.start)
        assert canvas.fresh is not None, "a denoiser says what it computed"
        return group.statistics.measure(
            logits[:, first - window.start :],
            canvas.fresh[:, canvas.start :],
            first - canvas.start,
            asks,
        )

    def _ask(self, live: _Live, window: tuple[int, int]) -> Ask:
        """The positions that somebody reads: fewer are less work."""
        row, open = live.row, live.row.open
        if self._want.committed:
            positions = np.arange(*window)
        elif self.gate.reads_canvas or self._want.divergence:
            positions = row.decided.masked[slice(*window)].nonzero()[0] + window[0]
        else:
            positions = open
        return Ask(positions, open, row.step + 1, live.sampling)

    def _window(self, row: Row, canvas: Canvas) -> tuple[slice, bool]:
        """What the row's next forward computes, and whether the rest comes from the cache."""
        start, width = canvas.start, canvas.tokens.shape[1]
        if self.plan.caching == "none":
            return slice(start, width), False
        if row.is_new_block:
            return slice(0, width), True
        if self.plan.caching == "prefix":
            return slice(start + row.block.start, width), True
        return slice(start + row.block.start, start + row.block.stop), True

    def _regroup(self, group: _Group) -> list[_Group]:
        """The rows that are still open, by window; their commits enter the canvas."""
        _write(group)
        by_window: dict[tuple[int, int], list[int]] = {}
        for index, live in enumerate(group.rows):
            if live.row.ending is None:
                window, _ = self._window(live.row, group.canvas)
                by_window.setdefault((window.start, window.stop), []).append(index)
        if [len(rows) for rows in by_window.values()] == [len(group.rows)]:
            return [group]
        return [
            _Group(
                self.denoiser.select(group.canvas, rows),
                group.statistics.select(rows, self.plan.canvas),
                [group.rows[index] for index in rows],
            )
            for rows in by_window.values()
        ]

    # -- the beginning -------------------------------------------------------------------------

    def _begin(self, number: int, prompt: Sequence[int], sampling: Sampling) -> _Live:
        denoiser, format = self.denoiser, self.format
        vocabulary = denoiser.vocabulary
        reader = None if format is None else format.reader(denoiser.tokenizer, vocabulary)
        setting = Setting(plan=self.plan, stops=vocabulary.stops, has_format=format is not None)
        origin = Origin(
            number=number,
            plan=self.plan,
            gate=self.gate,
            setting=setting,
            reader=reader,
            decode=text_decoder(denoiser.tokenizer),
            mask=vocabulary.mask,
            seed=sampling.seed,
            prompt_tokens=len(prompt),
            model=denoiser.name,
            sampler=self.sampler.text,
            format=None if format is None else format.name,
        )
        choose = partial(_choose, self.sampler, self.sampler.start(self.plan.canvas))
        recorder = Recorder(vocabulary, sampling) if self._is_recording else None
        return _Live(Row(origin, self._clock), sampling, choose, recorder)

    def _group(self, prompts: list[list[int]]) -> _Group:
        denoiser = self.denoiser
        canvas = denoiser.lay(prompts, self.plan.canvas)
        never = torch.tensor(never_ids(denoiser.vocabulary), device=denoiser.device)
        statistics = Statistics(never, denoiser.vocabulary.mask, self._want)
        return _Group(canvas, statistics, list(self._live))


def generate(
    denoiser: Denoiser,
    prompts: Sequence[Prompt],
    *,
    format: str | Format | None,
    plan: Plan = PLAN,
    sampler: str | Sampler[Any] = "low_confidence",
    gate: str | Gate[Any] = "latch",
    sampling: Sampling | Sequence[Sampling] = GREEDY,
    max_batch: int = 8,
) -> list[DiffusionResult]:
    """Answer prompts (texts, or token ids), `max_batch` of them at a time.

    `format` says how an answer is stated, "free" if there is nothing to go by; gates that look for
    none take None too. `sampling` is one for all or one for each: temperature and the filters;
    its penalties and biases are refused.
    """
    if max_batch < 1:
        raise BadOption(f"max_batch must be a count from 1, got {max_batch}")
    each = samplings(sampling, len(prompts))
    results: list[DiffusionResult] = []
    for first in range(0, len(prompts), max_batch):
        some = slice(first, first + max_batch)
        decoding = Decoding(
            denoiser,
            prompts[some],
            format=format,
            plan=plan,
            sampler=sampler,
            gate=gate,
            sampling=each[some],
        )
        for _ in decoding:
            pass
        results += decoding.results()
    return results


def _choose(sampler: Sampler[Any], state: Any, view: View) -> Commits:
    positions = sampler.choose(state, view)
    return Commits(positions, view.picks[positions], view.pick_confidence[positions])


def _write(group: _Group) -> None:
    """What is decided, for the next forward to see."""
    canvas, decided = group.canvas, np.stack([live.row.decided.tokens for live in group.rows])
    canvas.tokens[:, canvas.start :] = torch.from_numpy(decided)
