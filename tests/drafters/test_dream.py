"""DREAM: what a row reads, what a branch does not, and training that meets decoding."""

from dataclasses import fields, replace
from math import exp

import pytest
import tiny
import torch
from defined import uneven
from taught import (
    Recorded,
    check_any_order,
    check_learning,
    check_no_signal,
    check_padding,
    drafted_twice,
    recorded,
    taught,
)

from varifocal.drafters import load_drafter
from varifocal.drafters._weights import Card
from varifocal.drafters.dream import DreamDrafter, _Chain, _collate
from varifocal.errors import BadArtifact, BadOption
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.sampling import Sampling
from varifocal.target import Forward
from varifocal.verify import Verification

CARD = Card(seed=0, steps=1)
PUBLISHED = {"norms": "rms", "eps": 1e-5, "token_norm": False}


@pytest.fixture(scope="module")
def one(target):
    made = recorded(target)
    mid = torch.randn(made.seen.final.shape, generator=torch.Generator().manual_seed(0))
    return replace(made, artifact=replace(made.artifact, mid=3 * mid, taps=None, tap_layers=()))


def dream(target, **options):
    torch.manual_seed(0)
    sizes = {"inner": 48, "nodes": 12, "width": 3, "gate_init": 0.7}
    return DreamDrafter(target, DreamDrafter.Config(**{**sizes, **options}))


def reduced(one, kept):
    """With these positions of the prompt alone, and all of the answer."""
    n, size = len(one.prompt.tokens), len(one.artifact)
    index = torch.tensor([*kept, *range(n, size)])
    prompt = replace(one.prompt, tokens=one.prompt.tokens[kept], image_of=one.prompt.image_of[kept])
    picked = ("tokens", "image_of", "supervised", "final", "mid")
    visual = one.seen.embeddings[[i for i in index.tolist() if one.artifact.image_of[i] >= 0]]
    artifact = replace(
        one.artifact, visual=visual, **{k: getattr(one.artifact, k)[index] for k in picked}
    )
    seen = one.seen
    states = {f.name: getattr(seen, f.name)[index] for f in fields(seen) if f.name != "logits"}
    return Recorded(prompt, one.answer, replace(seen, **states), artifact)


def laid_out(one, place: str):
    """The recorded prompt with its picture there."""
    n = len(one.prompt.tokens)
    image = one.prompt.is_image.nonzero()[:, 0].tolist()
    text = [i for i in range(n) if i not in image]
    kept = {
        "within": range(n),
        "first": range(image[0], n),
        "last": range(image[-1] + 1),
        "alone": image,
        "nowhere": text,
    }[place]
    return reduced(one, list(kept))


# -- the definition: float64, every position by itself -------------------------------------------


def normed(x, norm):
    x = x.double()
    if isinstance(norm, torch.nn.Identity):
        return x
    if isinstance(norm, torch.nn.LayerNorm):
        x = x - x.mean(-1, keepdim=True)
    made = x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
    return made + (0 if getattr(norm, "bias", None) is None else norm.bias.double())


def times(x, layer):
    return x.double() @ layer.weight.double().T


