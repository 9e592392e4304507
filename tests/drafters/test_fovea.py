"""FOVEA: retrieval, correction of the scoring state alone, training that meets decoding."""

import math
from dataclasses import replace

import pytest
import tiny
import torch

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters._blocks import rotation_at
from varifocal.drafters._fovea_loss import _collate
from varifocal.drafters._recurrence import run_blocks
from varifocal.drafters._unroll import Chain
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.errors import BadOption
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Forward, Want
from varifocal.training.artifacts import Artifact

SMALL = {"inner": 64, "memory_width": 32, "bottleneck": 16, "nodes": 12}
PAPER = {
    "blocks": 2,
    "entry": "join",
    "features": "final",
    "evidence": "projected",
    "max_correction_depth": 1,
    "beta_mid": 0.1,
    "gamma_w": 1.0,
}
KINDS = pytest.mark.parametrize("kind", [{}, PAPER], ids=["ours", "paper"])
BY_TOKEN = ("tokens", "image_of", "supervised", "final", "mid", "taps")


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target()


def fovea(target, **options):
    torch.manual_seed(0)
    made = FoveaDrafter(target, FoveaDrafter.Config(**{**SMALL, **options}))
    torch.nn.init.normal_(made.network.visual.second.weight, std=0.3)  # a correction that shows
    return made


@pytest.fixture(scope="module")
def recorded(target):
    """A prompt with its plain answer, and the true features of the whole."""
    prompt = target.encode(ask("what is it?", [tiny.picture()]))
    answer = generate(
        target,
        load_drafter("plain", target),
        ask("what is it?", [tiny.picture()], max_new_tokens=24),
    ).token_ids
    tokens = torch.cat([prompt.tokens, torch.tensor(answer)])
    image_of = torch.cat([prompt.image_of, torch.full((len(answer),), -1)])
    whole = replace(prompt, tokens=tokens, image_of=image_of)
    with torch.no_grad():
        _, seen = target.prefill(whole, Want(final=True, embeddings=True, layers=(1, 2, 3)))
    supervised = torch.arange(len(tokens)) >= len(prompt.tokens)
    artifact = Artifact(
        id="a",
        family="x",
        tokens=tokens,
        image_of=image_of,
        supervised=supervised,
        final=seen.final,
        visual=seen.embeddings[whole.is_image],
        mid=seen.final,
        taps=seen.hidden,
        tap_layers=(1, 2, 3),
    )
    return prompt, answer, seen, artifact


def started(drafter, recorded):
    prompt, answer, seen, _ = recorded
    n = len(prompt.tokens)
    read = Forward(
        seen.logits,
        hidden=seen.hidden[:n],
        final=seen.final[:n],
        embeddings=seen.embeddings[:n],
    )
    with torch.no_grad():
        return drafter.start(prompt, read, answer[0])


@KINDS
@pytest.mark.parametrize("prefix", ["text_only", "full"])
def test_training_meets_the_states_of_decoding(target, recorded, prefix, kind):
    drafter = fovea(target, prefix=prefix, **kind)
    prompt, answer, _, artifact = recorded
    short = replace(artifact, **{k: getattr(artifact, k)[:-9] for k in BY_TOKEN})
    state = started(drafter, recorded)
    with torch.no_grad():
        slots = _collate([short, artifact], target, drafter.config, drafter.want.layers)
        chain = Chain(drafter.network, slots)
        base = int(slots.answer[1].long().argmax())
        row = int((slots.bases[1] == base).nonzero())
        torch.testing.assert_close(chain.h[1, row], state.top[0], atol=1e-5, rtol=1e-4)
        h = state.top
        for step in range(4):
            chain.advance(step)
            x = drafter.network.enter(h, target.embed(torch.tensor([answer[1 + step]])))
            place = rotation_at(len(prompt.tokens) + step, drafter.network.shape, x.dtype, x.device)
            sees = torch.ones(1, 1 + step, dtype=torch.bool)
            h = run_blocks(drafter.network, x, place, state.cache, sees)
            state.cache.advance(1)
            torch.testing.assert_close(chain.h[1, row], h[0], atol=1e-5, rtol=1e-4)


