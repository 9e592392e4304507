"""The one decoding loop: draft, verify, accept. Plain decoding is the empty draft."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch

from varifocal.cache import KVCache
from varifocal.commit import Commit
from varifocal.drafter import Drafter
from varifocal.errors import BadRequest
from varifocal.plan import AutoPlanner, Budget, CostModel, FixedPlanner, Planner
from varifocal.processors import Processor
from varifocal.request import Request, check_n
from varifocal.result import GenerationResult, Look, Round, TokenLogprob
from varifocal.sampling import logprobs_of
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.tree import DraftTree
from varifocal.verify import Verification, follow

logger = logging.getLogger(__name__)
Clock = Callable[[], float]
T = TypeVar("T")


class Reading:
    """A request's prompt, read by the target once for all answers to it."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter[Any],
        request: Request,
        answers: int = 1,
        *,
        prompt: Prompt | None = None,  # if the request was encoded before
    ) -> None:
        self._target, self._want, self._left = target, drafter.want, answers
        self.prompt: Prompt = prompt or target.encode(request)
        self._read: tuple[KVCache, Forward] | None = None

    def take(self) -> tuple[KVCache, Forward]:
        """What the prefill saw, with a cache of its own. The first call reads the prompt."""
        if self._read is None:
            self._read = self._target.prefill(self.prompt, self._want)
        cache, seen = self._read
        self._left -= 1
        if self._left > 0:
            return cache.copy(), seen
        self._read = None  # the last answer needs no copy
        return cache, seen


