"""What the tests of learned drafters share: a recorded answer, and a draft decoded step by step."""

from dataclasses import dataclass, replace

import tiny
import torch

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters._blocks import rotation_at
from varifocal.drafters._recurrence import run_blocks
from varifocal.drafters._weights import Card, load_trained, save_trained
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Forward, Want
from varifocal.training.artifacts import Artifact

LAYERS = (1, 2, 3)


@dataclass(frozen=True)
class Recorded:
    """A prompt with its plain answer, and the true features of the whole."""

    prompt: object
    answer: list[int]
    seen: Forward
    artifact: Artifact

    @property
    def prefill(self) -> Forward:
        """What the prompt's own prefill would have seen."""
        n = len(self.prompt.tokens)
        return Forward(self.seen.logits, hidden=self.seen.hidden[:n], final=self.seen.final[:n],
                       embeddings=self.seen.embeddings[:n])  # fmt: skip


@torch.no_grad()
def recorded(target, *, pictures=1, tokens=24) -> Recorded:
    shown = [tiny.picture(k) for k in range(pictures)]
    prompt = target.encode(ask("what is it?", shown))
    plain = generate(
        target,
        load_drafter("plain", target),
        ask("what is it?", shown, max_new_tokens=tokens),
    )
    ids = torch.cat([prompt.tokens, torch.tensor(plain.token_ids)])
    image_of = torch.cat([prompt.image_of, torch.full((len(plain.token_ids),), -1)])
    whole = replace(prompt, tokens=ids, image_of=image_of)
    _, seen = target.prefill(whole, Want(layers=LAYERS, final=True, embeddings=True))
    artifact = Artifact(
        id="a",
        family="x",
        tokens=ids,
        image_of=image_of,
        supervised=torch.arange(len(ids)) >= len(prompt.tokens),
        final=seen.final,
        visual=seen.embeddings[whole.is_image],
        taps=seen.hidden,
        tap_layers=LAYERS,
    )
    return Recorded(prompt, plain.token_ids, seen, artifact)


def shortened(artifact: Artifact, by: int = 9) -> Artifact:
    """Without its last tokens."""
    cut = {k: getattr(artifact, k)[:-by] for k in ("tokens", "image_of", "supervised", "final")}
    taps = None if artifact.taps is None else artifact.taps[:-by]
    return replace(artifact, **cut, taps=taps)


@torch.no_grad()
def decoded_states(drafter, one: Recorded, steps: int) -> list[torch.Tensor]:
    """The states of a draft that follows the answer, as decoding makes them: of the root first."""
    network, target = drafter.network, drafter.target
    state = drafter.start(one.prompt, one.prefill, one.answer[0])
    states = [state.top[0]]
    for step in range(steps):
        x = network.enter(states[-1][None], target.embed(torch.tensor([one.answer[1 + step]])))
        place = len(one.prompt.tokens) + step
        turn = rotation_at(place, network.shape, x.dtype, x.device)
        sees = torch.ones(1, 1 + step, dtype=torch.bool)
        states.append(run_blocks(network, x, turn, state.cache, sees)[0])
        state.cache.advance(1)
    return states


def unrolled_states(chain, slots, sample: int, steps: int) -> list[torch.Tensor]:
    """The same states as training meets them, of the first answer token of a sample."""
    base = int(slots.answer[sample].long().argmax())
    row = int((slots.bases[sample] == base).nonzero())
    states = [chain.h[sample, row].detach()]
    for step in range(steps):
        chain.advance(step)
        states.append(chain.h[sample, row].detach())
    return states


def backwards(propose):
    """A `propose` whose trees list the nodes of each level in the opposite order."""

    def shuffled(*args):
        tree = propose(*args)
        depth = tree.depth.tolist()
        order = sorted(range(len(tree)), key=lambda n: (depth[n], -n))
        new = torch.empty(len(tree), dtype=torch.int64)
        new[torch.tensor(order)] = torch.arange(len(tree))
        parents = tree.parents[order]
        return type(tree)(tree.tokens[order], torch.where(parents < 0, parents, new[parents]))

    return shuffled


