"""Compare texts with and without a drafter, and tell a near-tie from a fault.

At the first token in which two texts differ, the plain path is run again up to there. Every logit
of that row may be off by `SLACK` units in the last place of the target's dtype at the row's largest
magnitude: that is what summing in another order does. The difference is a near-tie if the plain
path picks the drafted run's token once that token's logit is raised and all others are lowered by
so much; for greedy decoding that means a gap of at most 2 * SLACK units. In float32 nothing is
excused: texts must be identical.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.engine import Engine
from varifocal.evaluation.suites import Case
from varifocal.processors import Processor
from varifocal.request import Request
from varifocal.result import GenerationResult
from varifocal.sampling import Sampling
from varifocal.target import Target, Want
from varifocal.tree import DraftTree

SLACK = 2  # units in the last place that one logit may be off
SamplingKind = Literal["greedy", "sampled", "both"]


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """Where two texts of one request part."""

    id: str
    position: int  # index of the first token that differs
    plain: int  # the tokens there; -1 where a text had ended
    drafted: int
    # Logits of the plain path as they are chosen from: plain token minus drafted. None where a text
    # ended or a setting excludes the drafted token.
    margin: float | None
    tolerance: float  # the largest greedy margin that rounding explains
    near_tie: bool  # rounding in the target's dtype explains it
    temperature: float


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The verdict on a list of requests."""

    requests: int
    identical: int
    near_tie: int
    different: int
    dtype: str
    mismatches: tuple[Mismatch, ...]

    @property
    def is_good(self) -> bool:
        """Whether every text is identical or explained."""
        return self.different == 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal verify --json`."""
        return asdict(self) | {"mismatches": [asdict(m) for m in self.mismatches]}


def compare(
    engine: Engine,
    requests: Sequence[Request],
    done: Callable[[Request, Mismatch | None], None] = lambda request, mismatch: None,
) -> Comparison:
    """Every request without and with the drafter; `done` is called after each."""
    plain = engine.plain()
    mismatches = []
    for request in requests:
        texts = plain.generate(request), engine.generate(request)
        mismatch = judge(engine.target, request, *texts)
        if mismatch is not None:
            mismatches.append(mismatch)
        done(request, mismatch)
    near = sum(m.near_tie for m in mismatches)
    return Comparison(
        requests=len(requests),
        identical=len(requests) - len(mismatches),
        near_tie=near,
        different=len(mismatches) - near,
        dtype=str(engine.target.dtype).removeprefix("torch."),
        mismatches=tuple(mismatches),
    )


def requests_of(
    cases: Sequence[Case],
    kind: SamplingKind,
    *,
    max_new_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
) -> list[Request]:
    """The requests to compare: greedy, sampled, or each case twice.

    `max_new_tokens` None and no `stop` leave each case its own.
    Sampled ones take `sampling`, with temperature 1.0 where it says 0, and request number n the
    seed `sampling.seed + n`. Greedy ones take what of `sampling` concerns them: penalties, biases
    and bans.
    """
    base = sampling or Sampling()
    drawn = replace(base, temperature=base.temperature or 1.0)
    greedy = replace(base, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, seed=0)
    made = []
    for number, case in enumerate(cases):
        own = case.request.max_new_tokens
        request = replace(
            case.request,
            max_new_tokens=own if max_new_tokens is None else max_new_tokens,
            stop=tuple(stop) or case.request.stop,
            id=case.id,
        )
        if kind != "sampled":
            made.append(replace(request, sampling=greedy))
        if kind != "greedy":
            seed = (base.seed + number) % 2**63
            made.append(replace(request, sampling=replace(drawn, seed=seed)))
    return made


def judge(
    target: Target, request: Request, plain: GenerationResult, drafted: GenerationResult
) -> Mismatch | None:
    """Where the two texts part and whether rounding explains it; None if they are the same."""
    if plain.token_ids == drafted.token_ids and plain.text == drafted.text:
        return None
    position = first_divergence(plain.token_ids, drafted.token_ids)
    ours, theirs = (_at(ids, position) for ids in (plain.token_ids, drafted.token_ids))
    margin: float | None = None
    tolerance, near = 0.0, False
    if ours >= 0 and theirs >= 0:
        text = plain.token_ids[:position]
        logits = plain_logits(target, request, text)
        processor = Processor(request.sampling, target, target.encode(request).tokens)
        processor.append(text)
        scores = processor(logits[None])[0]
        gap = float(scores[ours].double() - scores[theirs].double())
        margin = gap if math.isfinite(gap) else None
        tolerance = 2 * slack(logits, target.dtype)
        near = target.dtype != torch.float32 and could_pick(
            theirs, logits, request.sampling, position, target.dtype, processor
        )
    return Mismatch(
        id=request.id,
        position=position,
        plain=ours,
        drafted=theirs,
        margin=margin,
        tolerance=tolerance,
        near_tie=near,
        temperature=request.sampling.temperature,
    )


def first_divergence(plain: Sequence[int], drafted: Sequence[int]) -> int:
    """Index of the first token that differs; the shorter length if one text begins the other."""
    for position, (a, b) in enumerate(zip(plain, drafted, strict=False)):
        if a != b:
            return position
    return min(len(plain), len(drafted))


@torch.inference_mode()
def plain_logits(target: Target, request: Request, tokens: Sequence[int]) -> Float[Tensor, " V"]:
    """What the plain path computes after these tokens of the answer: one forward for each."""
    cache, seen = target.prefill(target.encode(request), Want())
    for token in tokens:
        root = DraftTree.chain([token], target.device)
        (seen,) = target.forward([root], [cache], Want())
    return seen.logits[-1]


def slack(logits: Float[Tensor, " V"], dtype: torch.dtype) -> float:
    """By how much one logit of the row may be off: `SLACK` units in the last place."""
    largest = float(logits.abs().max())
    if largest == 0 or not math.isfinite(largest):
        return 0.0
    return SLACK * torch.finfo(dtype).eps * 2.0 ** math.floor(math.log2(largest))


def could_pick(
    token: int,
    logits: Float[Tensor, " V"],
    sampling: Sampling,
    position: int,
    dtype: torch.dtype,
    processor: Processor | None = None,
) -> bool:
    """Whether rounding in this dtype is enough for the plain path to pick `token`.

    `processor` stands at the text so far, where the settings need one.
    """
    off = slack(logits, dtype)
    bent = logits.double() - off
    bent[token] += 2 * off * (1 + 1e-3)  # a gap of exactly 2 * SLACK units counts as a tie
    at = torch.tensor([position], device=logits.device)
    row = bent[None].float()
    return int(sampling.pick(row if processor is None else processor(row), at)) == token


def _at(tokens: Sequence[int], position: int) -> int:
    return tokens[position] if position < len(tokens) else -1