class Generation:
    """One request being decoded. Iterate over its rounds; `result()` folds them.

    Breaking off early is fine at any point: nothing lives outside this object. `advance` decodes
    a round of several together.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter[Any],
        request: Request,
        *,
        cost: CostModel | None = None,
        clock: Clock = time.perf_counter,
        with_looks: bool = False,
        reading: Reading | None = None,
    ) -> None:
        if not isinstance(request, Request):
            raise BadRequest(f"wanted a Request, as varifocal.ask makes it, got {request!r}")
        self.target, self.drafter, self.request = target, drafter, request
        _check_logprobs(request, target)
        self._reading = reading or Reading(target, drafter, request)
        self.prompt: Prompt = replace(self._reading.prompt, request=request)
        self._processor = Processor(request.sampling, target, self.prompt.tokens)
        self._commit = Commit(target.decode, target.eos_ids, request.max_new_tokens, request.stop)
        self._planner = plan_for(drafter, cost)
        self._clock = synchronised(clock, target.device)
        self._with_looks = with_looks
        self._is_drafting = True  # until the drafter's context ends
        self._num_beyond = 0  # rounds after that
        self._is_cancelled = False
        self.rounds: list[Round] = []
        self._to_come = self._decide()
        # What the prefill makes: the target's memory, the drafter's, and the newest token.
        self._cache: KVCache
        self._state: Any = None
        self._root = -1

    def __iter__(self) -> Iterator[Round]:
        """The rounds still to come: a second loop goes on where the first was left."""
        return self._to_come

    def _decide(self) -> Iterator[Round]:
        while not self.is_done:
            (outcome,) = advance([self])
            if isinstance(outcome, Exception):
                raise outcome
            yield outcome

    @property
    def is_done(self) -> bool:
        """Whether no round is to come."""
        return self._commit.finish_reason is not None or self._is_cancelled

    @property
    def drafter_state(self) -> object:
        """What the drafter remembers of this request, to be looked at; None before the prefill."""
        return self._state

    def cancel(self) -> None:
        """Decode no further round. What was delivered stays."""
        self._is_cancelled = True

    def _start(self) -> Round:
        """Read the prompt, start the drafter, decide the first token."""
        begin = self._clock()
        self._cache, seen = self._reading.take()
        start = torch.zeros(1, dtype=torch.int64, device=seen.logits.device)
        root = int(self.request.sampling.pick(self._processor(seen.logits), start))
        read = self._clock()
        self._is_drafting = self._depth_left(self._cache.length) > 0
        if self._is_drafting:
            self._state = self.drafter.start(self.prompt, seen, root)
        started = self._clock()
        delivery = self._commit.push([root], self._logprobs(seen, [root]))
        self._processor.append([root])
        self._root = root
        decided = Round(
            tokens=delivery.tokens,
            text=delivery.text,
            verify_seconds=read - begin,
            draft_seconds=started - read,
            other_seconds=self._clock() - started,
            is_prefill=True,
            looks=[[]] if self._with_looks else None,
            logprobs=delivery.logprobs,
        )
        self.rounds.append(decided)
        return decided

    def _propose(self, live: int) -> "_Draft":
        """A tree for a round in which so many requests share the forward."""
        begin = self._clock()
        budget = self._budget(self._cache.length, live)
        if self._with_looks:
            budget = replace(budget, looks=True)
        tree = self._draft(self._state, self._root, budget)
        drafted = self._clock()
        want = self.drafter.want if self._is_drafting else Want()
        return _Draft(self, budget, tree, want, drafted - begin, drafted)

    def _accept(self, draft: "_Draft", seen: Forward, since: float, shared: float) -> Round:
        """What the forward decided; `since` reads the clock, `shared` is the forward's part."""
        tree = draft.tree
        position = len(self._commit.tokens)
        scores = self._processor(seen.logits, tree)
        verdict = follow(tree, scores, self.request.sampling, position)
        verified = self._clock()
        self._cache.keep(verdict.path, len(tree))
        seen = seen.rows(verdict.path)
        if self._is_drafting:
            self.drafter.observe(self._state, verdict, seen)
        delivery = self._commit.push(verdict.tokens, self._logprobs(seen, verdict.tokens))
        self._processor.append(verdict.tokens)
        num_drafted = len(tree) - 1
        self._planner.learn(draft.budget, num_drafted, verdict.num_accepted, tree.seconds)
        self._root = verdict.tokens[-1]
        decided = Round(
            tokens=delivery.tokens,
            text=delivery.text,
            num_drafted=num_drafted,
            num_accepted=min(verdict.num_accepted, len(delivery.tokens)),
            draft_seconds=draft.seconds,
            verify_seconds=shared + verified - since,
            other_seconds=self._clock() - verified,
            looks=_looks(tree, verdict, delivery.tokens) if self._with_looks else None,
            logprobs=delivery.logprobs,
        )
        self.rounds.append(decided)
        return decided

    def _budget(self, length: int, live: int) -> Budget:
        """For the round whose root is read at position `length`, counted from 0."""
        room = min(self._commit.room, self.target.context_length - length) - 1
        if self._is_drafting:
            left = self._depth_left(length)
            self._is_drafting = left > 0
            room = min(room, left)
        if self._is_drafting:
            return self._planner.budget(max(room, 0), live)
        self._num_beyond += 1
        return Budget(depth=0, nodes=0)

    def _depth_left(self, length: int) -> int:
        """Levels below a root at this position that the drafter's own context holds."""
        limit = self.drafter.context_length
        return self.target.context_length if limit is None else limit - 1 - length

    def _draft(self, state: object, root: int, budget: Budget) -> DraftTree:
        if budget.depth == 0:
            return DraftTree.chain([root], self.target.device)
        return self.drafter.propose(state, root, budget)

    def _logprobs(self, seen: Forward, tokens: list[int]) -> list[TokenLogprob] | None:
        """Of tokens that follow the rows of `seen`, if they were asked for."""
        if self.request.logprobs is None:
            return None
        return logprobs_of(seen.logits, tokens, self.request.logprobs)

    @property
    def _fallback(self) -> str | None:
        """Why rounds were decoded plainly, if any were: each reason once."""
        reasons = [self._planner.fallback] if self._planner.fallback else []
        if self._num_beyond:
            reasons.append(
                f"{self._num_beyond} of {len(self.rounds) - 1} rounds were decoded plainly: "
                f"{self.drafter.name} reads {self.drafter.context_length} positions of prompt and "
                "answer, and no more"
            )
        return "; ".join(reasons) or None

    def result(self) -> GenerationResult:
        """Everything decided so far; `finish_reason` is "cancelled" if it was broken off."""
        if not self.rounds and not self._is_cancelled:
            raise RuntimeError("iterate over the generation before asking for its result")
        first, *rest = self.rounds or [Round(tokens=[], text="", is_prefill=True)]
        return GenerationResult(
            text=self._commit.text,
            token_ids=list(self._commit.tokens),
            finish_reason=self._commit.finish_reason or "cancelled",
            prompt_tokens=len(self.prompt.tokens),
            image_tokens=int(self.prompt.is_image.sum()),
            prefill=first,
            rounds=rest,
            drafter=self.drafter.name,
            target=self.target.name,
            fallback=self._fallback,
            logprobs=None if self.request.logprobs is None else list(self._commit.logprobs),
        )


@dataclass(frozen=True)
class _Draft:
    """What a request brings to a forward."""

    of: Generation
    budget: Budget
    tree: DraftTree
    want: Want
    seconds: float
    made_at: float  # on its clock


