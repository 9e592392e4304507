"""One prompt in transformers' loop for DiffusionGemma, and the gate that watches it.

Letters: G canvas positions, V vocabulary.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor
from transformers import LogitsProcessor

from varifocal.diffusion.candidate import Candidate
from varifocal.diffusion.formats import Format, Reader
from varifocal.diffusion.gate import Exit, Gate, Setting
from varifocal.diffusion.result import DiffusionResult, Finish, StepRecord
from varifocal.diffusion.statistics import Ask, Seen, Statistics, Want
from varifocal.diffusion.view import View
from varifocal.sampling import Sampling

NATIVE = "native"  # in the place of a gate: the stop that transformers has
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a run is made of."""

    number: int  # of the prompt
    prompt_tokens: int
    gate: Gate[Any] | None  # None: transformers' own stop
    setting: Setting
    format: Format | None
    reader: Reader | None  # its own: readers remember
    decode: Callable[[Any], str]
    model: str
    seed: int


class Run:
    """One prompt on its way: what the gate sees, step by step, and what it says."""

    def __init__(self, asked: Asked, clock: Callable[[], float]) -> None:
        self.asked, self.gate, self.plan = asked, asked.gate, asked.setting.plan
        self.memory = None if asked.gate is None else asked.gate.start(asked.setting)
        self.exit: Exit | None = None
        self.exit_step: int | None = None
        self.says: Int64[np.ndarray, " G"] = _NOTHING
        self.steps: list[StepRecord] = []
        self._sampler: Any = None  # transformers': it knows which positions hold noise
        self._statistics: Statistics | None = None
        self._clock, self._since = clock, clock()

    @property
    def is_done(self) -> bool:
        """Whether the gate stopped it. There is one block: finishing it is running to the end."""
        return self.exit is not None and self.exit.fill != "finish_block"

    def hooked(self, model: Any) -> Any:
        """The model with this run's stop: a shallow copy, for a model holds no request's state."""
        own = copy.copy(model)

        def prepare_sampler(config: Any) -> Any:
            self._sampler = model._prepare_sampler(config)
            return self._sampler

        own._prepare_sampler = prepare_sampler
        if self.gate is not None:
            own._prepare_diffusion_stopping_criteria = lambda _config: _Stops(self)
        return own

    def look(self, logits: Float[Tensor, "1 G V"]) -> None:
        """A step's logits, before temperature and before anything is accepted."""
        begin = self._clock()
        view = self._view(logits)
        measured = self._clock()
        told: dict[str, Any] = {}
        if self.gate is not None:
            exit = self.gate.observe(self.memory, view) if self.exit is None else None
            if exit is not None:
                self.exit, self.exit_step = exit, view.step
            told = dict(self.gate.told(self.memory))
        self.says = view.says
        done = self._clock()
        self.steps.append(
            StepRecord(
                row=self.asked.number,
                step=view.step,
                block=0,
                positions=(),
                tokens=(),
                num_masked=int(view.masked.sum()),
                exit=self.exit.reason if self.exit and self.is_done else None,
                told=told,
                window=(0, view.canvas),
                num_computed=view.canvas + (0 if self.steps else self.asked.prompt_tokens),
                forward_seconds=begin - self._since,
                sample_seconds=measured - begin,
                gate_seconds=done - measured,
            )
        )
        self._since = done

    def _view(self, logits: Float[Tensor, "1 G V"]) -> View:
        canvas, step = self.plan.canvas, len(self.steps) + 1
        (seen,) = self._measure(logits, step)
        says, last, reader = seen.argmax, self.says, self.asked.reader
        candidate: list[Candidate | None] = []

        def read() -> Candidate | None:
            if not candidate:
                candidate.append(None if reader is None else reader.extract(says))
            return candidate[0]

        masked = self._noise(canvas)
        return View(
            step=step,
            total=self.plan.total,
            block=slice(0, canvas),
            block_step=step,
            block_steps=self.plan.total,
            block_masks=canvas,
            is_last=True,
            seed=self.asked.seed,
            masked=masked,
            open=masked.nonzero()[0],
            says=says,
            changed=not np.array_equal(last, says),
            confidence=seen.confidence,
            # Unlike a masked model it is trained to judge the tokens that it sees.
            quality=seen.confidence,
            fresh=seen.fresh,
            picks=seen.picks,
            pick_confidence=seen.pick_confidence,
            gap=seen.gap,
            margin=seen.margin,
            entropy=seen.entropy,
            divergence=seen.divergence,
            read=read,
        )

    def _measure(self, logits: Float[Tensor, "1 G V"], step: int) -> list[Seen]:
        if self._statistics is None:
            none = torch.zeros(0, dtype=torch.long, device=logits.device)
            want = Want() if self.gate is None else self.gate.want
            self._statistics = Statistics(none, 0, want)
        fresh = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        ask = Ask(np.arange(logits.shape[1]), _NOTHING, step, Sampling())
        return self._statistics.measure(logits, fresh, 0, [ask])

    def _noise(self, canvas: int) -> Bool[np.ndarray, " G"]:
        """Where this forward read random tokens: nothing was accepted there by the last step."""
        accepted = self._sampler.accepted_token_mask
        if not self.steps or accepted is None:
            return np.ones(canvas, np.bool_)
        noise: Bool[np.ndarray, " G"] = ~accepted[0].cpu().numpy()
        return noise

    def result(self) -> DiffusionResult:
        """What came of it."""
        tokens, exit, gate, asked = self.says, self.exit, self.gate, self.asked
        is_native_stop = gate is None and len(self.steps) < self.plan.total
        finish: Finish = "exit" if self.is_done or is_native_stop else "filled"
        if exit is not None and exit.fill == "cut":
            assert exit.candidate is not None, "only a candidate can be cut behind"
            tokens = tokens[: exit.candidate.span[-1] + 1]
        ids = tokens.tolist()
        end = next((i for i, token in enumerate(ids) if token in asked.setting.stops), len(ids))
        reason = exit.reason if exit else "transformers' own stop" if is_native_stop else ""
        if gate is not None and exit is None:
            reason = gate.unmet(self.memory) or ""
        text, verified = asked.decode(ids[:end]), None if exit is None else exit.candidate
        last = replace(  # all is decided there, since nothing is before
            self.steps[-1],
            positions=tuple(range(len(ids))),
            tokens=tuple(ids),
            num_masked=0,
            is_done=True,
            text=text,
        )
        holds = verified is not None and tokens[list(verified.span)].tolist() == list(verified.ids)
        return DiffusionResult(
            text=text,
            token_ids=ids,
            finish=finish,
            reason=reason,
            prompt_tokens=asked.prompt_tokens,
            canvas=self.plan.canvas,
            block=self.plan.canvas,
            planned_steps=self.plan.total,
            exit_step=len(self.steps) if is_native_stop else self.exit_step,
            num_filled=self.steps[-1].num_masked if finish == "exit" else 0,
            candidate=None if asked.reader is None else asked.reader.extract(tokens),
            verified_span=verified.span if verified and holds else None,
            confidence=exit.confidence if exit and holds else None,
            num_computed=sum(step.num_computed for step in self.steps),
            steps=[*self.steps[:-1], last],
            model=asked.model,
            sampler="entropy_bound",
            gate=NATIVE if gate is None else gate.text,
            format=None if asked.format is None else asked.format.name,
            seed=asked.seed,
        )


class Reads(LogitsProcessor):
    """The first of transformers' processors: sees a step's logits before the temperature."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(
        self, input_ids: Int[Tensor, "1 T"], scores: Float[Tensor, "1 G V"], cur_step: Any
    ) -> Float[Tensor, "1 G V"]:
        """Unchanged. Raises as a gate or a format does."""
        self._run.look(scores)
        return scores


class _Stops:
    """In the place of transformers' adaptive stop, which asks after the processors."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __call__(
        self, argmax_canvas: Int[Tensor, "1 G"], logits: Float[Tensor, "1 G V"]
    ) -> Bool[Tensor, "1"]:
        """Whether the row is done; what `argmax_canvas` holds is then its text."""
        return torch.tensor([self._run.is_done], device=argmax_canvas.device)

    def reset(self) -> None:
        """A new canvas: there is only one."""
