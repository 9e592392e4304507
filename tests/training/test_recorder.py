"""Recording: states of single fresh runs, the right tokens supervised, nothing lost or doubled."""

import logging
import os
import subprocess
import sys
from collections import namedtuple
from functools import cache

import pytest
import torch
from tiny import picture, tiny_target

from varifocal.decode import generate
from varifocal.drafters.plain import PlainDrafter
from varifocal.errors import BadArtifact, BadOption
from varifocal.request import Message, Request
from varifocal.target import Want
from varifocal.training import _room, recorder
from varifocal.training._answers import Answers
from varifocal.training._entropy import entropy_of, watched
from varifocal.training.artifacts import ArtifactStore
from varifocal.training.examples import Example
from varifocal.training.recorder import confirmed, features_of, record, script_of, search_layers

SIZES = ((96, 96), (192, 96), (96, 192))


@cache
def target():
    return tiny_target()


def talk(number: int, turns: int = 2) -> tuple[Message, ...]:
    messages = []
    for k in range(turns):
        picture_parts = (picture(number, SIZES[number % 3]),) if k == 0 and number % 4 else ()
        question = "what is there" + " then" * (number % 5)
        messages.append(Message("user", (*picture_parts, f"{question} {k}?")))
        messages.append(Message("assistant", (f"a red circle {number}",)))
    return tuple(messages)


def examples(count: int, turns: int = 2) -> list[Example]:
    return [Example(f"e{n}", ("a", "b")[n % 2], lambda n=n: talk(n, turns)) for n in range(count)]


def run(count: int, out, **settings):
    settings = {"answers": "reference", "dtype": "float32", **settings}
    return record(target(), examples(count), out, **settings)


@pytest.mark.parametrize("layers", [(32, 10), (28, 9), (16, 5), (3, 1), (1, 1)])
def test_the_searched_layers_are_the_papers_share(layers):
    assert search_layers(layers[0]) == tuple(range(1, layers[1] + 1))


@pytest.mark.parametrize("number", [0, 1, 2])
def test_states_equal_the_whole_models_own(number):
    script = script_of(target(), talk(number), None)
    sample = features_of(target(), "e", "a", script)
    prompt = script.prompt
    model = target().model
    with torch.no_grad():
        out = model.model(input_ids=prompt.tokens[None], output_hidden_states=True, **prompt.pixels)
    torch.testing.assert_close(sample.final, out.last_hidden_state[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(sample.visual, out.hidden_states[0][0][prompt.is_image])
    start = int(sample.supervised.nonzero()[0]) - 1
    torch.testing.assert_close(sample.mid[start:], out.hidden_states[1][0, start:])
    assert not bool(sample.mid[:start].any())


def test_watching_changes_no_bit_of_the_states():
    script = script_of(target(), talk(1), None)
    sample = features_of(target(), "e", "a", script)
    with torch.no_grad():
        _, seen = target().prefill(script.prompt, Want(final=True))
    assert torch.equal(sample.final, seen.final)
    assert target().model.config.get_text_config()._attn_implementation == "sdpa"


def test_entropies_equal_those_of_the_models_own_attention_probabilities():
    deep = tiny_target(seed=1)
    prompt = script_of(deep, talk(1), None).prompt
    text_config = deep.model.config.get_text_config()
    with torch.no_grad(), watched(text_config, 3, 5) as watch:
        deep.prefill(prompt, Want())
    deep.model.set_attn_implementation("eager")
    with torch.no_grad():
        out = deep.model(input_ids=prompt.tokens[None], output_attentions=True, **prompt.pixels)
    for layer in range(3):
        p = out.attentions[layer][0, :, 5:].double()
        expected = -torch.xlogy(p, p).sum(-1).mean(0)
        torch.testing.assert_close(
            watch.by_layer[:, layer].double(), expected, atol=1e-4, rtol=1e-4
        )


def test_entropy_in_chunks_is_the_same(monkeypatch):
    rng = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, n, 4, generator=rng) for n in (7, 9))
    whole = entropy_of(query, key, 0.5)
    monkeypatch.setattr("varifocal.training._entropy._CHUNK", 3)
    torch.testing.assert_close(entropy_of(query, key, 0.5), whole)