@torch.inference_mode()  # for this call alone: a generator must not hold a thread's mode
def advance(live: Sequence[Generation]) -> list[Round | Exception]:
    """A round of each, whose forwards are one; a request that is new reads its prompt instead.

    They have one target, and none of them `is_done`. Each stands alone: what one raises is its
    outcome and leaves the others as they would be without it. The forward's seconds are divided
    by the rows that each request had in it.
    """
    num_started = sum(bool(g.rounds) for g in live)
    made: list[Round | _Draft | Exception] = [
        _outcome(partial(g._propose, num_started) if g.rounds else g._start) for g in live
    ]
    drafts = [draft for draft in made if isinstance(draft, _Draft)]
    if not drafts:
        return [m for m in made if not isinstance(m, _Draft)]
    # Prefills may have run since the last draft.
    since = drafts[-1].made_at if len(drafts) == len(live) else live[0]._clock()
    outcomes = iter(_verify(drafts, since))
    return [next(outcomes) if isinstance(m, _Draft) else m for m in made]


def _verify(drafts: Sequence[_Draft], since: float) -> list[Round | Exception]:
    """One forward over all trees, begun when the clock read `since`, and what it decided."""
    first, num_rows = drafts[0].of, sum(len(draft.tree) for draft in drafts)
    want = Want.union([d.want for d in drafts])
    try:
        seen = first.target.forward([d.tree for d in drafts], [d.of._cache for d in drafts], want)
    except Exception as error:
        if len(drafts) == 1:
            return [error]
        logger.warning("a forward for %d requests failed, each goes alone: %s", len(drafts), error)
        return [outcome for draft in drafts for outcome in _verify([draft], draft.of._clock())]
    if len(drafts) == 1:  # nothing to divide: the clock, which waits for the device, is not read
        return [_outcome(partial(first._accept, drafts[0], seen[0], since, 0.0))]
    taken = first._clock() - since
    outcomes: list[Round | Exception] = []
    for draft, own in zip(drafts, seen, strict=True):
        shared = taken * len(draft.tree) / num_rows
        since = draft.of._clock()
        own = own.narrowed(want, draft.want)
        outcomes.append(_outcome(partial(draft.of._accept, draft, own, since, shared)))
    return outcomes


def _outcome(act: Callable[[], T]) -> T | Exception:
    """What it returns or raises: one request's failure must not end the others."""
    try:
        return act()
    except Exception as error:
        return error


def generate(
    target: Target,
    drafter: Drafter[Any],
    request: Request,
    *,
    cost: CostModel | None = None,
    clock: Clock = time.perf_counter,
) -> GenerationResult:
    """Decode a request to its end."""
    generation = Generation(target, drafter, request, cost=cost, clock=clock)
    for _ in generation:
        pass
    return generation.result()


def answers(
    target: Target,
    drafter: Drafter[Any],
    request: Request,
    n: int,
    *,
    cost: CostModel | None = None,
    clock: Clock = time.perf_counter,
    with_looks: bool = False,
) -> list[Generation]:
    """n answers to one prompt, which is read once: by the first of them to be iterated over.

    Answer i is that of the same request with the seed `sampling.seed + i` (modulo 2**63); greedy
    decoding, which draws nothing, gives n equal ones. They may be run in any order or in turns.
    """
    check_n(n)
    reading = Reading(target, drafter, request, n)
    seeds = ((request.sampling.seed + i) % 2**63 for i in range(n))
    return [
        Generation(
            target,
            drafter,
            replace(request, sampling=replace(request.sampling, seed=seed)),
            cost=cost,
            clock=clock,
            with_looks=with_looks,
            reading=reading,
        )
        for seed in seeds
    ]


def _check_logprobs(request: Request, target: Target) -> None:
    if (request.logprobs or 0) > target.vocab_size:
        raise BadRequest(
            f"logprobs asks for the {request.logprobs} best tokens, but {target.name} has "
            f"{target.vocab_size}; ask for at most so many"
        )


def plan_for(drafter: Drafter[Any], cost: CostModel | None) -> Planner:
    """The planner that the drafter's settings ask for."""
    config = drafter.config
    if config.nodes == "auto" and cost is not None:
        return AutoPlanner(cost, config.depth, config.max_nodes)
    return FixedPlanner(config.depth, config.max_nodes if config.nodes == "auto" else config.nodes)


def synchronised(clock: Clock, device: torch.device) -> Clock:
    """The clock, waiting for the device's queue first, so that work is charged where it ran."""
    if device.type != "cuda":
        return clock

    def wait_and_read() -> float:
        torch.cuda.synchronize(device)
        return clock()

    return wait_and_read


def _looks(tree: DraftTree, verdict: Verification, delivered: list[int]) -> list[Look]:
    """For each delivered token, where the drafter looked; empty for the target's own."""
    looks: list[Look] = []
    for k in range(len(delivered)):
        node = verdict.path[k + 1] if k < verdict.num_accepted else None
        if node is None or tree.evidence is None:
            looks.append([])
            continue
        entries = tree.evidence.entries[node].tolist()
        weights = tree.evidence.weights[node].tolist()
        looks.append([(e, w) for e, w in zip(entries, weights, strict=True) if e >= 0])
    return looks