@KINDS
def test_the_correction_changes_no_state_and_no_cache_entry(target, recorded, kind):
    _, answer, _, _ = recorded
    states = []
    for correction in ("visual", "none"):
        drafter = fovea(target, correction=correction, **kind)
        state = started(drafter, recorded)
        with torch.no_grad():
            tree = drafter.propose(state, answer[0], Budget(depth=4, nodes=12))
        states.append((state, tree))
    (seeing, tree), (blind, other) = states
    assert not torch.equal(tree.tokens, other.tokens)  # the correction does something ...
    assert torch.equal(seeing.top, blind.top)  # ... to scores only
    assert seeing.cache.length == blind.cache.length
    for a, b in zip(seeing.cache.buffers, blind.cache.buffers, strict=True):
        n = seeing.cache.length
        assert torch.equal(a[..., :n, :], b[..., :n, :])


@KINDS
def test_another_picture_changes_what_is_drafted(target, recorded, kind):
    drafter = fovea(target, **kind)
    state = started(drafter, recorded)
    other = replace(
        state, memory=drafter.network.visual.remember(torch.randn(114, 64 if kind else 192))
    )
    with torch.no_grad():
        a, b = (drafter.propose(s, 20, Budget(depth=3, nodes=12)) for s in (state, other))
    assert not torch.equal(a.tokens, b.tokens)


def test_the_control_reads_the_named_picture_instead(target, tmp_path):
    asked = ask("what is it?", [tiny.picture(1)], max_new_tokens=12)
    tiny.picture(2).save(tmp_path / "other.png")
    drafter = fovea(target, memory_from=str(tmp_path / "other.png"))
    wrong = ask("what is it?", [tiny.picture(2)], max_new_tokens=12)
    memories = []
    for one, made in ((drafter, asked), (fovea(target), wrong)):
        prompt = target.encode(made)
        with torch.no_grad():
            memories.append(one.start(prompt, target.prefill(prompt, one.want)[1], 20).memory)
    torch.testing.assert_close(memories[0].values, memories[1].values)


def test_depths_beyond_the_limit_are_not_corrected(target, recorded):
    drafter = fovea(target, max_correction_depth=0)
    state = started(drafter, recorded)
    with torch.no_grad():
        first, looked = drafter._score(state.top, 0, state.memory)
        second, none = drafter._score(state.top, 1, state.memory)
        plain, _ = fovea(target, correction="none")._score(state.top, 0, state.memory)
    assert looked is not None and none is None
    assert torch.equal(second, plain) and not torch.equal(first, plain)


def test_top_k_reads_the_best_entries_renormalised(target):
    visual = fovea(target, top_k=5).network.visual
    h, x = torch.randn(3, 64), torch.randn(40, 192)
    with torch.no_grad():
        memory = visual.remember(x)
        look, width = visual.look, visual.settings.memory_width
        state = visual.state_norm(h)
        query = (state + visual.depth.weight[2]) @ look.weight[:width].T + look.bias[:width]
        scores = query @ memory.keys.T
        best = scores.topk(5).indices
        law = scores.gather(1, best).softmax(-1)
        wanted = torch.stack([law[i] @ memory.values[best[i]] for i in range(3)])
        read, evidence = visual._read(look(state)[:, :width], 2, memory)
    torch.testing.assert_close(read, wanted, atol=1e-6, rtol=1e-5)
    assert torch.equal(evidence.entries, best)


def normed(row, norm):
    """LayerNorm of a list of numbers, spelt out."""
    mean = sum(row) / len(row)
    spread = (sum((v - mean) ** 2 for v in row) / len(row) + norm.eps) ** 0.5
    return [w * (v - mean) / spread for w, v in zip(norm.weight.tolist(), row, strict=True)]


