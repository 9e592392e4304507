"""The one decoding loop: draft, verify, accept. Plain decoding is the empty draft."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from varifocal.cache import KVCache
from varifocal.commit import Commit
from varifocal.drafter import Drafter
from varifocal.plan import AutoPlanner, Budget, CostModel, FixedPlanner, Planner
from varifocal.request import Request
from varifocal.result import GenerationResult, Look, Round
from varifocal.target import Prompt, Target
from varifocal.tree import DraftTree
from varifocal.verify import Verification, follow

Clock = Callable[[], float]


class Generation:
    """One request being decoded. Iterate over its rounds; `result()` folds them.

    Breaking off early is fine at any point: nothing lives outside this object.
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
    ) -> None:
        self.target, self.drafter, self.request = target, drafter, request
        self.prompt: Prompt = target.encode(request)
        self._commit = Commit(target.decode, target.eos_ids, request.max_new_tokens, request.stop)
        self._planner = plan_for(drafter, cost)
        self._clock = synchronised(clock, target.device)
        self._with_looks = with_looks
        self.rounds: list[Round] = []
        self._to_come = self._record()

    def __iter__(self) -> Iterator[Round]:
        """The rounds still to come: a second loop goes on where the first was left."""
        return self._to_come

    def _record(self) -> Iterator[Round]:
        for decided in self._decide():
            self.rounds.append(decided)
            yield decided

    @torch.inference_mode()
    def _prefill(self) -> tuple[KVCache, Any, int, Round]:
        """Read the prompt, start the drafter (its state is the second), decide the first token."""
        begin = self._clock()
        cache, seen = self.target.prefill(self.prompt, self.drafter.want)
        first = self.request.sampling.pick(seen.logits, torch.zeros_like(seen.logits[:, 0]).long())
        root = int(first)
        read = self._clock()
        state = self.drafter.start(self.prompt, seen, root)
        started = self._clock()
        delivery = self._commit.push([root])
        done = self._clock()
        return (
            cache,
            state,
            root,
            Round(
                tokens=delivery.tokens,
                text=delivery.text,
                verify_seconds=read - begin,
                draft_seconds=started - read,
                other_seconds=done - started,
                is_prefill=True,
                looks=[[]] if self._with_looks else None,
            ),
        )

    def _decide(self) -> Iterator[Round]:
        cache, state, root, first = self._prefill()
        yield first
        while not self._commit.finish_reason:
            # Entered anew each round: a generator must not hold a thread's mode while it waits.
            with torch.inference_mode():
                begin = self._clock()
                budget = self._planner.budget(self._commit.room - 1)
                tree = self._draft(state, root, budget)
                drafted = self._clock()
                (seen,) = self.target.forward([tree], [cache], self.drafter.want)
                position = len(self._commit.tokens)
                verdict = follow(tree, seen.logits, self.request.sampling, position)
                verified = self._clock()
                cache.keep(verdict.path, len(tree))
                self.drafter.observe(state, verdict, seen.rows(verdict.path))
                delivery = self._commit.push(verdict.tokens)
                num_drafted = len(tree) - 1
                self._planner.learn(budget, num_drafted, verdict.num_accepted)
                root = verdict.tokens[-1]
                decided = Round(
                    tokens=delivery.tokens,
                    text=delivery.text,
                    num_drafted=num_drafted,
                    num_accepted=min(verdict.num_accepted, len(delivery.tokens)),
                    draft_seconds=drafted - begin,
                    verify_seconds=verified - drafted,
                    other_seconds=self._clock() - verified,
                    looks=_looks(tree, verdict, delivery.tokens) if self._with_looks else None,
                )
            yield decided

    def _draft(self, state: object, root: int, budget: Budget) -> DraftTree:
        if budget.depth == 0:
            return DraftTree.chain([root], self.target.device)
        return self.drafter.propose(state, root, budget)

    def result(self) -> GenerationResult:
        """Everything decided so far; `finish_reason` is "cancelled" if it was broken off."""
        if not self.rounds:
            raise RuntimeError("iterate over the generation before asking for its result")
        return GenerationResult(
            text=self._commit.text,
            token_ids=list(self._commit.tokens),
            finish_reason=self._commit.finish_reason or "cancelled",
            prompt_tokens=len(self.prompt.tokens),
            image_tokens=int(self.prompt.is_image.sum()),
            prefill=self.rounds[0],
            rounds=self.rounds[1:],
            drafter=self.drafter.name,
            target=self.target.name,
            fallback=self._planner.fallback,
        )


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
