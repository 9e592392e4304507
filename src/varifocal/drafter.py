"""The contract of a drafter: something that guesses what the target will say."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from jaxtyping import Int64
from torch import Tensor

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
    is_free: ClassVar[bool] = False  # it runs no model: a guess costs nothing worth weighing
    want: Want = Want()
    recipe: Mapping[str, Any] | None = None  # how the weights were made, if a folder said so

    def __init__(self, target: Target, config: Config) -> None:
        self.target, self.config = target, config

    @classmethod
    def load(cls, target: Target, options: Mapping[str, Any]) -> Self:
        """The drafter with these settings. Learned ones find the weights shipped for the target."""
        return cls(target, cls.Config(**options))

    @staticmethod
    def from_pretrained(
        folder_or_hub_id: str | Path,
        target: Any,
        *,
        tokenizer: Any = None,
        check: bool | None = None,
        family: str | None = None,
        **options: Any,
    ) -> "Drafter[Any]":
        """A trained drafter from a folder, or from the hub ("owner/name").

        `target` is a `Target`, or a model of transformers, whose tokenizer or processor must then
        be given. `options` change how it drafts. Raises DrafterMismatch for another target, and
        BadArtifact for files that are missing, damaged or cannot be fetched.

        Checkpoints in the layouts of their authors are read too, docs/published.md says which; of
        these alone, `family` says which it is where its tensors leave that open, and `check=False`
        loads it without trying whether it guesses what the target says.
        """
        # Imported here: what knows folders and models builds on this contract.
        from varifocal.drafters._published import load_folder
        from varifocal.drafters._weights import folder_of

        if not isinstance(target, Target):
            from varifocal.huggingface._held import hold

            target = hold(target, tokenizer)
        folder = folder_of(folder_or_hub_id)
        return load_folder(folder, target, options, check=check, family=family)

    def save_pretrained(self, folder: str | Path, **recipe: Any) -> None:
        """Write config.json, model.safetensors and a README.md, for `from_pretrained`.

        `recipe` says how the weights were made: `seed` and `steps`, and if known `command`, `data`,
        `scores` and `notes`. A drafter that came from a folder has one already.
        """
        from varifocal.drafters._weights import Card, save_trained

        known = {**(self.recipe or {}), **recipe}
        if missing := {"seed", "steps"} - set(known):
            raise BadOption(
                f"a saved drafter says how it was made; give {min(missing)}= (and the others of "
                "seed, steps, command, data, scores, notes that are known)"
            )
        if unknown := set(known) - {f for f in Card.__dataclass_fields__}:
            raise BadOption(
                f"a recipe has no {min(unknown)!r}; it has {', '.join(Card.__dataclass_fields__)}"
            )
        save_trained(self, Path(folder), card=Card(**known))

    @property
    def context_length(self) -> int | None:
        """Positions of prompt and answer that it can read; None where it has no limit of its own.

        A request that goes beyond is decoded plainly from there on.
        """
        return None

    @property
    def vocabulary(self) -> Int64[Tensor, " v"] | None:
        """The target's ids that it can propose, in the order of its own; None where all of them.

        Each lies inside the target's vocabulary and stands there once.
        """
        return None

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
        decoded plainly pays for it too. One that is told late of earlier rounds gets their logits
        without columns.
        """

    @property
    def memory_bytes(self) -> int:
        """Memory of the drafter's own weights."""
        return 0