def test_the_layer_of_least_entropy_is_chosen_for_each_token(monkeypatch):
    monkeypatch.setattr(recorder, "search_layers", lambda n: (1, 2, 3))
    script = script_of(target(), talk(1), None)
    sample = features_of(target(), "e", "a", script)
    start = int(sample.supervised.nonzero()[0]) - 1
    with torch.no_grad(), watched(target().model.config.get_text_config(), 3, start) as watch:
        _, seen = target().prefill(script.prompt, Want(layers=(1, 2, 3)))
    for row, layer in enumerate(watch.by_layer.argmin(-1).tolist()):
        assert torch.equal(sample.mid[start + row], seen.hidden[start + row, layer])


def test_only_answers_with_their_end_token_are_supervised():
    script = script_of(target(), talk(1, turns=3), None)
    supervised = script.supervised
    said = script.prompt.tokens[supervised].tolist()
    (end,) = target().eos_ids
    assert target().decode(said) == "a red circle 1" * 3
    assert said.count(end) == 3 and said[-1] == end
    assert bool(supervised[-1]) and not bool((supervised & script.prompt.is_image).any())
    before = [target().encode(Request(messages=talk(1, 3)[: 2 * k + 1])) for k in range(3)]
    starts = (supervised & ~supervised.roll(1)).nonzero()[:, 0].tolist()
    assert starts == [len(p.tokens) for p in before]


def test_regenerated_answers_are_those_of_plain_decoding():
    talks = {f"e{n}": talk(n, turns=2) for n in range(3)}
    writer = Answers(target(), 12)
    new, said, failed = writer.answer(talks)
    assert not failed
    for id, conversation in new.items():
        assert [m.role for m in conversation] == ["user", "assistant"] * 2
        for k in range(2):
            request = Request(messages=conversation[: 2 * k + 1], max_new_tokens=12)
            plain = generate(target(), PlainDrafter(target(), PlainDrafter.Config()), request)
            assert said[id][k] == plain.token_ids
            assert conversation[2 * k + 1].parts == (plain.text,)


def test_an_answer_is_confirmed_only_if_the_target_says_every_token_of_it():
    asked = talk(1, 1)
    said = Answers(target(), 6).answer({"e": asked})[1]["e"]
    script = script_of(target(), asked, said)
    sample = features_of(target(), "e", "a", script)
    assert confirmed(target(), script, sample, 6) == said
    assert confirmed(target(), script, sample, len(said[0]) - 1) == []
    for k in range(len(said[0])):
        other = [*said[0][:k], (said[0][k] + 1) % 300, *said[0][k + 1 :]]
        script = script_of(target(), asked, [other])
        assert confirmed(target(), script, features_of(target(), "e", "a", script), 6) == []


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_generation_starts_after_the_confirmed_answers(tmp_path, monkeypatch, kept):
    asked = []
    say = Answers._say
    monkeypatch.setattr(
        Answers,
        "_say",
        lambda self, p: asked.append([len(x.request.messages) for x in p]) or say(self, p),
    )
    monkeypatch.setattr(
        recorder,
        "confirmed",
        lambda target, script, sample, limit: [
            script.prompt.tokens[a:b].tolist() for a, b in script.spans[:kept]
        ],
    )
    store = run(1, tmp_path / "out", answers="target", max_new_tokens=4)
    assert asked == [[1], [3]][kept:]
    if kept == 2:
        reference = run(1, tmp_path / "reference")
        assert torch.equal(store[0].final, reference[0].final)


def test_earlier_answers_count_only_if_the_template_writes_what_was_said():
    conversation = talk(1, turns=2)
    first = target().tokenizer("a red circle 1")["input_ids"]
    (end,) = target().eos_ids
    kept = script_of(target(), conversation, [[*first, end], [9, end]])
    assert int(kept.supervised.sum()) == len(first) + 3
    changed = script_of(target(), conversation, [[9, 9], [9, end]])
    assert int(changed.supervised.sum()) == 2 and bool(changed.supervised[-2:].all())


