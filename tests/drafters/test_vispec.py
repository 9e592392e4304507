"""ViSpec: what stands for a picture, what is beside a state, and that training meets decoding."""

import math
from dataclasses import replace

import pytest
import tiny
import torch
from taught import (
    attended,
    check_any_order,
    check_learning,
    check_no_signal,
    check_padding,
    drafted_twice,
    normed,
    recorded,
    shortened,
    unrolled_states,
)
from torch import nn

from varifocal.drafters import load_drafter
from varifocal.drafters._blocks import rotation_at
from varifocal.drafters._recurrence import run_blocks
from varifocal.drafters._unroll import collate
from varifocal.drafters.vispec import VispecDrafter, _Beside, rows_of
from varifocal.errors import BadArtifact, BadOption
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.sampling import Sampling
from varifocal.target import Forward

OURS = {"inner": 64, "nodes": 12}
PUBLISHED = {"blocks": 1, "bare": True, "first_norm": False, "join_bias": True, "norms": "rms",
             "bias": True, "unroll": 2}  # fmt: skip
SHARED = {"kv_heads": 2, "bias": True, "num_queries": 4}


@pytest.fixture(scope="module")
def two(target):
    return recorded(target, pictures=2)


@pytest.fixture(scope="module")
def none(target):
    return recorded(target, pictures=0)


def vispec(target, **options):
    """With a picture's vector that does something, which it does not to begin with."""
    torch.manual_seed(0)
    drafter = VispecDrafter(target, VispecDrafter.Config(**{**OURS, **options}))
    for layer in (drafter.network.img_fc_state, drafter.network.img_fc_global):
        for weight in layer.parameters():
            nn.init.normal_(weight, std=0.3)
    return drafter


# -- the definitions, in plain loops and float64 -------------------------------------------------


def by_norm(x, norm):
    if isinstance(norm, nn.Identity):
        return x.double()
    if isinstance(norm, nn.LayerNorm):
        return normed(x, norm)
    return x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * norm.weight


def through(x, layer):
    made = x.double() @ layer.weight.double().T
    return made if layer.bias is None else made + layer.bias.double()


def adapted(network, picture):
    """Query by query and head by head: softmax(q k / sqrt(dh)) v of the picture's embeddings."""
    adaptor, shape = network.adaptor, network.shape
    made = through(by_norm(picture, adaptor.norm), adaptor.kv)
    keys, values = made.unflatten(-1, (2, shape.kv_heads, shape.head_width)).unbind(1)
    outputs = []
    for query in adaptor.queries.double():
        heads = []
        for head in range(shape.heads):
            group = head * shape.kv_heads // shape.heads
            law = (keys[:, group] @ query[head] / math.sqrt(shape.head_width)).softmax(0)
            heads.append(law @ values[:, group])
        outputs.append(through(torch.cat(heads), adaptor.out))
    return outputs


def entered(network, feature, token, g):
    halves = [network.img_fc_state.weight, network.img_fc_global.weight]
    state = torch.cat(halves, -1).double() @ torch.cat([feature.double(), g])
    if network.img_fc_global.bias is not None:
        state = state + network.img_fc_global.bias.double()
    both = [by_norm(state, network.feature_norm), by_norm(token, network.token_norm)]
    return through(torch.cat(both), network.join)


def prompt_rows(drafter, prompt, seen, root):
    """Rows of the first block with their positions, and the g of what comes next."""
    network, count = drafter.network, drafter.config.num_queries
    size, images = len(prompt.tokens), prompt.image_of.tolist()
    tokens = [*seen.embeddings, drafter.target.embed(torch.tensor(root))]
    rows, g, t = [], torch.zeros(drafter.target.hidden_size).double(), 0
    while t <= size:
        if t == size or images[t] < 0:
            if t:
                rows.append((entered(network, seen.final[t - 1], tokens[t], g), t - 1))
            t += 1
            continue
        end = t
        while end < size and images[end] == images[t]:
            end += 1
        *outputs, g = adapted(network, seen.embeddings[t:end])
        for k, output in enumerate(outputs):
            slot = end - 1 - (count - 1) + k
            if slot >= max(t - 1, 0):
                rows.append((output, slot))
        t = end
    return rows, g