def turned(x, position):
    """Rotary positions of [H, dh]: element i turns with element i + half."""
    half = x.shape[-1] // 2
    angle = position * 10_000.0 ** (-torch.arange(half).double() / half)
    a, b = x[:, :half], x[:, half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def looked_up(query, keys, values):
    """Attention of one row, [H, dh]; nothing where there is nothing to read."""
    out = torch.zeros_like(query)
    for head in range(len(query) if keys else 0):
        scores = torch.stack([k[head] for k in keys]) @ query[head] / query.shape[-1] ** 0.5
        law = (scores - scores.max()).exp()
        out[head] = law / law.sum() @ torch.stack([v[head] for v in values])
    return out


def fed(x, block):
    gate, up = times(normed(x, block.inner_norm), block.gate_up).chunk(2)
    return times(gate / (1 + (-gate).exp()) * up, block.down)


def self_attention(block, rows, positions, heads):
    made = []
    keys, values = [], []
    for x, position in zip(rows, positions, strict=True):
        q, k, v = times(normed(x, block.attention_norm), block.qkv).view(3, heads, -1)
        keys.append(turned(k, position))
        values.append(v)
        x = x + times(looked_up(turned(q, position), keys, values).flatten(), block.out)
        made.append(x + fed(x, block))
    return made


def cross_attention(block, x, states, heads):
    q = normed(
        times(normed(x, block.attention_norm), block.query).view(heads, -1), block.query_norm
    )
    both = [times(state, block.keys_values).view(2, heads, -1) for state in states]
    keys = [normed(k, block.key_norm) for k, _ in both]
    read = times(looked_up(q, keys, [v for _, v in both]).flatten(), block.out)
    x = x + float(block.attention_gate.tanh()) * read
    return x + float(block.inner_gate.tanh()) * fed(x, block)


def outputs(network, tokens, positions, states):
    """Output and middle state of the last row, whose newest state is that of the row before."""
    heads, silent = network.shape.heads, len(tokens) - len(states)
    rows = [normed(token, network.token_norm) for token in tokens]
    stream = self_attention(network.first, rows, positions, heads)
    middle = [
        cross_attention(network.cross, x, states[: max(r + 1 - silent, 0)], heads)
        for r, x in enumerate(stream)
    ]
    last = self_attention(network.last, middle, positions, heads)[-1]
    return normed(last, network.norm), middle[-1]


def followed(network, tokens, positions, states, path):
    """`outputs` of the last token, then of each drafted one, whose states are the drafter's own."""
    tokens, positions, states, made = list(tokens), list(positions), list(states), []
    for k in range(len(path) + 1):
        made.append(outputs(network, tokens, positions, states))
        if k < len(path):
            tokens.append(path[k])
            positions.append(positions[-1] + 1)
            states.append(made[-1][0])
    return made


def sequence(drafter, artifact, size):
    """What is read of the first `size` tokens: embeddings, positions, states before them."""
    table = drafter.target.model.get_input_embeddings().weight.detach()
    tokens, positions, states, visual = [], [], [], list(artifact.visual)
    for p in range(size):
        is_image = artifact.image_of[p] >= 0
        token = visual.pop(0) if is_image else table[artifact.tokens[p]]
        if is_image and drafter.config.prefix == "text_only":
            continue
        tokens.append(token)
        positions.append(p)
        states += [artifact.final[p - 1]] * (p > 0)
    return tokens, positions, states


def law_of(drafter, state):
    """Over all tokens that may be proposed."""
    target = drafter.target
    logits = target.model.lm_head.weight.detach().double() @ state
    logits[sorted(target.banned_ids)] = float("-inf")
    return logits.softmax(-1)


@pytest.mark.parametrize("options", [{}, PUBLISHED, {"prefix": "text_only"}])
def test_prompt_and_draft_tree_equal_the_definition(target, one, options):
    drafter = dream(target, heads=2, **options)
    uneven(drafter.network)
    few = reduced(one, list(range(0, len(one.prompt.tokens), 4)))
    root, table = few.answer[0], target.model.get_input_embeddings().weight.detach()
    with torch.no_grad():
        state = drafter.start(few.prompt, few.prefill, root)
        tree = drafter.propose(state, root, Budget(depth=3, nodes=12))
        read = sequence(drafter, few.artifact, len(few.prompt.tokens) + 1)
        wanted, _ = outputs(drafter.network, *read)
        torch.testing.assert_close(state.top[0].double(), wanted, atol=1e-4, rtol=1e-4)
        laws = {(): law_of(drafter, wanted)}
        paths, scores = [()], [1.0]
        for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
            path = paths[parent]
            if path not in laws:
                steps = followed(drafter.network, *read, [table[t] for t in path])
                laws[path] = law_of(drafter, steps[-1][0])
            assert token in laws[path].topk(3).indices
            scores.append(scores[parent] * float(laws[path][token]))
            paths.append((*path, token))
    assert len(tree) == 13 and max(map(len, paths)) == 3
    assert len({path[:2] for path in paths if len(path) > 1}) > 2  # several branches
    torch.testing.assert_close(tree.scores.double(), torch.tensor(scores).double(), rtol=1e-2,
                               atol=1e-30)  # fmt: skip


@pytest.mark.parametrize("options", [{}, PUBLISHED, {"prefix": "text_only"}])
def test_the_loss_equals_the_definition(target, one, options):
    drafter = dream(target, heads=2, unroll=3, max_bases=0, gamma_w=2.0, **options)
    uneven(drafter.network)
    sample = reduced(one, list(range(0, len(one.prompt.tokens), 4))).artifact
    size = len(sample) - 19  # five answer tokens
    cut = {
        k: getattr(sample, k)[:size] for k in ("tokens", "image_of", "supervised", "final", "mid")
    }
    sample = replace(sample, **cut)
    sums = dict.fromkeys(("regression", "classification", "intermediate"), 0.0)
    total = 0.0

    def apart(a, b):
        far = (a - b).abs()
        return float(torch.where(far < 1, far.square() / 2, far - 0.5).mean())

    def unit(x):
        return x.double() / x.double().square().mean().sqrt()

    table = target.model.get_input_embeddings().weight.detach()
    head = target.model.lm_head.weight.detach().double()
    with torch.no_grad():
        found = drafter.loss([sample], 0.0)
        for root in range(size - 5, size - 1):
            path = [table[t] for t in sample.tokens[root + 1 : min(root + 3, size - 1)]]
            read = sequence(drafter, sample, root + 1)
            for s, (state, middle) in enumerate(followed(drafter.network, *read, path)):
                weight, wanted = exp(-s / 2), sample.final[root + s].double()
                p = (head @ wanted).softmax(-1)
                sums["regression"] += weight * apart(state, wanted)
                sums["classification"] -= weight * float(p @ (head @ state).log_softmax(-1))
                sums["intermediate"] += weight * apart(unit(middle), unit(sample.mid[root + s]))
                total += weight
    means = {name: value / total for name, value in sums.items()}
    assert {name: float(found.parts[name]) for name in means} == pytest.approx(means, rel=1e-4)
    weighed = 0.2 * means["regression"] + means["classification"] + means["intermediate"]
    assert float(found.total) == pytest.approx(weighed, rel=1e-4)


# -- training meets decoding ---------------------------------------------------------------------


def decoded_states(drafter, one, steps):
    """Along the answer, in trees with siblings at every level."""
    states = []

    def told(h):
        states.append(h[0])
        law = torch.full((len(h), drafter.target.vocab_size), -30.0)
        law[:, one.answer[len(states)]] = 0.0  # comes first, so that it is row 0 of its level
        return law

    drafter._log_probs = told
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, one.answer[0])
        drafter.propose(state, one.answer[0], Budget(depth=steps + 1, nodes=12))
    del drafter._log_probs
    return states