def test_recordings_do_not_depend_on_batch_shards_or_order(tmp_path):
    one = run(4, tmp_path / "one", answers="target", batch=1, shard_size=2, max_new_tokens=6)
    two = run(4, tmp_path / "two", answers="target", batch=3, shard_size=50, max_new_tokens=6)
    backwards = record(
        target(), examples(4)[::-1], tmp_path / "three",
        answers="target", dtype="float32", max_new_tokens=6,
    )  # fmt: skip
    for store in (two, backwards):
        by_id = {a.id: a for a in store.all}
        for a in one.all:
            b = by_id[a.id]
            assert torch.equal(a.tokens, b.tokens) and torch.equal(a.final, b.final)
            assert torch.equal(a.mid, b.mid) and torch.equal(a.visual, b.visual)


class Killed(BaseException):
    """Stands for kill -9 in the middle of a shard's writing."""


def test_a_recording_that_was_killed_goes_on_and_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    write = recorder.write_shard

    def write_until(folder, file, samples, dtype):
        if "00001" in file:
            (folder / file).with_suffix(".safetensors.new").write_bytes(b"half")
            raise Killed
        return write(folder, file, samples, dtype)

    monkeypatch.setattr(recorder, "write_shard", write_until)
    with pytest.raises(Killed):
        run(5, tmp_path / "broken", batch=1, shard_size=2)
    monkeypatch.undo()
    assert [a.id for a in ArtifactStore.open(tmp_path / "broken").all] == ["e0", "e1"]
    seen = []
    store = run(5, tmp_path / "broken", batch=1, shard_size=2, progress=lambda d, n: seen.append(d))
    assert [a.id for a in store.all] == ["e0", "e1", "e2", "e3", "e4"]
    assert seen == [3, 4, 5]
    assert not list((tmp_path / "broken").glob("*.new"))


