"""The block drafter: its pass, its trees and its loss are those of the definitions."""

import math
from dataclasses import replace

import pytest
import tiny
import torch
from taught import (
    Recorded,
    backwards,
    check_learning,
    check_no_signal,
    normed,
    shortened,
    turned,
)
from torch import nn

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters._unroll import collate
from varifocal.drafters.block import BlockDrafter
from varifocal.errors import BadArtifact, BadOption
from varifocal.plan import Budget
from varifocal.request import Message, Request
from varifocal.sampling import Sampling
from varifocal.target import Forward
from varifocal.training.examples import Example
from varifocal.training.recorder import record
from varifocal.verify import Verification

# The published networks: a row more than tokens, or none.
DFLASH = dict(norms="rms", kv_heads=2, rank=0)
DSPARK = dict(norms="rms", kv_heads=2, from_root=True)
KINDS = [{}, {"causal": True, "bias": True, "head_norms": False}, DFLASH, DSPARK]
NAMES = ["ours", "causal", "dflash", "dspark"]


def block(target, **options):
    """With no weight at its first value, so that each of them shows."""
    torch.manual_seed(0)
    small = {"inner": 64, "nodes": 12, "ahead": 4, "depth": 4, "taps": (1, 2, 3), "rank": 8}
    drafter = BlockDrafter(target, BlockDrafter.Config(**{**small, **options}))
    with torch.no_grad():
        for weight in drafter.network.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return drafter


def read_on(drafter, one, count):
    """The state of a request whose root is the answer's token `count`, some of it read before."""
    n = len(one.prompt.tokens)
    state = drafter.start(one.prompt, one.prefill, one.answer[0])
    for k in range(count):
        seen = Forward(one.seen.logits, hidden=one.seen.hidden[n + k : n + k + 1])
        drafter.observe(state, Verification([0], [one.answer[k + 1]]), seen)
        if k == 1:  # what follows is still pending
            drafter.propose(state, one.answer[k + 1], Budget(depth=4, nodes=3))
    return state


def placed(one, where):
    """The same without the text before the picture, behind it or on both sides."""
    slots, n = one.prompt.is_image.nonzero()[:, 0].tolist(), len(one.prompt.tokens)
    start = slots[0] if where in ("first", "alone") else 0
    end = slots[-1] + 1 if where in ("last", "alone") else n
    kept = torch.tensor([i for i in range(len(one.artifact)) if start <= i < end or i >= n])
    prompt = replace(
        one.prompt, tokens=one.prompt.tokens[start:end], image_of=one.prompt.image_of[start:end]
    )
    parts = {k: getattr(one.seen, k)[kept] for k in ("hidden", "final", "embeddings")}
    seen = replace(one.seen, **parts)
    whole = one.artifact
    parts = {k: getattr(whole, k)[kept] for k in ("tokens", "image_of", "supervised", "final")}
    artifact = replace(whole, **parts, taps=seen.hidden)
    return Recorded(prompt, one.answer, seen, artifact)


# -- the definitions, in plain loops ---------------------------------------------------------


def norm_of(x, norm):
    if isinstance(norm, nn.RMSNorm):
        return x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt() * norm.weight.double()
    return normed(x, norm)


def linear(x, layer):
    bias = 0 if layer.bias is None else layer.bias.double()
    return x @ layer.weight.double().T + bias


def heads_of(rows, norm, positions, width):
    """Each head's rows with their positions in."""
    parts = rows.split(width, -1)
    return [turned(p if norm is None else norm_of(p, norm), positions) for p in parts]


def by_definition(drafter, features, root):
    """States of the coming positions, from the tapped layers of all positions before the root."""
    network, config = drafter.network, drafter.config
    shape, m = network.shape, len(features)
    context = norm_of(linear(features.double(), network.fuse), network.context_norm)
    embedded = drafter.target.model.get_input_embeddings().weight[root].double()
    n = config.ahead + (not config.from_root)
    x = torch.stack([embedded, *[network.mask.double()] * (n - 1)])
    old, new = torch.arange(m), torch.arange(m, m + n)
    width, groups = shape.head_width, shape.kv_heads
    cuts = [shape.heads * width, groups * width, groups * width]
    for layer in network.blocks:
        q, k, v = linear(norm_of(x, layer.attention_norm), layer.qkv).split(cuts, -1)
        _, k_old, v_old = linear(context, layer.qkv).split(cuts, -1)
        queries = heads_of(q, layer.query_norm, new, width)
        keys = heads_of(k, layer.key_norm, new, width)
        keys_old = heads_of(k_old, layer.key_norm, old, width)
        values, values_old = v.split(width, -1), v_old.split(width, -1)
        rows = []
        for i in range(n):
            read = []
            for h in range(shape.heads):
                g = h * groups // shape.heads
                upto = i + 1 if config.causal else n
                own = torch.cat([keys_old[g], keys[g][:upto]])
                law = (own @ queries[h][i] / width**0.5).softmax(-1)
                read.append(law @ torch.cat([values_old[g], values[g][:upto]]))
            rows.append(torch.cat(read))
        x = x + linear(torch.stack(rows), layer.out)
        gate, up = linear(norm_of(x, layer.inner_norm), layer.gate_up).chunk(2, -1)
        x = x + linear(gate * gate.sigmoid() * up, layer.down)
    return norm_of(x[n - config.ahead :], network.norm)


