"""Find the way through a branching graph: traced back from the goal, then told from the start."""

import json
from itertools import pairwise
from random import Random

from varifocal.diffusion.tasks._task import LABELS, Task

_NODES = 15


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    """`search: d<k m<0 k<m a<m (m,d)` asks for ` d<k1 k<m2 m<0 {"first": "k", "steps": 2}`.

    `d<k` is an edge from k to d, and `m<0` tells where all begins. Edges branch forwards, so that
    the first step from m to d is known only once d has been traced back to m.
    """
    nodes = rng.sample(LABELS, _NODES)
    path, others = nodes[: size + 1], nodes[size + 1 :]
    edges = list(pairwise(path))
    reached = path[:-1]
    for node in others[: rng.randint(size // 2, size)]:
        parent = rng.choice(reached)
        edges.append((parent, node))
        reached.append(node)
    edges.append(("0", path[0]))
    rng.shuffle(edges)
    listed = " ".join(f"{child}<{parent}" for parent, child in edges)
    back = pairwise(reversed(path))
    trace = "".join(f" {child}<{parent}{step}" for step, (child, parent) in enumerate(back, 1))
    reference = json.dumps({"first": path[1], "steps": size})
    prompt = f"search: {listed} ({path[0]},{path[-1]})\n"
    return prompt, f"{trace} {path[0]}<0 {reference}", reference


TASK = Task(name="search", format="json", regime="long", canvas=128, sizes=(4, 9), write=_write)
