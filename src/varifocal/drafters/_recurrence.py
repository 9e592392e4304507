"""Drafting on the target's states: read what is decided, then go on with the drafter's own states.

Slot i pairs the feature of token i with the embedding of token i + 1; its output stands for the
state of token i + 1. A network has `enter` (feature, embedding -> input of the first block),
`blocks`, `norm` (output of the last block -> the state that is scored and fed back) and the blocks'
`shape`. [EAGLE-2]
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.drafters._blocks import DraftCache, Rotation, attend, rotation, rotation_at
from varifocal.drafters._growth import Frontier, Scored, grow
from varifocal.plan import Budget
from varifocal.target import Target
from varifocal.tree import DraftTree

# States of a level and its depth, the root's being 0 -> log-probabilities of the next token.
Score = Callable[[Tensor, int], Scored]


@runtime_checkable
class Reader(Protocol):
    """What a request's state must hold: the draft cache, and slots not read yet."""

    cache: DraftCache
    features: Tensor  # [m, F] of pending slots ...
    tokens: Tensor  # ... [m, D] embeddings of the tokens after them ...
    positions: Tensor  # ... and [m] where they stand
    next_position: int
    top: Tensor | None  # [1, D], the root's state


@dataclass
class Recurrence:
    """A request's state that holds no more than this."""

    features: Float[Tensor, "m F"]
    tokens: Float[Tensor, "m D"]
    positions: Int64[Tensor, " m"]
    next_position: int
    cache: DraftCache = field(default_factory=DraftCache)
    top: Float[Tensor, "1 D"] | None = field(default=None, repr=False)


def begin(
    features: Float[Tensor, "T F"],
    following: Float[Tensor, "T D"],
    is_image: Bool[Tensor, " T"],
    *,
    text_only: bool,
) -> Recurrence:
    """The prompt's slots: `following` embeds the token after each, the last one the root.

    With `text_only`, slots whose following token is a picture's are left out.
    """
    positions = torch.arange(len(following), device=following.device)
    if text_only:
        keep = torch.cat([~is_image[1:], torch.ones_like(is_image[:1])])
        features, following, positions = features[keep], following[keep], positions[keep]
    return Recurrence(features, following, positions, len(is_image))


def read(network: Any, state: Reader) -> None:
    """Read the pending slots into the stable cache; the last one's state is the root's."""
    if not len(state.positions):
        return
    kind = next(network.parameters()).dtype
    absorb(network, state, network.enter(state.features.to(kind), state.tokens.to(kind)))


def absorb(network: Any, state: Reader, x: Float[Tensor, "m X"]) -> None:
    """Run the pending slots, whose inputs of the first block are `x`, and forget them."""
    n = len(x)
    sees = torch.ones(n, n, dtype=torch.bool, device=x.device).tril() if n > 1 else None
    turn = rotation(state.positions, network.shape, x.dtype)
    state.top = run_blocks(network, x, turn, state.cache, sees)[-1:]
    state.cache.advance(n, stable=True)
    state.features, state.tokens = state.features[:0], state.tokens[:0]
    state.positions = state.positions[:0]


def draft(
    network: Any,
    target: Target,
    state: Reader,
    root: int,
    score: Score,
    width: int,
    budget: Budget,
    *,
    ids: Int64[Tensor, " v"] | None = None,
) -> DraftTree:
    """Grow a tree below the root. `ids` are the target's where `score` counts tokens of its own.

    What the draft appends to the cache is gone when it returns.
    """
    read(network, state)
    assert state.top is not None
    above = state.top  # states of the last expanded level

    def expand(frontier: Frontier) -> Scored:
        nonlocal above
        parents = above.expand(len(frontier.tokens), -1)
        if frontier.depth > 1:
            parents = above[frontier.row]
        tokens = frontier.tokens if ids is None else ids[frontier.tokens]
        x = network.enter(parents, target.embed(tokens).to(parents.dtype))
        place = state.next_position - 1 + frontier.depth
        turn = rotation_at(place, network.shape, x.dtype, x.device)
        above = run_blocks(network, x, turn, state.cache, frontier.sees)
        state.cache.advance(len(x))
        return score(above, frontier.depth)

    tree = grow(root, score(state.top, 0), expand, width, budget)
    state.cache.rewind()
    if ids is None:
        return tree
    return replace(tree, tokens=torch.cat([tree.tokens[:1], ids[tree.tokens[1:]]]))


def note(state: Reader, features: Float[Tensor, "n F"], following: Float[Tensor, "n D"]) -> None:
    """Keep the true features of the accepted path for the next draft; no computation yet."""
    start = state.next_position
    positions = torch.arange(start, start + len(features), device=features.device)
    state.features = torch.cat([state.features, features])
    state.tokens = torch.cat([state.tokens, following])
    state.positions = torch.cat([state.positions, positions])
    state.next_position += len(features)


def run_blocks(
    network: Any,
    x: Float[Tensor, "n X"],
    turn: Rotation,
    cache: DraftCache,
    sees: Bool[Tensor, "n m"] | None,
) -> Float[Tensor, "n D"]:
    """New rows through all blocks; `sees` says which of the newest entries each may read."""
    for number, block in enumerate(network.blocks):
        q, k, v = block.project(x, turn)
        keys, values = cache.append(number, k, v)
        x = block.finish(x, attend(q, keys, values, sees))
    states: Tensor = network.norm(x)
    return states
