"""Taps: states of chosen layers as the model made them; recordings without any stay readable."""

import json
from functools import cache

import pytest
import torch
from tiny import picture, tiny_target

from varifocal.cli.record import _taps
from varifocal.errors import BadOption
from varifocal.request import Message
from varifocal.training import _room
from varifocal.training._script import script_of
from varifocal.training.artifacts import MANIFEST, ArtifactStore
from varifocal.training.examples import Example
from varifocal.training.recorder import features_of, record


@cache
def target():
    return tiny_target()


def talk(number: int) -> tuple[Message, ...]:
    return (
        Message("user", (picture(number), "what is there?")),
        Message("assistant", (f"a red circle {number}",)),
    )


def examples(count: int) -> list[Example]:
    return [Example(f"e{n}", "a", lambda n=n: talk(n)) for n in range(count)]


def run(out, **settings):
    settings = {"answers": "reference", "dtype": "float32", **settings}
    return record(target(), examples(3), out, **settings)


@pytest.mark.parametrize("taps", [(1, 2, 3), (2, 3), (3,)])
def test_states_equal_the_whole_models_own(taps):
    script = script_of(target(), talk(0), None)
    sample = features_of(target(), "e", "a", script, taps)
    prompt = script.prompt
    with torch.no_grad():
        out = target().model.model(
            input_ids=prompt.tokens[None], output_hidden_states=True, **prompt.pixels
        )
    assert sample.tap_layers == taps
    for column, layer in enumerate(taps):
        if layer < 3:  # the last entry of hidden_states is behind the norm
            torch.testing.assert_close(
                sample.taps[:, column], out.hidden_states[layer][0], atol=1e-5, rtol=1e-5
            )
        else:
            states = target().model.model.language_model.norm(sample.taps[:, column])
            torch.testing.assert_close(states, sample.final, atol=1e-5, rtol=1e-5)


def test_other_states_are_the_same_with_and_without_taps():
    script = script_of(target(), talk(1), None)
    plain, tapped = (features_of(target(), "e", "a", script, taps) for taps in ((), (2, 3)))
    assert plain.taps is None
    for name in ("final", "mid", "visual"):
        assert torch.equal(getattr(plain, name), getattr(tapped, name))


def test_they_come_back_from_disk_for_each_sample(tmp_path):
    run(tmp_path / "a", taps=(1, 3), shard_size=2)
    store = ArtifactStore.open(tmp_path / "a")
    assert store.manifest.origin.taps == (1, 3)
    for number in range(3):
        fresh = features_of(target(), "e", "a", script_of(target(), talk(number), None), (1, 3))
        assert torch.equal(store[number].taps, fresh.taps)
        assert store[number].tap_layers == (1, 3)
        assert torch.equal(store.answer(number), fresh.tokens[fresh.supervised])


def test_answers_are_counted_over_a_subset(tmp_path):
    store = run(tmp_path / "a")
    train, valid = store.split(["e1"])
    counts = train.answer_counts() + valid.answer_counts()
    said = torch.cat([sample.tokens[sample.supervised] for sample in store.all])
    assert torch.equal(counts, torch.bincount(said, minlength=target().vocab_size))
    assert int(valid.answer_counts().sum()) == valid.num_supervised


def test_a_recording_from_before_there_were_taps_is_read_and_continued(tmp_path):
    folder = tmp_path / "a"
    record(target(), examples(2), folder, answers="reference", dtype="float32")
    content = json.loads((folder / MANIFEST).read_text())
    del content["origin"]["taps"]
    (folder / MANIFEST).write_text(json.dumps(content))
    old = ArtifactStore.open(folder)
    assert old[0].taps is None and old.manifest.origin.taps == ()
    assert len(run(folder)) == 3


def test_other_taps_do_not_mix_into_a_recording(tmp_path):
    run(tmp_path / "a", taps=(1,))
    with pytest.raises(BadOption, match=r"taps: wanted \(2,\), got \(1,\)"):
        run(tmp_path / "a", taps=(2,))


@pytest.mark.parametrize("taps", [(0,), (4,), (2, 1), (1, 1)])
def test_layers_that_the_target_lacks_are_refused(tmp_path, taps):
    with pytest.raises(BadOption, match="which has 3, counted from 1"):
        run(tmp_path / "a", taps=taps)
    assert not (tmp_path / "a").exists()


def test_their_size_is_part_of_the_estimate():
    plain, tapped = (
        _room.estimate_bytes(target(), examples(3), 8, "float16", num_taps=n) for n in (0, 2)
    )
    assert tapped == 2 * plain


def test_layers_are_typed_as_numbers_or_chosen():
    assert _taps("", 32) == () and _taps("2, 8,13", 16) == (2, 8, 13)
    assert _taps("auto", 32) == (2, 16, 29)
    with pytest.raises(BadOption, match="2,8,13"):
        _taps("low", 32)
