"""A drafter that knows the answer and mixes right with wrong guesses: every round accepts some."""

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import tensor

from varifocal.drafter import Drafter
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target
from varifocal.tree import DraftTree
from varifocal.verify import Verification


class Guesses(Drafter[list[int]]):
    """Trees in which the right tokens have wrong siblings before them and wrong ends.

    How many are right goes round from 0 to 3, so accepted paths lie scattered in the cache.
    """

    name: ClassVar[str] = "guesses"
    pictures: ClassVar[str] = "does not look"

    def __init__(self, target: Target, answer: Sequence[int]) -> None:
        super().__init__(target, self.Config(depth=6, nodes=12))
        self._answer = list(answer)

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> list[int]:
        """The state counts the tokens of the answer after each round."""
        return [1]

    def propose(self, state: list[int], root: int, budget: Budget) -> DraftTree:
        """A wrong sibling and the right token per level, then two wrong ones."""
        done, depth = state[-1], min(len(state) % 4, budget.depth - 1)
        tokens, parents, above = [root], [-1], 0
        for right in self._answer[done : done + max(depth, 0)]:
            tokens += [self._other_than(right), right]
            parents += [above, above]
            above = len(tokens) - 1
        if budget.depth > 0:
            following = self._answer[done + depth : done + depth + 1] or [root]
            wrong = self._other_than(following[0])
            tokens.append(wrong)
            parents.append(above)
        return DraftTree(tensor(tokens), tensor(parents))

    def observe(self, state: list[int], verdict: Verification, seen: Forward) -> None:
        """Count on."""
        state.append(state[-1] + len(verdict.tokens))

    def _other_than(self, token: int) -> int:
        banned: Any = self.target.banned_ids | self.target.eos_ids | {token}
        return next(t for t in range((token * 7) % 97 + 3, 400) if t not in banned)
