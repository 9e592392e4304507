"""Lookahead: a trie of what followed each token, drafted as a tree of many branches. [Zhao24]

Symbols: their branch_length is `depth`, max_query_length `query`, w `output_weight`, fm `_weight`;
decoding_length is the round's budget of nodes. The trie is the request's own and ends with it, so
nothing is cleared at a request's end. Pictures: their slots and all special tokens are gaps that no
n-gram crosses.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from varifocal.drafter import Drafter
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.target import Forward, Prompt
from varifocal.tree import DraftTree
from varifocal.verify import Verification

_GAP = -1  # stands for picture slots and special tokens: nothing matches across it
_STOP_WORDS = (",", ".", " ")  # too common to be followed from alone


@dataclass(slots=True)
class _Node:
    """A place in the trie: how often its n-gram was read in given text, and in the output."""

    given: int = 0
    output: int = 0
    children: "dict[int, _Node]" = field(default_factory=dict)


@dataclass
class _Trie:
    """All n-grams of up to `length` tokens of a text that is read token by token."""

    length: int
    capacity: int  # nodes that output may add; beyond, what is rare is forgotten
    top: _Node = field(default_factory=_Node)
    tail: list[int] = field(default_factory=list)  # the last tokens since a gap
    _open: list[_Node] = field(default_factory=list)  # the ends of the n-grams that may grow
    num_output: int = 0  # nodes that output added

    def read(self, tokens: Iterable[int], *, is_output: bool) -> None:
        """Add tokens behind those read before; a gap ends every n-gram."""
        for token in tokens:
            if token == _GAP:
                self._open, self.tail = [], []
                continue
            self._open = [self._step(end, token, is_output) for end in [self.top, *self._open]]
            del self._open[self.length - 1 :]
            self.tail = [*self.tail, token][-self.length :]
        if self.num_output > self.capacity:
            self._forget()

    def _step(self, node: _Node, token: int, is_output: bool) -> _Node:
        child = node.children.get(token)
        if child is None:
            child = node.children[token] = _Node()
            self.num_output += is_output
        if is_output:
            child.output += 1
        else:
            child.given += 1
        return child

    def find(self, tokens: list[int]) -> _Node | None:
        """The node of an n-gram, if it was read and something followed it."""
        node: _Node | None = self.top
        for token in tokens:
            node = node.children.get(token) if node is not None else None
        return node if node is not None and node.children else None

    def _forget(self) -> None:
        """Halve the output's counts until half of the capacity is free; given text stays."""
        self._open = []  # they may end in nodes that go
        while self.num_output > self.capacity // 2:
            self.num_output = self._halve(self.top)

    def _halve(self, top: _Node) -> int:
        """Iterative, so that no length of n-grams meets a limit of recursion."""
        order = [top]
        for node in order:
            order += node.children.values()
        kept = 0
        for node in reversed(order):  # children before parents
            for token, child in list(node.children.items()):
                child.output //= 2
                if not (child.output or child.given or child.children):
                    del node.children[token]
                else:
                    kept += not child.given
        return kept


_Nodes = tuple[_Node, ...]  # the same n-gram in each trie that holds it
_Path = tuple[int, ...]  # the drafted tokens down to a node
_Weigh = Callable[[_Nodes], float]


