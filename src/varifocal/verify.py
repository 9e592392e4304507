"""Which drafted tokens become text: the walk along the target's own choices."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from varifocal.sampling import Sampling
from varifocal.tree import DraftTree


@dataclass(frozen=True)
class Verification:
    """What one target forward decided.

    `path` lists the nodes that now belong to the text, root first. `tokens[k]` is the target's
    token after `path[k]`; the last one is new and becomes the next root.
    """

    path: list[int]
    tokens: list[int]

    @property
    def num_accepted(self) -> int:
        """Drafted tokens that became text; the bonus token is not one of them."""
        return len(self.path) - 1


def follow(
    tree: DraftTree, logits: Float[Tensor, "N V"], sampling: Sampling, position: int
) -> Verification:
    """Walk down from the root along the target's own choices while the tree has them.

    `position` is the output index of the token that follows the root. Every token is drawn by
    the target from its own law p, so the text is exact and does not depend on the drafter at
    all: same seed, same text. [Daliri24] One device-to-host copy; `follow_by_hand` is the
    readable twin.
    """
    choice = sampling.pick(logits, position + tree.depth)
    agrees = tree.tokens == choice[tree.parents.clamp(min=0)]
    agrees[0] = True
    accepted = ~(tree.ancestry & ~agrees[None]).any(-1)
    on_path, tokens = torch.stack([accepted.long(), choice]).tolist()
    path = [node for node, accept in enumerate(on_path) if accept]
    return Verification(path, [tokens[node] for node in path])


def follow_by_hand(
    tree: DraftTree, logits: Float[Tensor, "N V"], sampling: Sampling, position: int
) -> Verification:
    """The reference for `follow`: one step at a time."""
    choice = sampling.pick(logits, position + tree.depth).tolist()
    edges = zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    child = {edge: node for node, edge in enumerate(edges)}
    path = [0]
    while (node := child.get((path[-1], choice[path[-1]]))) is not None:
        path.append(node)
    return Verification(path, [choice[node] for node in path])