def law_after(drafter, state, token):
    """Logits of a position whose state is given, after a token."""
    network = drafter.network
    logits = state @ drafter.target.model.lm_head.weight.double().T
    if drafter.config.rank:
        w1, w2 = network.markov_embed.weight.double(), network.markov_head.weight.double()
        logits = logits + w2 @ w1[token]
    return logits


# -- ours against them -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize("count", [0, 5])
@torch.no_grad()
def test_a_pass_equals_the_definition(target, one, kind, count):
    drafter = block(target, **kind)
    state, root = read_on(drafter, one, count), one.answer[count]
    made = drafter._states(state, root)
    n = len(one.prompt.tokens) + count
    assert state.position == n
    wanted = by_definition(drafter, one.seen.hidden[:n].flatten(1), root)
    torch.testing.assert_close(made.double(), wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@pytest.mark.parametrize("where", ["inside", "first", "last", "alone"])
@torch.no_grad()
def test_training_meets_the_states_of_decoding(target, one, kind, where):
    drafter = block(target, **kind)
    batch = [shortened(one.artifact)]
    one = placed(one, where)
    batch.append(one.artifact)
    slots = collate(batch, target, drafter._taps_of, text_only=False, max_bases=0)
    met = drafter.network.leave(drafter._trained(slots))[1]
    first = int(slots.answer[1].long().argmax())
    for count in (0, 5, 22):  # the last block reaches beyond the answer
        row = int((slots.bases[1] == first + count).nonzero())
        decoded = drafter._states(read_on(drafter, one, count), one.answer[count])
        torch.testing.assert_close(met[row], decoded, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@torch.no_grad()
def test_the_tree_is_the_likeliest_by_the_definition(target, one, kind):
    drafter = block(target, **kind, candidates=10_000, width=10_000, depth=2)
    root, n = one.answer[0], len(one.prompt.tokens)
    tree = drafter.propose(read_on(drafter, one, 0), root, Budget(depth=2, nodes=20))
    tree.check()
    states = by_definition(drafter, one.seen.hidden[:n].flatten(1), root)
    banned = sorted(target.banned_ids)

    def law(k, token):
        logits = law_after(drafter, states[k], token)
        logits[banned] = float("-inf")
        return logits.log_softmax(-1).tolist()

    joint = {(a,): p for a, p in enumerate(law(0, root))}
    for (a,), above in list(joint.items()):
        joint |= {(a, b): above + p for b, p in enumerate(law(1, a))}
    best = sorted(joint, key=joint.get, reverse=True)[:20]
    found = [()]
    for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
        found.append((*found[parent], token))
    assert found[1:] == best
    wanted = torch.tensor([math.exp(joint[path]) for path in best])
    torch.testing.assert_close(tree.scores[1:], wanted, atol=1e-6, rtol=1e-3)


@torch.no_grad()
def test_steps_go_to_candidates_and_leave_the_mass_of_others_as_the_pass_has_it(target):
    drafter = block(target, candidates=5, width=3)
    network = drafter.network
    laws = torch.randn(4, target.vocab_size).log_softmax(-1)
    trellis = drafter._trellis(70, laws)
    likely, tokens = laws.topk(5)
    assert torch.equal(trellis.tokens, tokens)
    for k in range(4):
        for i in range(5):
            before = 70 if k == 0 else int(tokens[k - 1, i])
            added = network.markov_head.weight[tokens[k]] @ network.markov_embed.weight[before]
            law = (likely[k] + added).softmax(-1) * likely[k].exp().sum()
            gains, steps = law.log().topk(3)
            torch.testing.assert_close(trellis.gains[k, i], gains, atol=1e-5, rtol=1e-4)
            assert torch.equal(trellis.steps[k, i], steps)


@pytest.mark.parametrize("kind", KINDS, ids=NAMES)
@torch.no_grad()
def test_the_loss_equals_the_definition(target, one, kind):
    drafter = block(target, **kind, max_bases=0, gamma=2.0)
    artifact = shortened(one.artifact, 14)
    tokens, taps = artifact.tokens.tolist(), artifact.taps.flatten(1)
    head = target.model.lm_head.weight.double()
    total = weights = 0.0
    hits = [[] for _ in range(4)]
    for at in range(len(one.prompt.tokens), len(tokens) - 1):  # where a root stands
        states = by_definition(drafter, taps[:at], tokens[at])
        for k in range(min(4, len(tokens) - 1 - at)):
            p = (artifact.final[at + k].double() @ head.T).softmax(-1)
            log_q = law_after(drafter, states[k], tokens[at + k]).log_softmax(-1)
            total -= math.exp(-k / 2.0) * float(p @ log_q)
            weights += math.exp(-k / 2.0)
            hits[k].append(float(log_q.argmax() == p.argmax()))
    made = drafter.loss([artifact], 0.0)
    assert float(made.total) == pytest.approx(total / weights, rel=1e-4)
    for k in range(4):
        mean = sum(hits[k]) / len(hits[k])
        assert float(made.parts[f"agree_{k + 1}"]) == pytest.approx(mean)


# -- training --------------------------------------------------------------------------------


def test_every_weight_learns(target, one):
    for kind in KINDS:
        drafter = block(target, **kind)
        drafter.loss([one.artifact], 0.0).total.backward()
        for name, weight in drafter.network.named_parameters():
            assert weight.grad is not None and float(weight.grad.abs().max()) > 0, (kind, name)


def test_loss_does_not_depend_on_padding(target, one):
    drafter = block(target)
    short = shortened(one.artifact)
    with torch.no_grad():
        alone, long = (float(drafter.loss([a], 0.0).total) for a in (short, one.artifact))
        twice = float(drafter.loss([short, short], 0.0).total)
        together = float(drafter.loss([one.artifact, short], 0.0).total)
    assert twice == pytest.approx(alone, rel=1e-5)
    assert min(alone, long) - 1e-4 <= together <= max(alone, long) + 1e-4


def test_an_answer_of_one_token_gives_no_signal_and_no_nan(target, one):
    check_no_signal(block(target), one)


def test_a_learned_answer_is_accepted_and_comes_back_from_disk(target, one, tmp_path):
    check_learning(lambda: block(target), target, one, tmp_path / "d")


def test_artifacts_without_the_layers_say_how_to_record_them(target, tmp_path):
    talk = (Message("user", (tiny.picture(), "say")), Message("assistant", ("red circle",)))
    examples = [Example("e", "a", lambda: talk)]
    store = record(target, examples, tmp_path / "a", answers="reference", taps=(1, 3))
    drafter = block(target)
    for use in (lambda: drafter.survey(store.all), lambda: drafter.loss([store[0]], 0.0)):
        with pytest.raises(BadArtifact, match=r"block .*lacks \[2\].*record --taps 1,2,3"):
            use()
    block(target, taps=(1, 3)).survey(store.all)


# -- decoding --------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
@pytest.mark.parametrize(
    "said",
    [("what is it?",), (tiny.picture(), "what is it?"), ("what is it?", tiny.picture()),
     (tiny.picture(), "or", tiny.picture(1))],
    ids=["no picture", "first", "last", "two"],
)  # fmt: skip
def test_the_text_is_plain_decodings_wherever_pictures_stand(target, sampling, said):
    asked = Request(messages=(Message("user", said),), max_new_tokens=30, sampling=sampling)
    plain = generate(target, load_drafter("plain", target), asked)
    drafter = block(target)
    assert generate(target, drafter, asked).token_ids == plain.token_ids
    drafter.propose = backwards(drafter.propose)
    assert generate(target, drafter, asked).token_ids == plain.token_ids


@torch.no_grad()
def test_observing_computes_nothing_and_a_pass_reads_what_was_kept_once(target, one):
    drafter = block(target)
    state = drafter.start(one.prompt, one.prefill, one.answer[0])
    n = len(one.prompt.tokens)
    seen = Forward(one.seen.logits[-1:].expand(3, -1), hidden=one.seen.hidden[n : n + 3])
    drafter.observe(state, Verification([0, 1, 2], one.answer[1:4]), seen)
    assert state.pending[0].data_ptr() == seen.hidden.data_ptr()
    assert (state.cache.length, state.position) == (n, n + 3)
    budget = Budget(depth=4, nodes=12)
    trees = [drafter.propose(state, one.answer[3], budget) for _ in "ab"]
    assert state.cache.length == state.cache.stable == n + 3 and not state.pending
    assert torch.equal(trees[0].tokens, trees[1].tokens)


@torch.no_grad()
def test_a_small_budget_does_not_change_the_pass(target, one):
    drafter = block(target, width=2)  # all of its nodes are in the budget
    state = drafter.start(one.prompt, one.prefill, one.answer[0])
    deep = drafter.propose(state, one.answer[0], Budget(depth=4, nodes=100))
    flat = drafter.propose(state, one.answer[0], Budget(depth=1, nodes=100))
    assert int(flat.depth.max()) == 1 and int(deep.depth.max()) == 4
    children = deep.parents == 0
    assert torch.equal(deep.tokens[children], flat.tokens[1:])
    torch.testing.assert_close(deep.scores[children], flat.scores[1:])


def test_without_shipped_weights_it_says_how_to_train(target):
    with pytest.raises(BadArtifact, match="varifocal train --drafter block"):
        load_drafter("block", target)


@pytest.mark.parametrize(
    "options",
    [{"heads": 5}, {"blocks": 0}, {"ahead": 0}, {"candidates": 0}, {"rank": -1}, {"gamma": 0.0},
     {"max_bases": -1}, {"taps": (3, 2, 1)}, {"taps": (1, 2, 9)}, {"depth": 5}],
)  # fmt: skip
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        block(target, **options)