class LookaheadDrafter(Drafter[_Trie]):
    """Needs no weights and no features; never proposes picture slots or special tokens."""

    name: ClassVar[str] = "lookahead"
    pictures: ClassVar[str] = "skips them: n-grams of text only"
    is_free: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        """What is looked for and how much may follow it."""

        depth: int = 12  # longest branch; n-grams of this length behind a tail are kept
        query: int = 2  # longest tail to look for
        output_weight: float = 1e-4  # of an output's count against one of the prompt
        capacity: int = 65_536  # n-grams of the output that are remembered
        shared: str = ""  # a text file whose n-grams every request starts with

        def __post_init__(self) -> None:
            super().__post_init__()
            if min(self.query, self.capacity) < 1:
                raise BadOption(
                    f"query and capacity must be at least 1, got {self.query} and {self.capacity}"
                )
            if not 0 <= self.output_weight <= 1:
                raise BadOption(f"output_weight must be in [0, 1], got {self.output_weight}")

    config: Config

    def prepare(self) -> None:
        """Read the shared text, so that a bad file is met before the first request."""
        _ = self._shared, self._stop_words

    def start(self, prompt: Prompt, prefill: Forward, root: int) -> _Trie:
        """The prompt's n-grams and the first token."""
        trie = self._new_trie()
        self._read(trie, prompt.tokens.masked_fill(prompt.is_image, _GAP).tolist(), given=True)
        self._read(trie, [root])
        return trie

    def propose(self, state: _Trie, root: int, budget: Budget) -> DraftTree:
        """The likeliest continuations of the tail, as many as pay."""
        drafted = self._branches(state, budget)
        paths, scores = list(drafted), np.array(list(drafted.values()))
        if budget.cost is not None and paths:
            order = np.argsort(-scores, kind="stable")
            size = budget.cost.best_size(scores[order], spent=0.0)
            paths, scores = [paths[i] for i in order[:size]], scores[order[:size]]
        place: dict[_Path, int] = {(): 0}
        for path in paths:
            place[path] = len(place)
        device = self.target.device
        return DraftTree(
            torch.tensor([root, *(path[-1] for path in paths)], device=device),
            torch.tensor([-1, *(place[path[:-1]] for path in paths)], device=device),
            torch.tensor([1.0, *scores.tolist()], device=device),
        )

    def observe(self, state: _Trie, verdict: Verification, seen: Forward) -> None:
        """All decided tokens."""
        self._read(state, verdict.tokens)

    def _branches(self, state: _Trie, budget: Budget) -> dict[_Path, float]:
        """Drafted paths, parents first, with the estimated probability that each is reached.

        What followed the longest tail comes first; shorter tails add to it while it is little.
        """
        chances: dict[_Path, float] = {(): 1.0}
        for match in self._matches(state):
            followed = self._followed(match, budget)
            nodes = {(): match, **followed}
            for path, own in followed.items():
                if path in chances or len(chances) > budget.nodes:
                    continue
                rivals = sum(self._weight(n) for _, n in _children(nodes[path[:-1]]))
                share = self._weight(own) / rivals if rivals else 0.0
                chances[path] = chances[path[:-1]] * budget.confidence * share
            if len(chances) > min(self.config.depth, budget.nodes):
                break
        del chances[()]
        return chances

    def _matches(self, state: _Trie) -> Iterator[_Nodes]:
        """Where the last tokens were read before, the longest tail first."""
        tries = [state] if self._shared is None else [state, self._shared]
        for n in range(min(self.config.query, len(state.tail)), 0, -1):
            tail = state.tail[-n:]
            if n == 1 and tail[0] in self._stop_words:
                continue
            if match := tuple(node for trie in tries if (node := trie.find(tail)) is not None):
                yield match

    def _followed(self, match: _Nodes, budget: Budget) -> dict[_Path, _Nodes]:
        """Half of the budget by the output's counts, the rest by weight. [Zhao24]"""
        taken: dict[_Path, _Nodes] = {}
        _climb(taken, match, budget.depth, budget.nodes // 2, lambda n: sum(x.output for x in n))
        _climb(taken, match, budget.depth, budget.nodes, self._weight)
        return taken

    def _weight(self, nodes: _Nodes) -> float:
        """(1 - w) f_prompt + w f_output. [Zhao24]"""
        w = self.config.output_weight
        return sum((1 - w) * node.given + w * node.output for node in nodes)

    def _read(self, trie: _Trie, tokens: list[int], *, given: bool = False) -> None:
        special = self.target.banned_ids | self.target.eos_ids
        kept = (_GAP if token in special else token for token in tokens)
        trie.read(kept, is_output=not given)

    def _new_trie(self) -> _Trie:
        return _Trie(self.config.query + self.config.depth, self.config.capacity)

    @cached_property
    def _shared(self) -> _Trie | None:
        """The shared text's n-grams: a constant of the drafter, which no request changes."""
        if not self.config.shared:
            return None
        try:
            text = Path(self.config.shared).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadOption(
                f"shared must be a text file in UTF-8, and {self.config.shared} cannot be read as "
                f"one ({error})"
            ) from error
        trie = self._new_trie()
        self._read(trie, self.target.tokenize(text), given=True)
        return trie

    @cached_property
    def _stop_words(self) -> frozenset[int]:
        try:
            ids = [self.target.tokenize(word) for word in _STOP_WORDS]
        except BadOption:  # a target that knows ids only, whose words nobody can tell
            return frozenset()
        return frozenset(one[0] for one in ids if len(one) == 1)


def _children(nodes: _Nodes) -> Iterator[tuple[int, _Nodes]]:
    """What follows in any of the tries, by token."""
    if len(nodes) == 1:
        yield from ((token, (child,)) for token, child in nodes[0].children.items())
        return
    for token in dict.fromkeys(token for node in nodes for token in node.children):
        yield token, tuple(n.children[token] for n in nodes if token in n.children)


def _climb(taken: dict[_Path, _Nodes], match: _Nodes, depth: int, size: int, weigh: _Weigh) -> None:
    """Add the heaviest paths below the match until there are `size`, parents first.

    What weighs nothing is not added. Ties go to what was read first.
    """
    order = count()
    heap: list[tuple[float, int, _Path, _Nodes]] = []

    def offer(path: _Path, nodes: _Nodes) -> None:
        for token, below in _children(nodes):
            if (weight := weigh(below)) > 0:
                heapq.heappush(heap, (-weight, next(order), (*path, token), below))

    if depth > 0:
        offer((), match)
    while heap and len(taken) < size:
        _, _, path, nodes = heapq.heappop(heap)
        taken.setdefault(path, nodes)
        if len(path) < depth:
            offer(path, nodes)
