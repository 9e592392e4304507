"""A draft tree in plain Python: what follows each node, copied from the device once."""

from collections.abc import Sequence
from dataclasses import dataclass

from varifocal.tree import DraftTree


@dataclass(frozen=True)
class Branches:
    """The children of every node, by token, and the probability that a node is reached."""

    below: list[dict[int, int]]
    scores: list[float] | None  # None where the tree has none

    @classmethod
    def of(cls, tree: DraftTree) -> "Branches":
        """Children stand in the order of the tree."""
        below: list[dict[int, int]] = [{} for _ in range(len(tree))]
        edges = zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
        for node, (parent, token) in enumerate(edges):
            if node:
                below[parent][token] = node
        return cls(below, None if tree.scores is None else tree.scores.tolist())

    def walk(self, tokens: Sequence[int]) -> list[int]:
        """The nodes along these tokens below the root, as far as the tree has them."""
        path = [0]
        for token in tokens:
            node = self.below[path[-1]].get(token)
            if node is None:
                break
            path.append(node)
        return path[1:]
