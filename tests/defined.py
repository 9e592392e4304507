"""Drafters on the last state by their definitions: float64, every position by itself.

An independent twin of network, draft tree and loss, for tests of EAGLE-2 and what descends from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import torch
from pytest import approx
from torch import nn

from varifocal.plan import Budget

LLAVA = {"blocks": 1, "norms": "rms", "eps": 1e-5, "bare": True, "first_norm": False,
         "join_bias": True}  # fmt: skip
QWEN2_VL = {"blocks": 1, "norms": "rms", "eps": 1e-6, "bare": True, "first_norm": True,
            "join_bias": True, "bias": True, "kv_heads": 2, "theta": 1e6}  # fmt: skip


def uneven(network: nn.Module, seed: int = 0) -> nn.Module:
    """Weights with which no part of the network can be left out unseen: no ones, no zeros."""
    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            drawn = torch.randn(weight.shape, generator=made)
            if weight.dim() == 2:
                weight.copy_(drawn / weight.shape[1] ** 0.5)
            else:
                weight.copy_(0.3 * drawn + ("norm" in name and name.endswith("weight")))
    return network


@dataclass(frozen=True)
class Slot:
    """What the drafter reads at a position: a state and what follows it, or the latter alone."""

    position: int
    state: torch.Tensor | None
    following: torch.Tensor


def slots(tokens, image_of, states, embeddings, table, kind: str) -> list[Slot]:
    """Slots of tokens whose states are known, one fewer than tokens.

    Where a picture's token follows, `kind` says what is there: "left out", "joined" or "alone".
    """
    made = []
    for i in range(len(tokens) - 1):
        if image_of[i + 1] < 0:
            made.append(Slot(i, states[i], table[tokens[i + 1]]))
        elif kind == "joined":
            made.append(Slot(i, states[i], embeddings[i + 1]))
        elif kind == "alone":
            made.append(Slot(i, None, embeddings[i + 1]))
    return made


def states(network, read: Sequence[Slot]) -> list[torch.Tensor]:
    """The network's output at every slot."""
    shape = network.shape
    rows = [_entered(network, slot, shape.eps) for slot in read]
    for block in network.blocks:
        attended = _attention(block, rows, [slot.position for slot in read], shape)
        for i, x in enumerate(rows):
            x = x + _linear(attended[i], block.out)
            normed = _normed(x, block.inner_norm, shape.eps)
            gate, up = _linear(normed, block.gate_up).chunk(2)
            rows[i] = x + _linear(gate / (1 + (-gate).exp()) * up, block.down)
    return [_normed(x, network.norm, shape.eps) for x in rows]


