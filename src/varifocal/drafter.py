"""The contract of a drafter: something that guesses what the target will say."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.tree import DraftTree
from varifocal.verify import Verification

S = TypeVar("S")


class Drafter(ABC, Generic[S]):
    """Weights and settings live here; everything about one request lives in its state S."""

    @dataclass(frozen=True, kw_only=True)
    class Config:
        """Settings that every drafter has; each method adds its own."""

        depth: int = 6  # longest path below the root
        nodes: int | Literal["auto"] = "auto"  # drafted nodes a round; "auto" weighs the cost
        max_nodes: int = 40  # what "auto" may use at most

        def __post_init__(self) -> None:
            if self.nodes != "auto" and (not isinstance(self.nodes, int) or self.nodes < 1):
                raise BadOption(f'nodes must be "auto" or a positive count, got {self.nodes!r}')
            if self.depth < 0 or self.max_nodes < 1:
                raise BadOption(
                    f"depth must be >= 0 and max_nodes >= 1, got {self.depth} and {self.max_nodes}"
                )

    name: ClassVar[str]  # the file's name
    pictures: ClassVar[str]  # how it treats pictures: one phrase for `varifocal drafters`
    needs: ClassVar[str] = "nothing"  # what must exist before it can be used
    want: Want = Want()

    def __init__(self, target: Target, config: Config) -> None:
        self.target, self.config = target, config

    @classmethod
    def load(cls, target: Target, options: Mapping[str, Any]) -> Self:
        """The drafter with these settings. Learned ones find the weights shipped for the target."""
        return cls(target, cls.Config(**options))

    def prepare(self) -> None:
        """Make ready for decoding, once weights are in place: precision, layout of weights."""

    @abstractmethod
    def start(self, prompt: Prompt, prefill: Forward, root: int) -> S:
        """Begin a request; `root` is the first token of the answer."""

    @abstractmethod
    def propose(self, state: S, root: int, budget: Budget) -> DraftTree:
        """Guess what follows `root` within the budget. Just the root is fine."""

    @abstractmethod
    def observe(self, state: S, verdict: Verification, seen: Forward) -> None:
        """Learn what became text; mutates `state`. Row k of `seen` is node `verdict.path[k]`.

        The last of `verdict.tokens` comes back as the next root.

        Called once a round, whether or not it was drafted. Keep it cheap: a round that is
        decoded plainly pays for it too.
        """

    @property
    def memory_bytes(self) -> int:
        """Memory of the drafter's own weights."""
        return 0