@pytest.mark.parametrize("place", ["within", "first", "last", "alone", "nowhere"])
@pytest.mark.parametrize("options", [{}, {"prefix": "text_only"}, {**PUBLISHED, "kv_heads": 2}])
def test_training_meets_the_states_of_decoding(target, one, place, options):
    drafter = dream(target, **options)
    other, one = laid_out(one, "within"), laid_out(one, place)  # of different length and kind
    rows = _collate([other.artifact, one.artifact], target, replace(drafter.config, max_bases=0))
    base = int(rows.answer[1].long().argmax())
    at = int((rows.bases[1] == base).nonzero())
    with torch.no_grad():
        chain = _Chain(drafter.network, rows)
        for step, decoded in enumerate(decoded_states(drafter, one, 4)):
            if step:
                chain.advance(step - 1)
            torch.testing.assert_close(chain.h[1, at], decoded, atol=1e-5, rtol=1e-4)


def test_an_accepted_path_is_read_as_a_longer_prompt(target, one):
    drafter, n = dream(target), len(one.prompt.tokens)
    seen, answer = one.seen, one.answer
    longer = replace(
        one.prompt,
        tokens=one.artifact.tokens[: n + 5],
        image_of=one.artifact.image_of[: n + 5],
    )
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, answer[0])
        drafter.propose(state, answer[0], Budget(depth=3, nodes=12))
        for start, stop in ((0, 3), (3, 5)):  # the second round is decoded plainly
            rows = Forward(seen.logits, final=seen.final[n + start : n + stop])
            path = list(range(stop - start))
            drafter.observe(state, Verification(path, answer[start + 1 : stop + 1]), rows)
        tree = drafter.propose(state, answer[5], Budget(depth=3, nodes=12))
        end = n + 5
        prefill = Forward(seen.logits, final=seen.final[:end], embeddings=seen.embeddings[:end])
        fresh = drafter.start(longer, prefill, answer[5])
        wanted = drafter.propose(fresh, answer[5], Budget(depth=3, nodes=12))
    torch.testing.assert_close(state.top, fresh.top, atol=1e-5, rtol=1e-4)
    assert torch.equal(tree.tokens, wanted.tokens) and torch.equal(tree.parents, wanted.parents)
    for own, other in ((state.cache, fresh.cache), (state.heard, fresh.heard)):
        assert own.length == own.stable == other.length


