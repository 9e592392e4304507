"""What goes wrong elsewhere with what people hand in, and does not go wrong here."""

import json

import pytest
import torch
from tiny import picture, tiny_target

from varifocal.chat import read_messages
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.errors import BadArtifact
from varifocal.evaluation.suites import load_suite
from varifocal.request import Request
from varifocal.training.examples import read_examples
from varifocal.training.recorder import record

SMALL = {"nodes": 8, "depth": 3, "inner": 32, "memory_width": 16, "bottleneck": 8}


def write_lines(path, lines):
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_a_text_as_a_string_and_as_a_part_is_the_same_request(tmp_path):
    target = tiny_target()
    prompts = []
    for content in ("hi", [{"type": "text", "text": "hi"}]):
        messages = read_messages([{"role": "user", "content": content}], tmp_path)
        prompts.append(target.encode(Request(messages=messages)).tokens)
    assert torch.equal(*prompts)


@pytest.fixture(scope="module")
def conversations(tmp_path_factory):
    """A target and what it makes of conversations with none, one, two and three pictures."""
    target, folder, lines = tiny_target(), tmp_path_factory.mktemp("recorded"), []
    for count in range(4):
        names = [f"{count}-{number}.png" for number in range(count)]
        for number, name in enumerate(names):
            picture(number, (40 + 20 * number, 60)).save(folder / name)
        said = [{"role": "user", "content": "what?"}, {"role": "assistant", "content": "a red."}]
        lines.append({"id": str(count), "messages": said, "images": names})
    examples = read_examples(write_lines(folder / "d.jsonl", lines))
    store = record(
        target, examples, folder / "out", answers="reference", dtype="float32", taps=(1, 2, 3)
    )
    return target, sorted(store.all, key=lambda sample: sample.id)


SELECTIONS = ["topk", "mass", "dense", "random", "static", "query_agnostic"]


@pytest.mark.parametrize("select", SELECTIONS)
def test_an_update_takes_conversations_with_none_one_two_and_three_pictures(select, conversations):
    target, samples = conversations
    assert [int(sample.image_of.max()) + 1 for sample in samples] == [0, 1, 2, 3]
    drafter = FoveaDrafter(target, FoveaDrafter.Config(**SMALL, select=select))
    drafter.loss(samples, 0.0).total.backward()
    gradients = [p.grad for p in drafter.network.parameters() if p.grad is not None]
    assert all(torch.isfinite(gradient).all() for gradient in gradients)
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0


@pytest.mark.parametrize("select", ["topk", "mass", "dense", "static", "query_agnostic"])
def test_a_conversation_without_pictures_has_its_own_loss_beside_one_with(select, conversations):
    target, (bare, shown, *_) = conversations
    drafter = FoveaDrafter(target, FoveaDrafter.Config(**SMALL, select=select))
    torch.nn.init.normal_(drafter.network.visual.second.weight)  # a correction that shows
    with torch.no_grad():
        together = drafter.loss([bare, shown], 0.0).total
        alone = [drafter.loss([sample], 0.0).total for sample in (bare, shown)]
    torch.testing.assert_close(together, sum(alone) / 2)  # as many supervised tokens each


def test_a_suite_with_unreadable_pictures_is_refused_before_it_starts_and_all_are_named(tmp_path):
    picture(0, (8, 8)).save(tmp_path / "tiny.png")
    picture(0).save(tmp_path / "good.png")
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:300])
    (tmp_path / "empty.png").write_bytes(b"")
    ask = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}]
    names = ["good.png", "tiny.png", "cut.png", "empty.png", "tiny.png"]
    lines = [{"id": str(n), "messages": ask, "images": [name]} for n, name in enumerate(names)]
    with pytest.raises(BadArtifact) as refused:
        load_suite(str(write_lines(tmp_path / "bad.jsonl", lines)))
    said = str(refused.value)
    assert "2 of 5 lines" in said and "line 3: " in said and "line 4: " in said
    good = [line for line in lines if line["images"][0] in ("good.png", "tiny.png")]
    cases = load_suite(str(write_lines(tmp_path / "good.jsonl", good)))
    assert [case.request.images[0].size for case in cases] == [(192, 96), (8, 8), (8, 8)]
    target = tiny_target()
    assert all(target.encode(case.request).is_image.any() for case in cases)
