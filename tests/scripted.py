"""A target whose logits are a function of the answer so far, and drafters told what to propose."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import nn

from varifocal.cache import KVCache
from varifocal.drafter import Drafter
from varifocal.plan import Budget
from varifocal.request import Request
from varifocal.target import Forward, Prompt, Target, Want
from varifocal.tree import DraftTree

EOS = 1
Law = Callable[[tuple[int, ...]], Sequence[float]]  # the answer so far, to its V logits
Mode = Literal["perfect", "wrong", "mixed", "tree"]
MODES: tuple[Mode, ...] = ("perfect", "wrong", "mixed", "tree")


def text_of(tokens: Sequence[int]) -> str:
    """Token 2 + b is byte b; the end token has no text."""
    return bytes(t - 2 for t in tokens if t >= 2).decode("utf-8", errors="replace")


def ids_of(text: str) -> list[int]:
    """The other way round."""
    return [b + 2 for b in text.encode()]


class Cache(KVCache):
    """Tokens in the place of keys and values."""

    def __init__(self, prompt: int) -> None:
        super().__init__(0)
        self._prompt = prompt
        self.tokens: list[int] = []

    @property
    def length(self) -> int:
        return self._prompt + len(self.tokens)

    def keep(self, path: Sequence[int], drafted: int) -> None:
        start = len(self.tokens) - drafted
        self.tokens[start:] = [self.tokens[start + node] for node in path]

    def copy(self) -> "Cache":
        twin = Cache(self._prompt)
        twin.tokens = list(self.tokens)
        return twin


class Scripted(Target):
    """Counts its prefills, and notes the last position that it read."""

    def __init__(self, law: Law, vocab: int = 258, *, prompt: int = 2, context: int = 1000) -> None:
        self.law, self.name, self.prompt_length = law, "scripted", prompt
        self.vocab_size, self.hidden_size, self.num_layers = vocab, 1, 0
        self.eos_ids, self.banned_ids = frozenset({EOS}), frozenset()
        self.context_length, self.device = context, torch.device("cpu")
        self.dtype = torch.float32
        self.num_prefills = self.last_position = 0

    def encode(self, request: Request) -> Prompt:
        tokens = torch.full((self.prompt_length,), 2)
        return Prompt(tokens, torch.full_like(tokens, -1), {}, request)

    def prefill(self, prompt: Prompt, want: Want) -> tuple[KVCache, Forward]:
        self.num_prefills += 1
        return Cache(self.prompt_length), Forward(self._row(()))

    def _row(self, answer: Sequence[int]) -> torch.Tensor:
        return torch.tensor(self.law(tuple(answer)), dtype=torch.float32)[None]

    def forward(
        self, trees: Sequence[DraftTree], caches: Sequence[KVCache], want: Want
    ) -> list[Forward]:
        made = []
        for tree, cache in zip(trees, caches, strict=True):
            assert isinstance(cache, Cache)
            tree.check()
            self.last_position = max(self.last_position, cache.length + int(tree.depth.max()))
            paths = [tree.tokens[up].tolist() for up in tree.ancestry]
            made.append(Forward(torch.cat([self._row([*cache.tokens, *p]) for p in paths])))
            cache.tokens += tree.tokens.tolist()
        return made

    def decode(self, tokens: Sequence[int]) -> str:
        return text_of(tokens)

    def tokenize(self, text: str) -> list[int]:
        return ids_of(text)

    def embed(self, tokens: Any) -> Any:
        raise NotImplementedError

    @property
    def readout(self) -> nn.Module:
        raise NotImplementedError

    def head(self, states: Any) -> Any:
        raise NotImplementedError

    def regions(self, prompt: Prompt) -> list[Any]:
        return []

    @property
    def fingerprint(self) -> str:
        return "scripted"


def saying(tokens: Sequence[int], vocab: int = 258) -> Law:
    """The law of a target that says these tokens, then the end token for ever."""

    def law(answer: tuple[int, ...]) -> list[float]:
        wanted = tokens[len(answer)] if len(answer) < len(tokens) else EOS
        return [9.0 if token == wanted else 0.001 * token for token in range(vocab)]

    return law


class Told(Drafter[list[int]]):
    """Proposes what it was told that the target says: always, never, by turns, or among others."""

    name, pictures = "told", "does not see them"

    def __init__(
        self,
        target: Any,
        script: Sequence[int],
        mode: Mode = "perfect",
        *,
        depth: int = 5,
        reads: int | None = None,
    ) -> None:
        super().__init__(target, Drafter.Config(depth=depth, nodes=3 * depth + 1))
        self._script, self._mode, self._reads = list(script), mode, reads
        self.last_position = self._prompt = 0

    @property
    def context_length(self) -> int | None:
        return self._reads

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> list[int]:
        self._prompt = len(prompt.tokens)
        self._note(self._prompt)
        return [root]

    def propose(self, state: list[int], root: int, budget: Budget) -> DraftTree:
        assert state[-1] == root
        coming = self._script[len(state) : len(state) + budget.depth]
        self._note(self._last(state) + len(coming))
        others = [(token + 1) % self.target.vocab_size for token in coming]
        if self._mode == "tree":
            tokens, parents = [root], [-1]
            for step, (right, other) in enumerate(zip(coming, others, strict=True)):
                above = 2 * step - 1 if step else 0  # of the right token one level up
                tokens += [right, other]
                parents += [above, above]
            return DraftTree(torch.tensor(tokens), torch.tensor(parents))
        is_right = self._mode == "perfect" or (self._mode == "mixed" and len(state) % 2 == 0)
        return DraftTree.chain([root, *(coming if is_right else others)])

    def observe(self, state: list[int], verdict: Any, seen: Forward) -> None:
        state += verdict.tokens
        self._note(self._last(state) - 1)

    def _last(self, state: list[int]) -> int:
        """Position of the newest token."""
        return self._prompt + len(state) - 1

    def _note(self, position: int) -> None:
        self.last_position = max(self.last_position, position)
