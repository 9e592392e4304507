"""EAGLE-3: three fused layers, a vocabulary of its own, and training that meets decoding."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from taught import (
    attended,
    backwards,
    check_learning,
    check_padding,
    decoded_states,
    normed,
    shortened,
    unrolled_states,
)

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters._unroll import Chain, Teacher, collate
from varifocal.drafters._weights import Card, load_trained, save_trained
from varifocal.drafters.eagle3 import Eagle3Drafter
from varifocal.errors import BadArtifact, BadOption
from varifocal.plan import Budget
from varifocal.request import Message, ask
from varifocal.sampling import Sampling
from varifocal.training._taps import three_taps
from varifocal.training.examples import Example
from varifocal.training.recorder import record
from varifocal.training.trainer import TrainConfig, train

CARD = Card(seed=0, steps=1)
TESTS = Path(__file__).parent.parent


def eagle3(target, **options):
    torch.manual_seed(0)
    return Eagle3Drafter(target, Eagle3Drafter.Config(**{"inner": 64, "nodes": 12, **options}))


def slots_of(drafter, batch):
    text_only = drafter.config.prefix == "text_only"
    return collate(batch, drafter.target, drafter._taps_of, text_only=text_only, max_bases=0)


def examples(count):
    talk = [
        (Message("user", (tiny.picture(k), f"say {k}")), Message("assistant", (f"red {k} circle",)))
        for k in range(count)
    ]
    return [Example(f"e{k}", "a", lambda k=k: talk[k]) for k in range(count)]


def test_layers_are_low_middle_and_high():
    assert three_taps(32) == (2, 16, 29)
    assert three_taps(28) == (2, 14, 25)
    assert three_taps(16) == (2, 8, 13)
    for few in range(3, 9):
        low, middle, high = three_taps(few)
        assert 1 <= low < middle < high <= few
    with pytest.raises(BadOption, match="target has 2"):
        three_taps(2)


@pytest.mark.parametrize("prefix", ["full", "text_only"])
@pytest.mark.parametrize("draft_vocab", [40, 32_000])
def test_training_meets_the_states_of_decoding(target, one, prefix, draft_vocab):
    drafter = eagle3(target, prefix=prefix, draft_vocab=draft_vocab)
    slots = slots_of(drafter, [shortened(one.artifact), one.artifact])
    met = unrolled_states(Chain(drafter.network, slots), slots, 1, 4)
    for trained, decoded in zip(met, decoded_states(drafter, one, 4), strict=True):
        torch.testing.assert_close(trained, decoded, atol=1e-5, rtol=1e-4)


def test_states_and_law_equal_a_naive_reference(target, one):
    drafter = eagle3(target, draft_vocab=40)
    network, block = drafter.network, drafter.network.blocks[0]
    with torch.no_grad():
        root, after = decoded_states(drafter, one, 1)
        table = target.model.get_input_embeddings().weight.double()
        following = torch.cat([one.prompt.tokens[1:], torch.tensor(one.answer[:2])])
        fused = one.prefill.hidden.double().flatten(1) @ network.fuse.weight.double().T
        states = [*fused]
        for step in (0, 1):  # the second time with the drafter's own state behind the prompt
            h = torch.stack(states)
            n = len(h)
            e = table[following[:n]]
            entered = [normed(e, block.token_norm), normed(h, block.state_norm)]
            made = torch.cat(entered, -1) @ block.qkv.weight.double().T
            read = attended(*made.chunk(3, -1), network.shape.heads, torch.arange(n))
            x = h + read @ block.out.weight.double().T
            gate, up = (normed(x, block.inner_norm) @ block.gate_up.weight.double().T).chunk(2, -1)
            x = x + (gate * gate.sigmoid() * up) @ block.down.weight.double().T
            torch.testing.assert_close((root, after)[step].double(), x[-1], atol=1e-5, rtol=1e-5)
            states.append(x[-1])
        law = (normed(x[-1:], network.out_norm) @ network.lm_head.weight.double().T)[0].softmax(-1)
        scored, _ = drafter._score(after[None], 1)
    torch.testing.assert_close(scored[0].double().exp(), law, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)])
@pytest.mark.parametrize("draft_vocab", [40, 32_000])
def test_the_text_is_plain_decodings_for_any_order_of_siblings(target, sampling, draft_vocab):
    asked = ask("what is it?", [tiny.picture()], max_new_tokens=30, sampling=sampling)
    plain = generate(target, load_drafter("plain", target), asked)
    drafter = eagle3(target, draft_vocab=draft_vocab)
    assert generate(target, drafter, asked).token_ids == plain.token_ids
    drafter.propose = backwards(drafter.propose)
    assert generate(target, drafter, asked).token_ids == plain.token_ids


def test_only_tokens_of_its_vocabulary_are_drafted(target, one):
    drafter = eagle3(target, draft_vocab=20)
    drafter.network.choose(torch.arange(100, 140, 2))
    with torch.no_grad():
        state = drafter.start(one.prompt, one.prefill, one.answer[0])
        tree = drafter.propose(state, one.answer[0], Budget(depth=4, nodes=30))
        scored, _ = drafter._score(state.top, 0)
    tree.check()
    assert len(tree) == 31 and set(tree.tokens[1:].tolist()) <= set(range(100, 140, 2))
    first = [i for i, p in enumerate(tree.parents.tolist()) if p == 0]
    best = scored[0].topk(6).indices * 2 + 100
    assert set(tree.tokens[first].tolist()) <= set(best.tolist())


def test_the_law_taught_is_the_targets_over_the_own_vocabulary(target, one):
    drafter = eagle3(target, draft_vocab=40)
    said = torch.tensor(one.answer)
    drafter.network.choose(torch.tensor(sorted({*range(50, 89), one.answer[5]})))
    slots = slots_of(drafter, [one.artifact])
    ids = drafter.vocabulary
    teacher = Teacher(target, slots.final, slots.answer, ids)
    with torch.no_grad():
        before = one.artifact.final[one.artifact.supervised.nonzero()[:, 0] - 1]
        law = target.head(before).softmax(-1)[:, ids]
    torch.testing.assert_close(teacher.p, law / law.sum(-1, keepdim=True), atol=1e-6, rtol=1e-4)
    assert teacher.known.tolist() == [token in set(ids.tolist()) for token in said.tolist()]
    assert 0 < int(teacher.known.sum()) < len(said)


def test_states_whose_token_it_lacks_do_not_count(target, one):
    drafter = eagle3(target, draft_vocab=8)
    strange = [i for i in range(5, 300) if i not in set(one.answer) | target.banned_ids][:8]
    drafter.network.choose(torch.tensor(strange))
    loss = drafter.loss([one.artifact], 0.0)
    assert float(loss.total.detach()) == 0.0 and loss.total.requires_grad
    loss.total.backward()
    assert all(bool(p.grad.isfinite().all()) for p in drafter.network.parameters())


def test_loss_does_not_depend_on_padding(target, one):
    check_padding(eagle3(target), shortened(one.artifact), one.artifact, parts=["ce"])


def test_a_learned_answer_is_accepted_and_comes_back_from_disk(target, one, tmp_path):
    check_learning(lambda: eagle3(target), target, one, tmp_path / "d")


@pytest.fixture(scope="module")
def folder(target, tmp_path_factory):
    """A drafter that the trainer made, with the tokens that the target says as its vocabulary."""
    root = tmp_path_factory.mktemp("eagle3")
    store = record(target, examples(4), root / "a", max_new_tokens=12, taps=(1, 2, 3))
    drafter = eagle3(target, draft_vocab=16)
    config = TrainConfig(steps=3, batch=4, rate=1e-3)
    scores = {}

    def export(steps, found):
        scores.update(found)
        save_trained(drafter, root / "d", card=CARD)

    train(drafter, store.all, root / "d", config, frozen=target.model, export=export,
          valid=store.all, quiet=True)  # fmt: skip
    counts = store.all.answer_counts()
    allowed = [i for i in range(target.vocab_size) if i not in target.banned_ids]
    wanted = sorted(sorted(allowed, key=lambda i: -int(counts[i]))[:16])
    assert drafter.vocabulary.tolist() == wanted
    said = int((counts > 0).sum())
    assert 6 < int((counts[wanted] > 0).sum()) == min(said, 16)
    assert scores["valid_loss"] > 0
    return root / "d"


def test_the_vocabulary_survives_disk_and_a_new_process(target, folder):
    loaded = load_drafter(str(folder), target)
    program = f"""