def test_recording_twice_changes_nothing(tmp_path):
    run(3, tmp_path / "out")
    before = {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    run(3, tmp_path / "out")
    assert {p.name: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_a_damaged_shard_is_recorded_anew(tmp_path, caplog):
    run(4, tmp_path / "out", shard_size=2, batch=1)
    path = tmp_path / "out" / "shard-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with caplog.at_level(logging.WARNING):
        store = run(4, tmp_path / "out", shard_size=2, batch=1)
    assert sorted(a.id for a in ArtifactStore.open(store.folder).all) == ["e0", "e1", "e2", "e3"]
    assert "damaged" in caplog.text and "its 2 samples are recorded again" in caplog.text
    assert "delete" not in caplog.text  # nothing is left to do by hand


def test_ctrl_c_keeps_what_is_recorded(tmp_path):
    def stop(done: int, count: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(5, tmp_path / "out", batch=1, progress=stop)
    assert len(ArtifactStore.open(tmp_path / "out")) == 3
    assert len(run(5, tmp_path / "out", batch=1)) == 5


def test_ctrl_c_while_a_damaged_shard_is_replaced_leaves_a_true_list(tmp_path):
    run(4, tmp_path / "out", shard_size=2, batch=1)
    (tmp_path / "out" / "shard-00000.safetensors").write_bytes(b"")

    def stop(done: int, count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(4, tmp_path / "out", batch=1, progress=stop)
    assert sorted(a.id for a in ArtifactStore.open(tmp_path / "out").all) == ["e0", "e2", "e3"]


def test_ctrl_c_in_the_middle_of_writing_loses_nothing(tmp_path, monkeypatch):
    write, calls = recorder.write_shard, []

    def interrupted(*args):
        calls.append(args)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return write(*args)

    monkeypatch.setattr(recorder, "write_shard", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(4, tmp_path / "out", batch=1, shard_size=2)
    assert [a.id for a in ArtifactStore.open(tmp_path / "out").all] == ["e0", "e1"]


def test_other_settings_need_another_folder_and_only_they_are_named(tmp_path):
    run(2, tmp_path / "out")
    with pytest.raises(BadOption, match="choose another folder") as caught:
        run(2, tmp_path / "out", dtype="bfloat16", max_new_tokens=7)
    text = str(caught.value)
    assert "(max_new_tokens: wanted 7, got 256; dtype: wanted bfloat16, got float32)" in text
    assert "Origin" not in text and "vocab_size" not in text


HOLDER = """
import sys, time
from pathlib import Path
from varifocal.training.artifacts import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_recordings_do_not_write_into_one_folder_and_a_kill_lets_go(tmp_path):
    pytest.importorskip("fcntl")
    out = tmp_path / "out"
    out.mkdir()
    command = [sys.executable, "-c", HOLDER, str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "held\n"
            with pytest.raises(BadArtifact, match="another record or train is writing into"):
                run(1, out)
            assert [p.name for p in out.iterdir()] == [".lock"]
        finally:
            other.kill()
    assert len(run(1, out)) == 1


def test_a_recording_holds_its_folder_until_it_ends(tmp_path):
    pytest.importorskip("fcntl")

    def meanwhile(done: int, count: int) -> None:
        with pytest.raises(BadArtifact, match="another record"):
            run(3, tmp_path / "out", dtype="bfloat16")

    run(2, tmp_path / "out", progress=meanwhile)
    assert len(run(3, tmp_path / "out")) == 3


def test_a_sample_with_nan_states_is_left_out_counted_and_not_tried_again(tmp_path, monkeypatch):
    honest = recorder.features_of

    def broken(target, id, family, script, taps):
        sample = honest(target, id, family, script, taps)
        if id == "e2":
            sample.final[0, 0] = torch.nan
        return sample

    monkeypatch.setattr(recorder, "features_of", broken)
    store = run(5, tmp_path / "out")
    assert [a.id for a in store.all] == ["e0", "e1", "e3", "e4"]
    assert "NaN" in store.manifest.skipped["e2"]
    assert len(run(5, tmp_path / "out")) == 4


def test_states_too_large_for_half_precision_are_left_out_and_the_way_out_named(
    tmp_path, monkeypatch
):
    honest = recorder.features_of

    def large(target, id, family, script, taps):
        sample = honest(target, id, family, script, taps)
        sample.mid[-1, 0] = 1e5 if id == "e1" else 0
        return sample

    monkeypatch.setattr(recorder, "features_of", large)
    store = run(2, tmp_path / "out", dtype="float16")
    assert "bfloat16" in store.manifest.skipped["e1"] and len(store) == 1


def test_samples_without_answers_are_skipped_and_counted(tmp_path):
    mute = Example("mute", "a", lambda: (Message("user", ("hello",)),))
    store = record(target(), [mute, *examples(1)], tmp_path / "out", answers="reference")
    assert "no supervised tokens" in store.manifest.skipped["mute"] and len(store) == 1
    with pytest.raises(BadArtifact, match="nothing could be recorded"):
        record(target(), [mute], tmp_path / "none", answers="reference")


def test_a_conversation_longer_than_the_context_is_skipped_and_counted(tmp_path):
    endless = Example(
        "long", "a", lambda: (Message("user", ("?" * 9000,)), Message("assistant", ("a",)))
    )
    for answers in ("reference", "target"):
        store = record(
            target(), [endless, *examples(1)], tmp_path / answers, answers=answers, max_new_tokens=4
        )
        assert "holds 4096" in store.manifest.skipped["long"] and len(store) == 1


def test_too_small_a_disk_is_refused_before_the_start(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(_room.shutil, "disk_usage", lambda path: usage(10, 10, 1000))
    with pytest.raises(BadOption, match=r"2 samples need about .* MiB free"):
        run(2, tmp_path / "out")


def test_the_estimate_is_near_what_is_written(tmp_path):
    # Answers here are 12 tokens, the estimate takes 64: told so that both may be compared.
    store = run(8, tmp_path / "out", dtype="float16")
    guess = _room.estimate_bytes(target(), examples(8), 20, "float16")
    assert 0.5 < guess / store.manifest.num_bytes < 2


def test_a_disk_that_fills_up_gives_a_clear_error_and_keeps_finished_shards(tmp_path, monkeypatch):
    sync, calls = os.fsync, []

    def full(fd):
        calls.append(fd)
        if len(calls) > 3:  # two manifests and a shard fit
            raise OSError(28, "No space left on device")
        sync(fd)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BadArtifact, match="No space left"):
        run(4, tmp_path / "out", batch=1, shard_size=2)
    monkeypatch.undo()
    assert len(ArtifactStore.open(tmp_path / "out")) == 2
    assert not list((tmp_path / "out").glob("*.new"))


def test_ids_must_differ_and_a_foreign_folder_is_left_alone(tmp_path):
    with pytest.raises(BadOption, match="two examples have the id"):
        record(target(), examples(1) * 2, tmp_path / "out")
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadOption, match="holds other files"):
        run(1, tmp_path)