def last_state(network, rows):
    x, positions = torch.stack([row for row, _ in rows]), torch.tensor([p for _, p in rows])
    shape = network.shape
    for block in network.blocks:
        made = through(by_norm(x, block.attention_norm), block.qkv)
        q, k, v = made.split(
            [n * shape.head_width for n in (shape.heads, *2 * [shape.kv_heads])], -1
        )
        k, v = (
            y.unflatten(-1, (shape.kv_heads, -1))
            .repeat_interleave(shape.heads // shape.kv_heads, 1)
            .flatten(1)
            for y in (k, v)
        )
        x = x + through(attended(q, k, v, shape.heads, positions), block.out)
        gate, up = through(by_norm(x, block.inner_norm), block.gate_up).chunk(2, -1)
        x = x + through(gate * gate.sigmoid() * up, block.down)
    return by_norm(x[-1], network.norm)


def naive_states(drafter, prompt, seen, root, drafted):
    """The root's state, and the one after each drafted token."""
    rows, g = prompt_rows(drafter, prompt, seen, root)
    states = [last_state(drafter.network, rows)]
    for step, token in enumerate(drafted):
        e = drafter.target.embed(torch.tensor(token))
        row = entered(drafter.network, states[-1], e, g)
        rows.append((row, len(prompt.tokens) + step))
        states.append(last_state(drafter.network, rows))
    return states


# -- decoding, step by step ----------------------------------------------------------------------


@torch.no_grad()
def decoded(drafter, prompt, seen, root, drafted):
    """The same states as decoding makes them."""
    state = drafter.start(prompt, seen, root)
    network = _Beside(drafter.network, state.shift)
    states = [state.top[0]]
    for step, token in enumerate(drafted):
        x = network.enter(states[-1][None], drafter.target.embed(torch.tensor([token])))
        turn = rotation_at(len(prompt.tokens) + step, network.shape, x.dtype, x.device)
        sees = torch.ones(1, 1 + step, dtype=torch.bool)
        states.append(run_blocks(network, x, turn, state.cache, sees)[0])
        state.cache.advance(1)
    return states


def only(recording, kept):
    """The prompt and what was seen of it, with these tokens alone."""
    kept = torch.as_tensor(kept)
    prompt, seen = recording.prompt, recording.prefill
    kept_prompt = replace(prompt, tokens=prompt.tokens[kept], image_of=prompt.image_of[kept])
    return kept_prompt, replace(
        seen, final=seen.final[kept], embeddings=seen.embeddings[kept], hidden=None
    )


def prompts(one, two, none):
    """Prompts with pictures at every kind of place."""
    image = one.prompt.image_of
    places = (image >= 0).nonzero()[:, 0].tolist()
    touching = two.prompt.image_of
    last_text = len(image) - 1
    seconds = (touching == 1).nonzero()[:, 0].tolist()
    between = [t for t in range(len(touching)) if touching[t] >= 0 or t < 3 or t > last_text]
    return {
        "amid text": only(one, range(len(image))),
        "first": only(one, range(places[0], len(image))),
        "last": only(one, range(places[-1] + 1)),
        "alone": only(one, places),
        "one slot": only(one, [0, 1, places[0], last_text]),
        "one slot, first": only(one, [places[0], last_text]),
        "two": only(two, range(len(touching))),
        "two sizes": only(two, [t for t in range(len(touching)) if t not in seconds[:7]]),
        "two that touch": only(two, between),
        "none": only(none, range(len(none.prompt.tokens))),
    }


@pytest.mark.parametrize("options", [OURS, PUBLISHED, SHARED], ids=["ours", "published", "shared"])
def test_states_and_law_equal_a_naive_reference(target, one, two, none, options):
    drafter = vispec(target, **options)
    head, (root, *drafted) = target.model.lm_head.weight.double(), one.answer[:3]
    for case, (prompt, seen) in prompts(one, two, none).items():
        with torch.no_grad():
            wanted = naive_states(drafter, prompt, seen, root, drafted)
            for met, state in zip(
                decoded(drafter, prompt, seen, root, drafted), wanted, strict=True
            ):
                torch.testing.assert_close(
                    met.double(), state, atol=2e-5, rtol=2e-5, msg=lambda m, c=case: f"{c}: {m}"
                )
                scored, _ = drafter._score(met[None], 0)
                allowed = [i for i in range(target.vocab_size) if i not in target.banned_ids]
                law = (state @ head.T)[allowed].log_softmax(-1)
                torch.testing.assert_close(scored[0, allowed].double(), law, atol=2e-3, rtol=1e-3)


def test_a_tree_holds_the_naive_reference_s_probabilities(target, two):
    drafter = vispec(target, width=2)
    root, head = two.answer[0], target.model.lm_head.weight.double()
    with torch.no_grad():
        state = drafter.start(two.prompt, two.prefill, root)
        tree = drafter.propose(state, root, Budget(depth=3, nodes=8))
        tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
        assert len(tree) == 9 and int(tree.depth.max()) == 3
        for node in range(1, len(tree)):
            path = [node]
            while parents[path[0]] > 0:
                path.insert(0, parents[path[0]])
            drafted = [tokens[n] for n in path]
            states = naive_states(drafter, two.prompt, two.prefill, root, drafted[:-1])
            laws = [(s @ head.T).index_fill(0, torch.tensor(sorted(target.banned_ids)), -math.inf)
                    .softmax(-1) for s in states]  # fmt: skip
            wanted = math.prod(float(law[t]) for law, t in zip(laws, drafted, strict=True))
            assert float(tree.scores[node]) == pytest.approx(wanted, rel=2e-3)


def test_rows_are_text_and_the_last_slots_of_each_picture():
    image_of = torch.tensor([-1, 0, 0, 0, -1, 1, 2, 2, -1])
    rows = rows_of(image_of, 3)  # two rows a picture, of which the second has room for one
    assert rows.slots.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert rows.is_visual.tolist() == [True, True, False, True, True, True, False]
    assert rows.outputs.tolist() == [0, 1, 4, 6, 7]
    assert rows.before.tolist() == [1, 1, 1, 2, 3, 3, 3]
    assert rows.sizes == [3, 1, 2]
    rows = rows_of(image_of, 1)
    assert (rows.slots.tolist(), rows.outputs.tolist()) == ([3, 7], [])
    assert rows_of(torch.tensor([0, 0, -1]), 2).slots.tolist() == [0, 1]
    assert rows_of(torch.tensor([-1, -1]), 2).before.tolist() == [0]


def test_a_later_picture_changes_no_row_before_it(target, two):
    drafter = vispec(target)
    prompt, second = two.prompt, int((two.prompt.image_of == 1).nonzero()[0])
    embeddings = two.prefill.embeddings.clone()
    embeddings[prompt.image_of == 1] += 1.0
    with torch.no_grad():
        state = drafter.start(prompt, two.prefill, two.answer[0])
        other = drafter.start(prompt, replace(two.prefill, embeddings=embeddings), two.answer[0])
    rows = rows_of(torch.cat([prompt.image_of, torch.tensor([-1])]), 2)
    early = int((rows.slots < second - 1).sum())
    for buffer, spoilt in zip(state.cache.buffers, other.cache.buffers, strict=True):
        assert torch.equal(buffer[:, :, :early], spoilt[:, :, :early])
        assert not torch.equal(buffer[:, :, early : early + 1], spoilt[:, :, early : early + 1])
    assert not torch.equal(state.shift, other.shift)


# -- training ------------------------------------------------------------------------------------


def joined(first, second):
    """Two recordings as one conversation, in which an answer stands before the second picture."""
    a, b = first.artifact, second.artifact
    later = torch.where(b.image_of < 0, -1, b.image_of + 1 + int(a.image_of.max()))
    parts = {k: torch.cat([getattr(a, k), getattr(b, k)])
             for k in ("tokens", "supervised", "final", "visual")}  # fmt: skip
    return replace(a, image_of=torch.cat([a.image_of, later]), taps=None, **parts)


@pytest.mark.parametrize("num_queries", [1, 2, 4])
def test_training_meets_the_states_of_decoding(target, one, two, none, num_queries):
    drafter = vispec(target, num_queries=num_queries, max_bases=0)
    recordings = [one, two, none, one]
    batch = [shortened(one.artifact), two.artifact, none.artifact, joined(one, two)]
    rows = [rows_of(item.image_of, num_queries) for item in batch]
    slots = collate(batch, target, lambda i: i.final, text_only=False, max_bases=0,
                    kept=[r.slots for r in rows])  # fmt: skip
    for sample, recording in enumerate(recordings):
        with torch.no_grad():
            met = unrolled_states(drafter._chain(batch, rows, slots), slots, sample, 4)
        root, *said = recording.answer[:5]
        states = decoded(drafter, recording.prompt, recording.prefill, root, said)
        for trained, state in zip(met, states, strict=True):
            torch.testing.assert_close(trained, state, atol=1e-5, rtol=1e-4)


def test_the_loss_is_the_weighted_mean_over_drafts_from_every_answer_token(target):
    recordings = [recorded(target, tokens=6), recorded(target, pictures=2, tokens=4)]
    weights = {"regression": 0.5, "classification": 0.8, "ranking": 0.3, "distance": 0.7}
    drafter = vispec(target, unroll=3, max_bases=0, gamma_w=1.5, **weights)
    sums, count = dict.fromkeys(weights, 0.0), 0.0
    for one in recordings:
        n, final = len(one.prompt.tokens), one.seen.final
        for a in range(len(one.answer) - 1):
            ids = torch.cat([one.prompt.tokens, torch.tensor(one.answer[:a], dtype=torch.long)])
            image_of = torch.cat([one.prompt.image_of, torch.full((a,), -1)])
            prompt = replace(one.prompt, tokens=ids, image_of=image_of)
            seen = Forward(
                one.seen.logits, final=final[: n + a], embeddings=one.seen.embeddings[: n + a]
            )
            drafted = one.answer[a + 1 : a + 3]
            steps = min(3, len(one.answer) - 1 - a)
            states = decoded(drafter, prompt, seen, one.answer[a], drafted)[:steps]
            for step, h in enumerate(states):
                weight = math.exp(-step / 1.5)
                wanted = final[n + a + step]
                with torch.no_grad():
                    p = target.head(wanted).double().softmax(-1)
                    q = target.head(h).double().softmax(-1)
                error = (h - wanted).double().abs()
                smooth = torch.where(error < 1, 0.5 * error**2, error - 0.5)
                order = sorted(range(len(p)), key=lambda i: -float(p[i]))[:10]
                ranks = [
                    -math.log(q[i] / sum(q[j] for j in order[k:])) for k, i in enumerate(order)
                ]
                terms = {
                    "regression": float(smooth.mean()),
                    "classification": -sum(float(x * y.log()) for x, y in zip(p, q, strict=True)),
                    "ranking": sum(ranks),
                    "distance": sum(abs(float(x - y)) for x, y in zip(p, q, strict=True)),
                }
                sums = {name: sums[name] + weight * value for name, value in terms.items()}
                count += weight
    with torch.no_grad():
        loss = drafter.loss([one.artifact for one in recordings], 0.0)
    for name in weights:
        assert float(loss.parts[name]) == pytest.approx(sums[name] / count, rel=1e-3), name
    total = sum(weights[name] * sums[name] / count for name in weights)
    assert float(loss.total) == pytest.approx(total, rel=1e-3)


def test_terms_without_weight_are_not_computed(target, one):
    parts = vispec(target).loss([one.artifact], 0.0).parts
    assert {"regression", "classification"} <= set(parts)
    assert not {"ranking", "distance"} & set(parts)


def test_to_begin_with_pictures_add_nothing_to_states(target, one):
    network = VispecDrafter(target, VispecDrafter.Config(**OURS)).network
    feature, token = torch.randn(2, 3, target.hidden_size)
    look = network.look([one.artifact.visual])
    with torch.no_grad():
        seen = network.beside(feature, token, look.shifts[-1])
        torch.testing.assert_close(seen, network.enter(feature, token))


def test_every_weight_learns(target, one, two, none):
    drafter = vispec(target, **{**PUBLISHED, "num_queries": 3})
    drafter.loss([one.artifact, two.artifact, none.artifact], 0.0).total.backward()
    for name, weight in drafter.network.named_parameters():
        assert weight.grad is not None and bool(weight.grad.isfinite().all()), name
        assert bool(weight.grad.any()), name


def test_loss_does_not_depend_on_padding(target, one, none):
    longer = (one.artifact, none.artifact)
    parts = ("regression", "classification")
    check_padding(vispec(target), shortened(one.artifact), *longer, parts=parts)


def test_an_answer_of_one_token_gives_no_signal_and_no_nan(target, one):
    check_no_signal(vispec(target), one)


def test_a_learned_answer_is_accepted_and_comes_back_from_disk(target, one, tmp_path):
    check_learning(lambda: vispec(target), target, one, tmp_path / "d")


# -- requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
@pytest.mark.parametrize("pictures", [0, 2])
def test_the_text_is_plain_decodings_for_any_order_of_siblings(target, sampling, pictures):
    shown = [tiny.picture(k) for k in range(pictures)]
    asked = ask("what is it?", shown, max_new_tokens=16, sampling=sampling)
    check_any_order(vispec(target), target, asked)


def test_a_draft_leaves_the_cache_as_it_was(target, one):
    state = drafted_twice(vispec(target), one)
    assert state.cache.length == state.cache.stable
    assert state.cache.stable == int((~one.prompt.is_image[1:]).sum()) + 1 + 1  # and one row


def test_without_shipped_weights_it_says_how_to_train(target):
    with pytest.raises(BadArtifact, match="varifocal train --drafter vispec"):
        load_drafter("vispec", target)


@pytest.mark.parametrize("options", [{"num_queries": 0}, {"heads": 5}, {"kv_heads": 3}])
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        vispec(target, **options)
