"""The drafts of several members as one tree, weighed by what the target made of each before."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from varifocal.drafters._arbitration import Arbitration, Policy, Rule
from varifocal.drafters._branches import Branches
from varifocal.drafters._graft import mixed
from varifocal.plan import Budget
from varifocal.target import Prompt
from varifocal.tree import DraftTree
from varifocal.verify import Verification

_WINDOW = 64  # newest decided positions that weights follow from
_LEAST = 1e-6  # weight of a member that has none, so that it speaks where nobody else does


@dataclass
class Mixing:
    """What belongs to one request."""

    arbitration: Arbitration
    guesses: dict[int, DraftTree] = field(default_factory=dict)  # of this round, by member
    owners: list[frozenset[int]] = field(default_factory=list)  # members that have each node
    due: float = 1.0  # tokens that plain decoding brings in the time of the best arm's own round
    has_paid: bool = False  # whether that arm's draft brought more in the last round

    @classmethod
    def of(cls, policy: Policy, names: Sequence[str], prompt: Prompt) -> "Mixing":
        """`names` are the members', in their order; those that repeat are numbered."""
        learns = policy in ("mt", "mtcp", "adaboost")
        rule = Rule(policy=policy, window=_WINDOW if learns else 0)
        distinct = [
            name if names.count(name) == 1 else f"{name} {n}" for n, name in enumerate(names, 1)
        ]
        asked = ""
        if policy == "random":
            asked = f"{prompt.request.sampling.seed} {prompt.tokens.tolist()}"
        return cls(Arbitration(rule, distinct, asked))

    def mix(self, guesses: dict[int, DraftTree], budget: Budget, spent: float) -> DraftTree:
        """One tree of all guesses, which have the same root and scores; `spent` as in `mixed`."""
        weights = [max(weight, _LEAST) for weight in self.arbitration.choose()]
        numbers = sorted(guesses)
        made = mixed([guesses[n] for n in numbers], [weights[n] for n in numbers], budget, spent)
        self.guesses = guesses
        self.owners = [frozenset(numbers[n] for n in owners) for owners in made.owners]
        return made.tree

    def learn(self, verdict: Verification) -> None:
        """Take note of who guessed what became text. Who had no guess at a position is excused."""
        if not self.guesses:
            return
        asked = [self.guesses.get(n) for n in range(len(self.arbitration.members))]
        self.arbitration.learn_trees(asked, verdict, ends_are_misses=False)
        self.guesses, self.owners = {}, []

    def brought(self, number: int, verdict: Verification) -> int:
        """Tokens that the round would have brought with this member's draft alone."""
        path = Branches.of(self.guesses[number]).walk(verdict.tokens)
        return min(len(path) + 1, len(verdict.tokens))

    def added(self, number: int, verdict: Verification) -> int:
        """Tokens that the round would not have brought without this member's draft."""
        for place, node in enumerate(verdict.path[1:]):
            if self.owners[node] == {number}:
                return verdict.num_accepted - place
        return 0