def followed(network, read: Sequence[Slot], path: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The state of the last slot, then of each drafted token, given by its embedding."""
    read, made = list(read), []
    place = read[-1].position + 1
    for k in range(len(path) + 1):
        made.append(states(network, read)[-1])
        if k < len(path):
            read.append(Slot(place + k, made[-1], path[k]))
    return made


def tree(network, head, table, banned, read, *, width, depth, nodes) -> dict[tuple, float]:
    """The likeliest `nodes` paths below the root, and their log-probabilities. [EAGLE-2, Sec. 4]"""
    pool: dict[tuple, float] = {}
    frontier: dict[tuple, float] = {(): 0.0}
    for _ in range(depth):
        level: dict[tuple, float] = {}
        for path, score in frontier.items():
            state = followed(network, read, [table[token] for token in path])[-1]
            logits = (head.double() @ state).tolist()
            likely = log(sum(exp(z - max(logits)) for z in logits)) + max(logits)
            # The law is over all tokens that may be proposed.
            allowed = [v for v in range(len(logits)) if v not in banned]
            rest = sum(exp(logits[v] - likely) for v in allowed)
            best = sorted(allowed, key=lambda v: -logits[v])[:width]
            level |= {(*path, v): score + logits[v] - likely - log(rest) for v in best}
        pool |= level
        frontier = dict(sorted(level.items(), key=lambda entry: -entry[1])[:width])
    return dict(sorted(pool.items(), key=lambda entry: -entry[1])[:nodes])


def loss(network, head, table, read, tokens, answer, final, *, unroll, gamma) -> dict[str, float]:
    """Means over all drafted tokens of all roots in an answer, weighted by draft step."""
    sums = {"regression": 0.0, "classification": 0.0}
    total = 0.0
    for a in range(len(tokens) - 1):
        steps = 0
        while steps < unroll and a + 1 + steps < len(tokens) and answer[a + 1 + steps]:
            steps += 1
        if not answer[a] or not steps:
            continue
        before = [slot for slot in read if slot.position < a]
        path = [table[tokens[a + 1 + s]] for s in range(steps - 1)]
        for s, state in enumerate(followed(network, before, path)):
            weight, wanted = exp(-s / gamma), final[a + s].double()
            apart = (state - wanted).abs()
            smooth = torch.where(apart < 1, apart.square() / 2, apart - 0.5).mean()
            p = (head.double() @ wanted).softmax(0)
            sums["regression"] += weight * float(smooth)
            sums["classification"] -= weight * float(p @ (head.double() @ state).log_softmax(0))
            total += weight
    return {name: value / total for name, value in sums.items()}


def agrees_on_a_draft(drafter, one, kind: str) -> None:
    """Assert that prompt and draft tree of a recorded answer are as defined; `kind` as in slots."""
    target, network, root = drafter.target, uneven(drafter.network), one.answer[0]
    head, table = _frozen(target)
    tokens, image_of = [*one.prompt.tokens.tolist(), root], [*one.prompt.image_of.tolist(), -1]
    final, embeddings = one.prefill.final, one.prefill.embeddings
    read = slots(tokens, image_of, final, embeddings, table, kind)
    size = {"width": 3, "depth": 3, "nodes": 12}
    best = tree(network, head, table, target.banned_ids, read, **size)
    assert drafter.config.width == size["width"]
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, root)
        drawn = drafter.propose(state, root, Budget(depth=3, nodes=12))
    wanted = states(network, read)[-1]
    torch.testing.assert_close(state.top[0].double(), wanted, atol=1e-4, rtol=1e-4)
    assert state.cache.length == len(read)
    paths = [()]
    for token, parent in list(zip(drawn.tokens.tolist(), drawn.parents.tolist(), strict=True))[1:]:
        paths.append((*paths[parent], token))
    assert set(paths[1:]) == set(best)
    scores = torch.tensor([best[path] for path in paths[1:]], dtype=torch.float64).exp()
    assert scores.min() > 1e-30  # beyond which float32 would compare nothing
    torch.testing.assert_close(drawn.scores[1:].double(), scores, atol=0, rtol=1e-2)


def agrees_on_a_loss(drafter, sample, kind: str, progress: float = 1.0) -> None:
    """Assert that the loss of a sample is as defined."""
    target, network, config = drafter.target, uneven(drafter.network), drafter.config
    head, table = _frozen(target)
    assert config.max_bases == 0
    embeddings = torch.zeros(len(sample), target.hidden_size)
    embeddings[sample.image_of >= 0] = sample.visual
    tokens, image_of = sample.tokens.tolist(), sample.image_of.tolist()
    read = slots(tokens, image_of, sample.final, embeddings, table, kind)
    wanted = loss(network, head, table, read, tokens, sample.supervised.tolist(), sample.final,
                  unroll=config.unroll, gamma=config.gamma_w)  # fmt: skip
    with torch.no_grad():
        found = drafter.loss([sample], progress)
    total = sum(getattr(config, name) * value for name, value in wanted.items())
    assert {name: float(found.parts[name]) for name in wanted} == approx(wanted, rel=1e-4)
    assert float(found.total) == approx(total, rel=1e-4)


def _frozen(target) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of the head, and the embeddings."""
    return target.model.lm_head.weight.detach(), target.model.get_input_embeddings().weight.detach()


def _entered(network, slot: Slot, eps: float) -> torch.Tensor:
    if slot.state is None:
        return slot.following.double()
    parts = [
        _normed(slot.state, network.feature_norm, eps),
        _normed(slot.following, network.token_norm, eps),
    ]
    return _linear(torch.cat(parts), network.join)


def _attention(block, rows, positions, shape) -> list[torch.Tensor]:
    """Causal, head by head; queries in turn share a head of keys and values."""
    size, heads, shared = shape.head_width, shape.heads, shape.heads // shape.kv_heads
    made = [_linear(_normed(x, block.attention_norm, shape.eps), block.qkv) for x in rows]
    reads: list[list[torch.Tensor]] = [[] for _ in rows]
    for head in range(heads):
        q_at, k_at = head * size, (heads + head // shared) * size
        v_at = k_at + shape.kv_heads * size
        keys = [_turned(x[k_at : k_at + size], p, shape.theta)
                for x, p in zip(made, positions, strict=True)]  # fmt: skip
        for i, x in enumerate(made):
            query = _turned(x[q_at : q_at + size], positions[i], shape.theta)
            scores = torch.stack(keys[: i + 1]) @ query / size**0.5
            law = (scores - scores.max()).exp()
            values = torch.stack([y[v_at : v_at + size] for y in made[: i + 1]])
            reads[i].append(law / law.sum() @ values)
    return [torch.cat(parts) for parts in reads]


def _turned(x: torch.Tensor, position: int, theta: float) -> torch.Tensor:
    """Rotary positions: element i turns with element i + half."""
    half = len(x) // 2
    angle = position * theta ** (-torch.arange(half).double() / half)
    a, b = x[:half], x[half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()])


def _linear(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    made = layer.weight.detach().double() @ x.double()
    return made if layer.bias is None else made + layer.bias.detach().double()


def _normed(x: torch.Tensor, norm: nn.Module, eps: float) -> torch.Tensor:
    x = x.double()
    if isinstance(norm, nn.Identity):
        return x
    if isinstance(norm, nn.LayerNorm):
        x = x - x.mean()
    made = x / (x.square().mean() + eps).sqrt() * norm.weight.detach().double()
    bias = getattr(norm, "bias", None)
    return made if bias is None else made + bias.detach().double()