def times(rows, row):
    return [sum(a * b for a, b in zip(line, row, strict=True)) for line in rows]


@pytest.mark.parametrize("depth", [0, 3, 40])
def test_the_corrected_state_equals_the_definition(target, depth):
    """[FOVEA, Eq. 4-9] in plain numbers: memory, query, selection, read-out, gated residual."""
    visual = fovea(target, top_k=3).network.visual
    torch.nn.init.normal_(visual.depth.weight, std=0.5)
    h, x = torch.randn(2, 64), torch.randn(7, 192)
    with torch.no_grad():
        made, evidence = visual(h, depth, visual.remember(x))
    width, inner = visual.settings.memory_width, visual.settings.bottleneck
    look, bias = visual.look.weight.tolist(), visual.look.bias.tolist()
    end = visual.second.bias.tolist()
    entries = [normed(row, visual.memory_norm) for row in x.tolist()]
    keys = [times(visual.memory_keys.weight.tolist(), row) for row in entries]
    values = [times(visual.memory_values.weight.tolist(), row) for row in entries]
    step = visual.depth.weight.tolist()[min(depth, visual.settings.unroll - 1)]
    for row, state in enumerate(h.tolist()):
        own = normed(state, visual.state_norm)
        asked = times(look[:width], [a + b for a, b in zip(own, step, strict=True)])
        query = [a + b for a, b in zip(asked, bias[:width], strict=True)]
        scores = [sum(a * b for a, b in zip(query, key, strict=True)) / width**0.5 for key in keys]
        best = sorted(range(7), key=lambda i: -scores[i])[:3]
        law = [math.exp(scores[i]) for i in best]
        read = [
            sum(p / sum(law) * values[i][k] for p, i in zip(law, best, strict=True))
            for k in range(inner + 64)
        ]
        first = [
            a + b + r for a, b, r in zip(times(look[width:], own), bias[width:], read, strict=True)
        ]
        hidden = [v / (1 + math.exp(-v)) for v in first[:inner]]
        change = times(visual.second.weight.tolist(), hidden)
        wanted = [
            state[k] + (change[k] + end[k]) / (1 + math.exp(-first[inner + k])) for k in range(64)
        ]
        assert evidence.entries[row].tolist() == best
        assert made[row].tolist() == pytest.approx(wanted, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_memory_is_matched_on_packed_keys_with_the_same_scores(target, dtype):
    visual = fovea(target).network.visual.to(dtype)
    query, x = torch.randn(6, 32, dtype=dtype), torch.randn(9000, 192, dtype=dtype)
    with torch.inference_mode():
        memory = visual.remember(x)
        assert memory.match is not None
        packed = visual._scores(query, 1, memory)
        plain = visual._scores(query, 1, replace(memory, match=None))
        assert visual.remember(x[:100]).match is None
    torch.testing.assert_close(packed, plain, atol=1e-6, rtol=1e-5 if dtype.itemsize == 4 else 0)


def test_mass_reads_the_fewest_entries_that_reach_rho(target):
    visual = fovea(target, select="mass", rho=0.5, k_min=2, k_max=9).network.visual
    scores = torch.randn(50, 30) * torch.linspace(0, 6, 50)[:, None]
    chosen, _ = visual._by_mass(scores)
    law = scores.softmax(-1).sort(descending=True).values.cumsum(-1)
    for row in range(50):
        needed = int((law[row] < 0.5).sum()) + 1
        assert int(torch.isfinite(chosen[row]).sum()) == min(max(needed, 2), 9)


@pytest.mark.parametrize("select", ["topk", "mass", "dense", "random", "static", "query_agnostic"])
def test_padding_of_the_memory_is_never_read(target, select):
    visual = fovea(target, select=select, top_k=4, k_min=2).network.visual
    query = torch.randn(2, 3, 32)
    x = torch.randn(2, 10, 192)
    valid = torch.ones(2, 10, dtype=torch.bool)
    valid[1, 6:] = False
    with torch.no_grad():
        memory = visual.remember(x, valid)
        spoilt = replace(memory, values=memory.values.masked_fill(~valid[..., None], 1e6))
        read, _ = visual._read(query, 0, spoilt)
    assert float(read.abs().max()) < 1e4


def test_a_request_without_pictures_is_drafted_too(target):
    asked = ask("no picture here", max_new_tokens=20)
    plain = generate(target, load_drafter("plain", target), asked)
    assert generate(target, fovea(target), asked).token_ids == plain.token_ids


def test_several_pictures_are_one_memory(target):
    asked = ask("compare", [tiny.picture(1), tiny.picture(2)], max_new_tokens=12)
    prompt = target.encode(asked)
    drafter = fovea(target)
    with torch.no_grad():
        _, seen = target.prefill(prompt, drafter.want)
        state = drafter.start(prompt, seen, 20)
    assert state.memory.size == 228
    plain = generate(target, load_drafter("plain", target), asked)
    assert generate(target, drafter, asked).token_ids == plain.token_ids


@KINDS
def test_loss_falls_and_the_target_stays_frozen(target, recorded, kind):
    drafter = fovea(target, **kind)
    artifact = recorded[3]
    optimizer = torch.optim.AdamW(drafter.network.parameters(), lr=3e-3)
    before = [p.clone() for p in target.model.parameters()]
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = drafter.loss([artifact], 0.0)
        loss.total.backward()
        optimizer.step()
        losses.append(float(loss.total.detach()))
    assert losses[-1] < 0.8 * losses[0]
    assert all(torch.equal(a, b) for a, b in zip(before, target.model.parameters(), strict=True))


@KINDS
def test_loss_does_not_depend_on_padding(target, recorded, kind):
    drafter = fovea(target, **kind)
    artifact = recorded[3]
    short = replace(artifact, **{k: getattr(artifact, k)[:-9] for k in BY_TOKEN})
    with torch.no_grad():
        together = drafter.loss([artifact, short], 0.0).parts
        alone = [drafter.loss([a], 0.0).parts for a in (artifact, short)]
    low, high = sorted(float(p["ce"]) for p in alone)
    assert low - 1e-4 <= float(together["ce"]) <= high + 1e-4
    with torch.no_grad():
        twice = drafter.loss([short, short], 0.0)
    torch.testing.assert_close(twice.parts["ce"], alone[1]["ce"])


def test_where_it_looked_is_told_only_if_asked(target, recorded):
    drafter = fovea(target)
    state = started(drafter, recorded)
    with torch.no_grad():
        silent = drafter.propose(state, 20, Budget(depth=3, nodes=12))
        telling = drafter.propose(state, 20, Budget(depth=3, nodes=12, looks=True))
    assert silent.evidence is None and telling.evidence.entries.shape == (len(telling), 16)
    assert torch.equal(silent.tokens, telling.tokens)


@pytest.mark.parametrize("kind", [{"features": "final"}, {"evidence": "projected"}])
def test_one_without_the_other_is_possible(target, recorded, kind):
    drafter = fovea(target, **kind)
    state = started(drafter, recorded)
    with torch.no_grad():
        assert len(drafter.propose(state, 20, Budget(depth=3, nodes=12))) == 13
    assert float(drafter.loss([recorded[3]], 0.0).total.detach()) > 0


def test_a_recording_without_its_layers_is_refused(target, recorded):
    from varifocal.errors import BadArtifact

    bare = replace(recorded[3], taps=None, tap_layers=())
    with pytest.raises(BadArtifact, match="--taps 1,2,3"):
        fovea(target).loss([bare], 0.0)
    assert float(fovea(target, **PAPER).loss([bare], 0.0).total.detach()) > 0


@pytest.mark.parametrize(
    "options", [{"heads": 5}, {"width": 0}, {"rho": 0.0}, {"k_min": 9, "k_max": 3}, {"nodes": 0}]
)
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption):
        fovea(target, **options)