import json, sys
sys.path.insert(0, {str(TESTS)!r})
import tiny
from varifocal.drafters import load_drafter
made = load_drafter({str(folder)!r}, tiny.tiny_target(seed=3))
ids = made.vocabulary.tolist()
print(json.dumps([ids, made.network.t2d.nonzero()[:, 0].tolist(), str(made.network.d2t.dtype)]))
"""
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300
    )
    ids, marked, kind = json.loads(out.stdout.strip().splitlines()[-1])
    assert ids == marked == loaded.vocabulary.tolist() and kind == "torch.int64"


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda n: n.d2t[-1].add_(10_000), "outside"),
        (lambda n: n.d2t[1].copy_(n.d2t[0] - 1), "repeated"),
        (lambda n: n.t2d.logical_not_(), "t2d marks"),
        (lambda n: n.d2t.copy_(n.d2t + torch.arange(16)), "t2d marks"),
    ],
    ids=["range", "repeated", "membership", "ids for offsets"],
)
def test_a_damaged_vocabulary_is_refused_on_load(target, folder, tmp_path, spoil, named):
    drafter = load_trained(folder, target, {})
    spoil(drafter.network)
    save_trained(drafter, tmp_path / "d", card=CARD)
    with pytest.raises(BadArtifact, match=named):
        load_drafter(str(tmp_path / "d"), target)


def test_a_banned_id_in_the_vocabulary_is_refused(target, folder):
    drafter = load_trained(folder, target, {})
    banned = min(target.banned_ids)
    free = [i for i in range(10, 100) if i not in target.banned_ids][:15]
    drafter.network.choose(torch.tensor(sorted([banned, *free])))
    with pytest.raises(BadArtifact, match="never to be proposed"):
        drafter.prepare()


def test_a_size_of_the_vocabulary_is_part_of_the_weights(target, folder):
    with pytest.raises(BadOption, match="draft_vocab"):
        load_drafter(str(folder), target, draft_vocab=12)


def test_layers_are_found_among_more(target, one):
    drafter = eagle3(target, taps=(1, 2, 3))
    more = torch.stack([one.artifact.taps[:, k] for k in (2, 0, 0, 1)], 1)
    wider = replace(one.artifact, taps=more, tap_layers=(3, 1, 7, 2))
    assert torch.equal(drafter._taps_of(wider), drafter._taps_of(one.artifact))


def test_artifacts_without_the_layers_say_how_to_record_them(target, tmp_path):
    store = record(target, examples(2), tmp_path / "a", answers="reference", taps=(1, 3))
    for use in (
        lambda d: d.survey(store.all),
        lambda d: d.loss([store[0]], 0.0),
        lambda d: train(d, store.all, tmp_path / "d", TrainConfig(batch=2), frozen=target.model,
                        export=print, quiet=True),
    ):  # fmt: skip
        with pytest.raises(BadArtifact, match=r"lacks \[2\].*record --taps 1,2,3"):
            use(eagle3(target))


@pytest.mark.parametrize(
    "options",
    [{"heads": 5}, {"inner": 0}, {"draft_vocab": 3}, {"taps": (1, 2)}, {"taps": (3, 2, 1)},
     {"taps": (1, 2, 9)}, {"decay": 0.0}],
)  # fmt: skip
def test_bad_settings_are_refused(target, options):
    with pytest.raises(BadOption, match=next(iter(options))):
        eagle3(target, **options)
