"""A drafter of your own is one class: this one guesses that a word goes on as it did before.

    python examples/write_a_drafter.py

Kept in a module on your path, `varifocal generate --drafter my_lab.pairs` finds it by that name.
"""

from dataclasses import dataclass
from typing import ClassVar

import varifocal
from varifocal.demo.world import draw
from varifocal.drafter import Drafter
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt
from varifocal.tree import DraftTree
from varifocal.verify import Verification


@dataclass
class Pairs:
    """One request's state: which token followed each token last."""

    last: int
    after: dict[int, int]

    def read(self, tokens: list[int]) -> None:
        for token in tokens:
            self.after[self.last], self.last = token, token


class PairsDrafter(Drafter[Pairs]):
    """Follows the newest pair of tokens that begins with the last one, again and again."""

    name: ClassVar[str] = "pairs"
    pictures: ClassVar[str] = "skips them"

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> Pairs:
        state = Pairs(-1, {})
        state.read([*prompt.tokens[~prompt.is_image].tolist(), root])
        return state

    def propose(self, state: Pairs, root: int, budget: Budget) -> DraftTree:
        guess = [root]
        while len(guess) <= min(budget.depth, budget.nodes):
            following = state.after.get(guess[-1], -1)
            if following < 0 or following in self.target.banned_ids | self.target.eos_ids:
                break
            guess.append(following)
        return DraftTree.chain(guess, self.target.device)

    def observe(self, state: Pairs, verdict: Verification, seen: Forward) -> None:
        state.read(verdict.tokens)


def main() -> None:
    target = varifocal.load_target("demo")
    sample = draw("document", 0, "test")
    request = varifocal.ask(sample.turns[0].question, [sample.image])
    plain = varifocal.generate(target, varifocal.load_drafter("plain", target), request)
    pairs = varifocal.generate(target, PairsDrafter(target, PairsDrafter.Config(nodes=4)), request)
    print(pairs.text)
    print(f"the same as plain: {pairs.token_ids == plain.token_ids}")
    print(f"tokens per target forward: {pairs.mean_acceptance_length:.2f}")


if __name__ == "__main__":
    main()