def test_closed_gates_keep_the_targets_states_out_and_learn_to_open(target, one):
    spoilt = replace(one.prefill, final=one.prefill.final + 1)
    for gate, is_same in ((0.0, True), (0.7, False)):
        drafter = dream(target, gate_init=gate)
        with torch.no_grad():
            a, b = (drafter.start(one.prompt, s, one.answer[0]) for s in (one.prefill, spoilt))
        assert torch.equal(a.top, b.top) is is_same
    drafter = dream(target, gate_init=0.0)
    taught(drafter, one.artifact, 5)
    cross = drafter.network.cross
    assert bool(cross.attention_gate.any()) and bool(cross.inner_gate.any())


def test_text_only_reads_nothing_of_a_picture_but_through_states_of_text(target, one):
    drafter = dream(target, prefix="text_only")
    slot = int(one.prompt.is_image.nonzero()[3])  # its next slot is a picture's too
    final, embeddings = one.prefill.final.clone(), one.prefill.embeddings.clone()
    final[slot], embeddings[slot] = 1e3, 1e3
    spoilt = replace(one.prefill, final=final, embeddings=embeddings)
    with torch.no_grad():
        a, b = (drafter.start(one.prompt, s, one.answer[0]) for s in (one.prefill, spoilt))
        c = dream(target).start(one.prompt, spoilt, one.answer[0])
    assert torch.equal(a.top, b.top)
    assert a.cache.length == int((~one.prompt.is_image).sum()) + 1 == a.heard.length + 1
    assert not torch.allclose(c.top, b.top)


# -- the whole -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
@pytest.mark.parametrize("pictures", [0, 2])
def test_the_text_is_plain_decodings_for_any_order_of_siblings(target, sampling, pictures):
    shown = [tiny.picture(k) for k in range(pictures)]
    asked = ask("what is it?", shown, max_new_tokens=30, sampling=sampling)
    check_any_order(dream(target), target, asked)


def test_a_learned_answer_is_accepted_and_comes_back_from_disk(target, one, tmp_path):
    check_learning(lambda: dream(target), target, one, tmp_path / "d")


@pytest.mark.parametrize("prefix", ["full", "text_only"])
def test_loss_does_not_depend_on_padding(target, one, prefix):
    short, parts = laid_out(one, "first").artifact, ("regression", "classification", "intermediate")
    check_padding(dream(target, prefix=prefix), short, one.artifact, parts=parts)


def test_an_answer_of_one_token_gives_no_signal_and_no_nan(target, one):
    check_no_signal(dream(target), one)


def test_gradients_are_finite_where_nothing_stands_before_a_token(target, one):
    drafter = dream(target)
    drafter.loss([one.artifact, laid_out(one, "first").artifact], 0.0).total.backward()
    for name, weight in drafter.network.named_parameters():
        assert bool(weight.grad.isfinite().all()) and float(weight.grad.abs().max()), name


def test_a_draft_leaves_the_caches_as_they_were(target, one):
    state = drafted_twice(dream(target), one)
    for cache in (state.cache, state.heard):
        assert cache.length == cache.stable


def test_artifacts_without_middle_states_say_the_way_out(target, one):
    sample = replace(one.artifact, mid=None)
    with pytest.raises(BadArtifact, match=r"a has none.*--set intermediate=0"):
        dream(target).loss([sample], 0.0)
    parts = dream(target, intermediate=0.0).loss([sample], 0.0).parts
    assert "intermediate" not in parts and float(parts["classification"]) > 0


def test_without_shipped_weights_it_says_how_to_train(target):
    with pytest.raises(BadArtifact, match="varifocal train --drafter dream"):
        load_drafter("dream", target)


@pytest.mark.parametrize(
    "options", [{"heads": 5}, {"width": 0}, {"unroll": 0}, {"gamma_w": 0.0}, {"max_bases": -1}],
)  # fmt: skip
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        dream(target, **options)