def turned(x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rotary positions, pair by pair, in float64: x is [n, dh]."""
    half = x.shape[-1] // 2
    out = x.double().clone()
    for i in range(half):
        angle = positions.double() * 10000.0 ** (-2 * i / x.shape[-1])
        a, b = x[:, i].double(), x[:, half + i].double()
        out[:, i] = a * angle.cos() - b * angle.sin()
        out[:, half + i] = b * angle.cos() + a * angle.sin()
    return out


def attended(q, k, v, heads: int, positions) -> torch.Tensor:
    """Causal attention, head by head and row by row; q, k, v are [n, D]."""
    n, width = q.shape
    size = width // heads
    out = torch.zeros(n, width, dtype=torch.float64)
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        qh, kh = turned(q[:, part], positions), turned(k[:, part], positions)
        for i in range(n):
            law = (kh[: i + 1] @ qh[i] / size**0.5).softmax(-1)
            out[i, part] = law @ v[: i + 1, part].double()
    return out


def normed(x: torch.Tensor, norm) -> torch.Tensor:
    """LayerNorm by its definition."""
    centred = x.double() - x.double().mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    bias = 0 if norm.bias is None else norm.bias.double()
    return scaled * norm.weight.double() + bias


def check_any_order(drafter, target, asked) -> None:
    """The text is plain decoding's, in whatever order siblings are drafted."""
    plain = generate(target, load_drafter("plain", target), asked)
    drafter.propose = backwards(drafter.propose)
    assert generate(target, drafter, asked).token_ids == plain.token_ids


def drafted_twice(drafter, one: Recorded):
    """The state after two drafts, which are the same."""
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, one.answer[0])
        trees = [drafter.propose(state, one.answer[0], Budget(depth=4, nodes=12)) for _ in "ab"]
    assert torch.equal(trees[0].tokens, trees[1].tokens)
    assert torch.equal(trees[0].scores, trees[1].scores)
    return state


def check_padding(drafter, short: Artifact, *longer: Artifact, parts) -> None:
    """A batch's loss lies between those of its samples; with the same sample twice it is its."""
    batch = [*longer, short]
    with torch.no_grad():
        together = drafter.loss(batch, 0.0).parts
        alone = [drafter.loss([a], 0.0).parts for a in batch]
        twice = drafter.loss([short, short], 0.0).parts
    for name in parts:
        low, *_, high = sorted(float(p[name]) for p in alone)
        assert low - 1e-4 <= float(together[name]) <= high + 1e-4
        torch.testing.assert_close(twice[name], alone[-1][name])


def check_no_signal(drafter, one: Recorded) -> None:
    """An answer of one token, which the target chose in its prefill, teaches nothing."""
    last = torch.zeros_like(one.artifact.supervised)
    last[-1] = True
    loss = drafter.loss([replace(one.artifact, supervised=last)], 0.0)
    assert float(loss.total.detach()) == 0.0 and loss.total.requires_grad


def taught(drafter, artifact, updates) -> list[float]:
    """The losses of so many updates on one sample."""
    optimizer = torch.optim.AdamW(drafter.network.parameters(), lr=3e-3)
    losses = []
    for _ in range(updates):
        optimizer.zero_grad()
        loss = drafter.loss([artifact], 0.0)
        loss.total.backward()
        optimizer.step()
        losses.append(float(loss.total.detach()))
    return losses


def check_learning(make, target, one: Recorded, folder) -> None:
    """What `make` makes learns an answer, which is then accepted, and comes back from disk."""
    drafter = make()
    losses = taught(drafter, one.artifact, 60)
    assert losses[-1] < 0.5 * losses[0]
    asked = ask("what is it?", [tiny.picture()], max_new_tokens=24)
    result = generate(target, drafter, asked)
    assert result.token_ids == one.answer
    assert result.num_spec_steps < generate(target, make(), asked).num_spec_steps
    save_trained(drafter, folder, card=Card(seed=0, steps=60))
    loaded = load_trained(folder, target, {})
    for name, tensor in drafter.network.state_dict().items():
        assert torch.equal(tensor, loaded.network.state_dict()[name]), name
    loaded.prepare()
    again = generate(target, loaded, asked)
    assert again.token_ids == one.answer
    assert again.acceptance_histogram == result.acceptance_histogram
