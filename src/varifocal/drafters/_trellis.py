"""The likeliest tree where the laws of all coming positions are known at once: no level costs."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from varifocal.plan import Budget
from varifocal.tree import DraftTree


@dataclass(frozen=True)
class Trellis:
    """d positions with c candidates each, and the w likeliest steps from each to the next one.

    Steps from candidate i at position k lead to candidates `steps[k + 1, i]` with log-probabilities
    `gains[k + 1, i]`, likeliest first; `steps[0, i]` are those from the root, whatever i.
    """

    tokens: Int64[Tensor, "d c"]
    steps: Int64[Tensor, "d c w"]
    gains: Float[Tensor, "d c w"]


def likeliest(root: int, trellis: Trellis, budget: Budget) -> DraftTree:
    """The `budget.nodes` likeliest nodes of all by joint probability, or as many of them as pay.

    They are found in that order, best first, so no beam leaves one out, and a child comes after its
    parent. One copy from the device; then a few microseconds for each node.
    """
    device = trellis.tokens.device
    steps, names = trellis.steps.cpu().numpy(), trellis.tokens.cpu().numpy()
    gains = trellis.gains.double().clamp(max=0).cpu().numpy()
    depth, _, width = steps.shape
    tokens, parents, joint = [root], [-1], [0.0]
    # What may come next: joint (negated), position, node above, its candidate, rank among siblings.
    queue: list[tuple[float, int, int, int, int]] = [(-gains[0, 0, 0], 0, 0, 0, 0)]
    while queue and len(tokens) <= budget.nodes:
        loss, level, parent, above, rank = heappop(queue)
        if loss == np.inf:  # what must not be proposed, and nothing better is left
            break
        node, own = len(tokens), steps[level, above, rank]
        tokens.append(int(names[level, own]))
        parents.append(parent)
        joint.append(-loss)
        if rank + 1 < width:
            sibling = gains[level, above, rank + 1] + joint[parent]
            heappush(queue, (-sibling, level, parent, above, rank + 1))
        if level + 1 < depth:
            heappush(queue, (loss - gains[level + 1, own, 0], level + 1, node, own, 0))
    scores = np.exp(joint)
    size = len(tokens)
    if budget.cost is not None:
        spent = budget.cost.start + (budget.depth - 1) * budget.cost.step
        size = 1 + budget.cost.best_size(scores[1:], spent)
    return DraftTree(
        torch.tensor(tokens[:size], device=device),
        torch.tensor(parents[:size], device=device),
        torch.tensor(scores[:size], dtype=torch.float32, device=device),
    )
