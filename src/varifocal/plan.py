"""How much to draft in a round: fixed by the caller, or weighed against the measured cost."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds that the parts of a round take on this machine.

    `verify[n]` is one target forward over n + 1 rows: the root and n drafted nodes.
    """

    verify: tuple[float, ...]
    step: float  # one draft forward over a level of the tree
    start: float  # the round's first draft forward, over the tokens accepted before
    other: float  # acceptance, cache, delivery
    members: tuple["CostModel", ...] = ()  # of a drafter that is made of others: what each costs
    is_calm: bool = True  # repeats agreed when it was measured; else it is not worth remembering

    @property
    def plain(self) -> float:
        """A round without a draft."""
        return self.verify[0] + self.other

    def best_size(self, scores: NDArray[np.float64], spent: float) -> int:
        """How many of these nodes to verify so that tokens come fastest.

        `scores` are probabilities of being accepted in descending order, `spent` the seconds of
        drafting already paid: argmax over n of (1 + sum scores[:n]) / (spent + cost of n nodes).
        """
        return int(self.rates(scores, spent).argmax())

    def rates(self, scores: NDArray[np.float64], spent: float) -> NDArray[np.float64]:
        """Expected tokens per second of verifying the first 0, 1, 2, ... of these nodes."""
        n = min(len(scores), len(self.verify) - 1)
        tokens = np.ones(n + 1)
        tokens[1:] += scores[:n].cumsum()
        rates: NDArray[np.float64] = tokens / (self._verify[: n + 1] + (spent + self.other))
        return rates

    def shared(self, live: int) -> "CostModel":
        """The cost for one of so many requests that share every forward, all with equal trees.

        Its part of a forward over the rows of all of them; beyond what was measured, the last
        slope goes on. Drafts are made in turn, so they cost each request what they cost alone.
        """
        return self if live == 1 else _shared(self, live)

    def may_pay(self, depth: int) -> bool:
        """Whether a round would be faster than plain ones if all that is drafted were right."""
        chains = range(1, min(depth, len(self.verify) - 1) + 1)
        return any(
            (1 + d) * self.plain > self.start + (d - 1) * self.step + self.verify[d] + self.other
            for d in chains
        )

    @cached_property
    def _verify(self) -> NDArray[np.float64]:
        return np.array(self.verify)


@cache
def _shared(cost: CostModel, live: int) -> CostModel:
    known = cost.verify
    slope = known[-1] - known[-2] if len(known) > 1 else known[-1]

    def seconds(rows: int) -> float:
        beyond = max(rows - len(known), 0)
        return known[min(rows, len(known)) - 1] + beyond * slope

    return replace(
        cost,
        verify=tuple(seconds(live * (n + 1)) / live for n in range(len(known))),
        members=tuple(member.shared(live) for member in cost.members),
    )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What a drafter may propose in this round."""

    depth: int  # longest path below the root; 0 means: do not draft
    nodes: int  # drafted nodes, the root not counted
    cost: CostModel | None = None  # if given, a drafter stops where going on does not pay
    looks: bool = False  # whether anyone asks where the drafter looked
    confidence: float = 0.8  # running acceptance of single drafted tokens, for unscored drafts


class Planner(ABC):
    """Chooses each round's budget for one request; learns from what was accepted."""

    @abstractmethod
    def budget(self, room: int, live: int = 1) -> Budget:
        """For a round after which at most `room` tokens may come besides the target's own.

        `live` requests, this one among them, share the round's forward.
        """

    @abstractmethod
    def learn(
        self, budget: Budget, num_drafted: int, num_accepted: int, drafting: float | None = None
    ) -> None:
        """Take note of a finished round.

        `drafting` are its seconds of drafting by the cost model, where the drafter told.
        """

    @property
    def fallback(self) -> str | None:
        """Why rounds were decoded plainly, if any were."""
        return None


class FixedPlanner(Planner):
    """The same budget every round."""

    def __init__(self, depth: int, nodes: int) -> None:
        self._depth, self._nodes = depth, nodes

    def budget(self, room: int, live: int = 1) -> Budget:
        """The fixed budget, no deeper than the room."""
        return Budget(depth=min(self._depth, room), nodes=self._nodes)

    def learn(
        self, budget: Budget, num_drafted: int, num_accepted: int, drafting: float | None = None
    ) -> None:
        """Nothing to learn."""


class AutoPlanner(Planner):
    """Drafts as long as it pays, and decodes plainly for a while where it does not."""

    REST = 12  # plain rounds before drafting is tried again; twice as many after each vain try
    LONGEST_REST = 192
    LOSS = 3.0  # plain rounds whose time a try may lose; half of it after a vain one

    def __init__(self, cost: CostModel, depth: int, nodes: int) -> None:
        self._cost, self._depth, self._nodes = cost, depth, nodes
        # Running sums over drafted rounds, decayed: seconds for their tokens if plain, and taken.
        self._plain_seconds, self._seconds = 0.0, 0.0
        self._confidence = 0.8
        self._rest, self._next_rest = 0, self.REST
        self._num_tried = 0  # drafted rounds since the last rest
        self._num_plain = self._num_rounds = 0

    def budget(self, room: int, live: int = 1) -> Budget:
        """Everything that may pay; the drafter trims it with the cost model."""
        self._num_rounds += 1
        cost = self._cost.shared(live)
        is_idle = self._rest > 0 or not cost.may_pay(self._depth)
        if is_idle and room > 0:
            self._rest = max(self._rest - 1, 0)
            self._num_plain += 1
            return Budget(depth=0, nodes=0)
        return Budget(
            depth=min(self._depth, room),
            nodes=self._nodes,
            cost=cost,
            confidence=self._confidence,
        )

    def learn(
        self, budget: Budget, num_drafted: int, num_accepted: int, drafting: float | None = None
    ) -> None:
        """Rest when the recent drafted rounds were slower than plain ones would have been.

        A draft that came to nothing counts too, if it took time.
        """
        if budget.depth == 0:
            return
        cost, keep = budget.cost or self._cost, 0.85
        if drafting is None:
            drafting = cost.start + (budget.depth - 1 if cost.step else 0) * cost.step
        if num_drafted == 0 and drafting == 0:
            return
        size = min(num_drafted, len(cost.verify) - 1)
        seconds = drafting + cost.verify[size] + cost.other
        self._plain_seconds = keep * self._plain_seconds + (num_accepted + 1) * cost.plain
        self._seconds = keep * self._seconds + seconds
        if num_drafted:
            tried = min(num_accepted + 1, num_drafted)
            self._confidence += 0.1 * (num_accepted / tried - self._confidence)
        self._num_tried += 1
        lost = self._seconds - self._plain_seconds
        enough = self._seconds > 4 * seconds  # a few rounds seen
        is_slower = enough and self._plain_seconds < 0.97 * self._seconds
        bearable = self.LOSS if self._next_rest == self.REST else self.LOSS / 2
        if is_slower or (self._num_tried >= bearable and lost > bearable * cost.plain):
            self._rest = self._next_rest
            self._next_rest = min(2 * self._rest, self.LONGEST_REST)
            self._plain_seconds = self._seconds = 0.0
            self._num_tried = 0
        elif enough:
            self._next_rest = self.REST

    @property
    def fallback(self) -> str | None:
        """How many rounds were plain, and why."""
        if not self._num_plain:
            return None
        return (
            f"{self._num_plain} of {self._num_rounds} rounds were decoded plainly: "
            "drafting did not pay there"
        )
