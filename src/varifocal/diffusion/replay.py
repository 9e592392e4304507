"""A gate on a recorded full run: what it would have done live, without the model.

What a gate that only stops sees up to its exit is what the full run saw, so the replay is exact.
"""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from varifocal.diffusion import formats, gates
from varifocal.diffusion.candidate import Candidate
from varifocal.diffusion.decided import Commits, Cost
from varifocal.diffusion.denoiser import Vocabulary
from varifocal.diffusion.formats import Format
from varifocal.diffusion.gate import Gate, Setting
from varifocal.diffusion.recording import Recording
from varifocal.diffusion.request import text_decoder
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.row import Clock, Origin, Row
from varifocal.diffusion.statistics import Want
from varifocal.diffusion.view import View
from varifocal.errors import BadOption


def replay(
    recording: Recording,
    gate: str | Gate[Any],
    tokenizer: PreTrainedTokenizerBase,
    *,
    format: str | Format | None = None,
    clock: Clock = time.perf_counter,
) -> DiffusionResult:
    """The result of the live run with this gate, by the model's tokenizer.

    Its forward, sample and other seconds are those of the recorded steps that it takes; the
    gate's are measured now. `format` replaces the recorded one. Raises BadOption for a gate that
    changes the path, or whose statistics were not recorded.
    """
    rule = gates.find(gate)
    _check(rule, recording, tokenizer)
    facts = recording.facts
    chosen = facts.format if format is None else format
    made = None if chosen is None else formats.find(chosen)
    if rule.needs_format and made is None:
        raise BadOption(
            f"the gate {rule.name} looks for an answer and the recording has no format: give "
            f"format=, one of {', '.join(formats.names())}"
        )
    future = None
    if rule.needs_future and made is not None:
        future = tuple(_candidates(recording, made, tokenizer))
    row = Row(_origin(recording, rule, made, tokenizer, future), clock)
    while row.ending is None:
        at = row.step
        forward, sample, other = recording.seconds[at].tolist()
        computed = int(recording.num_computed[at])
        seen = recording.seen(at + 1)
        fresh = seen.fresh.nonzero()[0]
        cost = Cost(
            forward=forward,
            sample=sample,
            other=other,
            window=(int(fresh[0]), int(fresh[-1]) + 1),
            num_computed=computed,
        )
        row.advance(seen, lambda view: _recorded(recording, view), cost)
    return row.result()


def _recorded(recording: Recording, view: View) -> Commits:
    """What the sampler committed in this step."""
    positions = (recording.token_step == view.step).nonzero()[0]
    confidence = recording.token_confidence[positions]
    return Commits(positions, recording.tokens[positions], confidence)


def _check(gate: Gate[Any], recording: Recording, tokenizer: PreTrainedTokenizerBase) -> None:
    if gate.changes_path is not None:
        raise BadOption(
            f"the gate {gate.name} cannot be replayed: {gate.changes_path}; run it live"
        )
    plan = recording.facts.plan
    if gate.plan(plan, tokenizer) != plan:
        raise BadOption(
            f"the gate {gate.name} cannot be replayed on this recording: it pins tokens or plans "
            "otherwise; record a full run with its plan (gate.plan), or run it live"
        )
    known = Want(gap=True, entropy=True, committed=True)
    if gate.want | known != known:
        raise BadOption(
            f"the gate {gate.name} reads statistics that recordings do not hold; run it live"
        )


def _origin(
    recording: Recording,
    gate: Gate[Any],
    format: Format | None,
    tokenizer: PreTrainedTokenizerBase,
    future: tuple[Candidate | None, ...] | None,
) -> Origin:
    facts = recording.facts
    stops = frozenset(facts.stops)
    setting = Setting(plan=facts.plan, stops=stops, has_format=format is not None, future=future)
    return Origin(
        number=0,
        plan=facts.plan,
        gate=gate,
        setting=setting,
        reader=None if format is None else format.reader(tokenizer, _vocabulary(recording)),
        decode=text_decoder(tokenizer),
        mask=facts.mask,
        seed=facts.seed,
        prompt_tokens=len(facts.prompt),
        model=facts.model,
        sampler=facts.sampler,
        format=None if format is None else format.name,
    )


def _candidates(
    recording: Recording, format: Format, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Candidate | None]:
    """Of each step's provisional text, and of the final one."""
    reader = format.reader(tokenizer, _vocabulary(recording))
    for step in range(1, recording.num_steps + 1):
        is_decided = recording.token_step < step
        yield reader.extract(np.where(is_decided, recording.tokens, recording.argmax[step - 1]))
    yield reader.extract(recording.tokens)


def _vocabulary(recording: Recording) -> Vocabulary:
    """As far as a reader needs to know it."""
    facts = recording.facts
    stop = min(facts.stops, default=facts.mask)
    return Vocabulary(size=0, mask=facts.mask, pad=stop, stops=frozenset(facts.stops))
