"""One row being denoised, live or in replay: from step to step, and what of it is told.

Letter: G canvas positions.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int64

from varifocal.commit import Commit
from varifocal.diffusion.candidate import Candidate
from varifocal.diffusion.decided import Commits, Cost, Decided, Ending
from varifocal.diffusion.formats import Reader
from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.result import DiffusionResult, StepRecord
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.statistics import Seen
from varifocal.diffusion.view import View

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What a row is made of."""

    number: int  # in its batch
    plan: Plan
    gate: Gate[Any]
    setting: Setting
    reader: Reader | None  # its own: readers remember
    decode: Callable[[Any], str]
    mask: int
    seed: int
    prompt_tokens: int
    model: str
    sampler: str
    format: str | None


class Row:
    """Goes from step to step by what it is shown; its text can be told as it is decided."""

    def __init__(self, origin: Origin, clock: Clock = time.perf_counter) -> None:
        self.origin, self._clock = origin, clock
        self._gate, self._memory = origin.gate, origin.gate.start(origin.setting)
        self._blocks, self._shares = origin.plan.blocks, origin.plan.shares
        self.decided = Decided.of(origin.plan, origin.mask)
        self.step = 0  # forwards so far
        self.seen: Seen | None = None  # the last known statistics
        self.ending: Ending | None = None
        self.steps: list[StepRecord] = []
        self._says: Int64[np.ndarray, " G"] | None = None
        self._parsed: Candidate | None = None
        self._is_parsed = False  # whether `_says` was
        self._pending: tuple[Exit, int] | None = None  # waits for its block, since this step
        self._told = Commit(origin.decode, origin.setting.stops, origin.plan.canvas)
        self._enter(0)
        self.open = self._masks()

    # -- where it stands -----------------------------------------------------------------------

    @property
    def block(self) -> slice:
        """The current one."""
        return self._blocks[self._block]

    @property
    def is_new_block(self) -> bool:
        """Whether no forward was spent in the current block yet."""
        return self._block_step == 0

    def _enter(self, block: int) -> None:
        """The first block from here on that has masks."""
        masked = self.decided.masked
        while not masked[self._blocks[block]].any():
            block += 1
        self._block, self._block_step = block, 0
        self._block_masks = int(masked[self._blocks[block]].sum())

    def _masks(self) -> Int64[np.ndarray, " n"]:
        """Those of the current block."""
        inside = self.decided.masked[self.block].nonzero()[0]
        found: Int64[np.ndarray, " n"] = inside + self.block.start
        return found

    # -- a step --------------------------------------------------------------------------------

    def advance(self, seen: Seen, choose: Callable[[View], Commits], cost: Cost) -> StepRecord:
        """A step, by what its forward said: the gate first, then commits.

        What is decided stays as it was if something is raised on the way.
        """
        before = self.decided
        try:
            return self._take(seen, choose, cost)
        except BaseException:  # an interrupt too: the step was not taken
            self.decided, self.ending = before, None
            raise

    def _take(self, seen: Seen, choose: Callable[[View], Commits], cost: Cost) -> StepRecord:
        begin, spent = self._clock(), cost.gate + cost.sample
        before, block, is_early = self.decided, self._block, False
        view = self._look(seen)
        exit = self._observe(view, cost)
        if exit is not None:
            self._leave(exit, self.step)
        else:
            commits, is_early = self._commits(view, choose, cost)
            self.decided = before.having(commits, self.step)
            self._after(cost)
        positions, tokens = self._news(before)
        ending, text, told = self.ending, self._tell(), dict(self._gate.told(self._memory))
        cost.other += self._clock() - begin - (cost.gate + cost.sample - spent)
        record = StepRecord(
            row=self.origin.number,
            step=self.step,
            block=block,
            positions=positions,
            tokens=tokens,
            num_masked=0 if ending else int(self.decided.masked.sum()),
            filled=tuple(self.decided.masked[: len(ending.tokens)].nonzero()[0].tolist())
            if ending
            else (),
            is_early=is_early,
            exit=ending.exit.reason if ending and ending.exit else None,
            is_done=ending is not None,
            text=text,
            told=told,
            window=cost.window,
            num_computed=cost.num_computed,
            forward_seconds=cost.forward,
            gate_seconds=cost.gate,
            sample_seconds=cost.sample,
            other_seconds=cost.other,
        )
        self.steps.append(record)
        return record

    def _look(self, seen: Seen) -> View:
        self.step += 1
        self._block_step += 1
        decided, last = self.decided, self._says
        known = self.seen if self._gate.reads_canvas else None
        if known is not None and not seen.fresh[decided.masked].all():
            seen = seen.over(known)
        self.seen = seen
        self._says = says = np.where(decided.masked, seen.argmax, decided.tokens)
        changed = last is None or not np.array_equal(last, says)
        self._is_parsed = self._is_parsed and not changed
        return View(
            step=self.step,
            total=self.origin.plan.total,
            block=self.block,
            block_step=self._block_step,
            block_steps=self._shares[self._block],
            block_masks=self._block_masks,
            is_last=not decided.masked[self.block.stop :].any(),
            seed=self.origin.seed,
            masked=decided.masked,
            open=self.open,
            says=says,
            changed=changed,
            confidence=seen.confidence,
            quality=np.where(decided.masked, seen.confidence, decided.confidence),
            fresh=seen.fresh,
            picks=seen.picks,
            pick_confidence=seen.pick_confidence,
            gap=seen.gap,
            margin=seen.margin,
            entropy=seen.entropy,
            divergence=seen.divergence,
            read=self._read,
        )

    def _read(self) -> Candidate | None:
        """The provisional text's, parsed only if it has changed since."""
        if self.origin.reader is not None and not self._is_parsed:
            assert self._says is not None
            self._parsed, self._is_parsed = self.origin.reader.extract(self._says), True
        return self._parsed

    def _observe(self, view: View, cost: Cost) -> Exit | None:
        """The gate's word; a row that only finishes its block is not asked again."""
        if self._pending is not None:
            return None
        begin = self._clock()
        exit = self._gate.observe(self._memory, view)
        cost.gate += self._clock() - begin
        if exit is None or exit.fill != "finish_block":
            return exit
        self._pending = exit, self.step
        return exit if self._has_its_block(exit) else None

    def _commits(
        self, view: View, choose: Callable[[View], Commits], cost: Cost
    ) -> tuple[Commits, bool]:
        """The sampler's choice, or all of the block; and whether it is the latter."""
        begin = self._clock()
        chosen = choose(view)
        sampled = self._clock()
        is_early = self._pending is None and self._gate.early(self._memory, view)
        cost.sample += sampled - begin
        cost.gate += self._clock() - sampled
        _check(chosen, view)
        if is_early:
            open = view.open
            chosen = Commits(open, view.says[open], view.confidence[open])
        return chosen, is_early

    def _after(self, cost: Cost) -> None:
        """Whether the commits ended the row, or its block."""
        decided = self.decided
        exit, step = self._pending or (None, self.step)
        if not decided.masked.any():
            if exit is None:
                self.ending = Ending(finish="filled", tokens=decided.tokens)
            else:  # it waited for its block, and that was the last
                self._leave(exit, step)
            return
        if exit is None:
            begin = self._clock()
            exit = self._gate.settle(self._memory, decided.tokens, decided.masked)
            cost.gate += self._clock() - begin
        elif not self._has_its_block(exit):
            exit = None
        if exit is not None:
            self._leave(exit, step)
        else:
            self.open = self._masks()
            if not len(self.open):
                self._enter(self._block + 1)
                self.open = self._masks()

    def _has_its_block(self, exit: Exit) -> bool:
        """Whether everything up to the end of the candidate's block is decided."""
        assert exit.candidate is not None, "a block is finished for a candidate"
        last = exit.candidate.span[-1]
        end = next(block.stop for block in self._blocks if last < block.stop)
        return not self.decided.masked[:end].any()

    def _leave(self, exit: Exit, step: int) -> None:
        assert self._says is not None
        tokens = self.decided.filled(exit, self._says, self.origin.setting.stops)
        if self.origin.mask in tokens:
            raise ValueError(
                f"the gate {self._gate.name} fills what it says it does not read: reads_canvas"
            )
        num_masked = int(self.decided.masked.sum())
        self.ending = Ending(
            finish="exit", tokens=tokens, exit=exit, exit_step=step, num_filled=num_masked
        )

    # -- what is told --------------------------------------------------------------------------

    def _news(self, before: Decided) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Positions and tokens that this step decided, by commits or by an exit."""
        if self.ending is None:
            tokens, is_new = self.decided.tokens, before.masked & ~self.decided.masked
        else:
            tokens = self.ending.tokens
            is_new = before.masked[: len(tokens)]
        positions = is_new.nonzero()[0]
        return tuple(positions.tolist()), tuple(tokens[positions].tolist())

    def _tell(self) -> str:
        """The text that was decided without a gap since it was last told."""
        known = len(self._told.tokens)
        if self.ending is None:
            new = self.decided.tokens[known : int(self.decided.masked.argmax())].tolist()
        else:
            new = self.ending.tokens[known:].tolist()
            if len(self.ending.tokens) < self.origin.plan.canvas and self.origin.setting.stops:
                new.append(min(self.origin.setting.stops))  # what was cut is told to its last byte
        return self._told.push(new).text if new else ""

    def result(self) -> DiffusionResult:
        """What came of it; "cancelled", with the text told so far, if it has not ended."""
        origin, plan = self.origin, self.origin.plan
        told = np.array(self._told.tokens, dtype=np.int64)
        ending = self.ending or Ending(finish="cancelled", tokens=told)
        exit, answer = ending.exit, None
        if origin.reader is not None:
            answer = origin.reader.extract(ending.tokens)
        reason = exit.reason if exit else ""
        if self.ending and exit is None:
            reason = self._gate.unmet(self._memory) or ""
        span = _span_of(exit, ending.tokens)
        return DiffusionResult(
            text=self._told.text,
            token_ids=ending.tokens.tolist(),
            finish=ending.finish,
            reason=reason,
            prompt_tokens=origin.prompt_tokens,
            canvas=plan.canvas,
            block=min(plan.block, plan.canvas),
            planned_steps=plan.total,
            exit_step=ending.exit_step,
            num_filled=ending.num_filled,
            candidate=answer,
            verified_span=span,
            confidence=exit.confidence if exit and span else None,
            num_computed=sum(step.num_computed for step in self.steps),
            steps=list(self.steps),
            model=origin.model,
            sampler=origin.sampler,
            gate=self._gate.text,
            format=origin.format,
            seed=origin.seed,
        )


def _span_of(exit: Exit | None, tokens: Int64[np.ndarray, " n"]) -> tuple[int, ...] | None:
    """The verified span, if it still holds what was verified."""
    if exit is None or exit.candidate is None:
        return None
    span = exit.candidate.span
    return span if tokens[list(span)].tolist() == list(exit.candidate.ids) else None


def _check(commits: Commits, view: View) -> None:
    """A sampler that commits nothing would never end; one that commits elsewhere breaks blocks."""
    positions, block = commits.positions, view.block
    is_fine = len(positions) > 0 and block.start <= positions.min() <= positions.max() < block.stop
    if not is_fine or not view.masked[positions].all():
        raise ValueError(
            f"a sampler must choose among the masks of {view.block}, one at least; it chose "
            f"{positions.tolist()}"
        )
