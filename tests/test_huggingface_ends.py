"""Where an answer ends, and what is shown of it: as from transformers, token by token."""

import copy
import threading
import time

import pytest
import torch
from drop_in import (
    NEW,
    answer,
    inputs_of,
    new_ids,
    ours,
    right,
    target_of,
    tiny,
    tiny_inputs,
)
from guesses import Guesses
from transformers import (
    GenerationConfig,
    StoppingCriteria,
    TextIteratorStreamer,
    TextStreamer,
)

import varifocal
from varifocal.errors import BadOption


@pytest.mark.parametrize("budget", range(1, 12))
def test_the_budget_is_exact_and_all_counts_agree(budget):
    inputs, pieces = tiny_inputs(), []

    class Counts:
        def put(self, ids):
            pieces.append(ids)

        def end(self):
            pieces.append(None)

    out = varifocal.generate(
        tiny().model,
        **inputs,
        drafter=Guesses(tiny(), answer()),
        do_sample=False,
        max_new_tokens=budget,
        streamer=Counts(),
        return_dict_in_generate=True,
        output_logits=True,
        output_scores=True,
    )
    assert out.varifocal.token_ids == list(answer()[:budget])
    assert out.varifocal.finish_reason == "length"
    assert len(out.scores) == len(out.logits) == budget
    assert sum(len(r.tokens) for r in [out.varifocal.prefill, *out.varifocal.rounds]) == budget
    assert [int(p) for p in pieces[1:-1]] == list(answer()[:budget]) and pieces[-1] is None


@pytest.mark.parametrize("place", range(2, 12))
def test_nothing_follows_an_end_token_inside_an_accepted_block(place):
    inputs = tiny_inputs(text := "what is it, and why? the")
    whole = new_ids(right(inputs), inputs)
    end = whole[place]
    cut = whole[: whole.index(end) + 1]
    shown = []

    class Shows:
        def put(self, ids):
            shown.extend(ids.flatten().tolist())

        def end(self):
            shown.append("end")

    out = varifocal.generate(
        tiny().model,
        **inputs,
        drafter=Guesses(tiny(), whole),
        do_sample=False,
        max_new_tokens=NEW,
        eos_token_id=end,
        streamer=Shows(),
        return_dict_in_generate=True,
        output_logits=True,
    )
    assert new_ids(out.sequences, inputs) == cut == out.varifocal.token_ids, text
    assert out.varifocal.finish_reason == "eos"
    assert shown == [*inputs["input_ids"][0].tolist(), *cut, "end"]
    assert len(out.logits) == len(cut)
    cache = out["cache"] if "cache" in out else out["past_key_values"]
    assert cache.get_seq_length() == out.sequences.shape[1] - 1


def test_stop_strings_end_where_they_end_in_transformers():
    inputs, tokenizer = tiny_inputs(), tiny().tokenizer
    whole = tiny().decode(answer())
    for stop in {whole[k : k + 2] for k in range(0, len(whole) - 2, 3)}:
        wanted = right(inputs, stop_strings=stop, tokenizer=tokenizer)
        for given in (tokenizer, tiny().processor):
            got = ours(
                inputs, stop_strings=stop, tokenizer=given, drafter=Guesses(tiny(), answer())
            )
            assert torch.equal(got, wanted), repr(stop)
    config = GenerationConfig(max_new_tokens=NEW, stop_strings=[whole[4:6]], do_sample=False)
    wanted = tiny().model.generate(
        **copy.deepcopy(inputs), generation_config=config, tokenizer=tokenizer
    )
    got = varifocal.generate(tiny().model, **inputs, generation_config=config, tokenizer=tokenizer)
    assert torch.equal(got, wanted) and config.stop_strings == [whole[4:6]]
    with pytest.raises(BadOption, match=r"stop_strings .* tokenizer="):
        ours(inputs, stop_strings="x")


class After(StoppingCriteria):
    """A caller's own, which counts its calls."""

    def __init__(self, length):
        self.length, self.seen = length, []

    def __call__(self, input_ids, scores, **kwargs):
        self.seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


def test_stopping_criteria_are_asked_after_every_token():
    inputs = tiny_inputs()
    theirs, mine = After(143), After(143)
    wanted = right(inputs, stopping_criteria=[theirs])
    got = ours(inputs, stopping_criteria=[mine], drafter=Guesses(tiny(), answer()))
    assert torch.equal(got, wanted) and mine.seen == theirs.seen
    with pytest.raises(BadOption, match="After may read scores"):
        ours(
            inputs,
            stopping_criteria=[After(143)],
            return_dict_in_generate=True,
            output_scores=True,
        )


def test_max_time_ends_an_answer():
    counted = []
    ours(tiny_inputs(), max_new_tokens=3000, max_time=0.5, on_result=counted.append)
    assert counted[0].finish_reason == "stop" and 0 < len(counted[0].token_ids) < 3000


class Pieces(TextStreamer):
    def __init__(self, tokenizer, **options):
        super().__init__(tokenizer, **options)
        self.pieces = []

    def on_finalized_text(self, text, stream_end=False):
        self.pieces.append((text, stream_end))


@pytest.mark.parametrize("skips_prompt", [True, False])
def test_a_streamer_shows_what_it_shows_with_transformers(skips_prompt):
    inputs, tokenizer = tiny_inputs(), tiny().tokenizer
    theirs, mine, third = (Pieces(tokenizer, skip_prompt=skips_prompt) for _ in range(3))
    right(inputs, streamer=theirs)
    ours(inputs, streamer=mine, drafter=Guesses(tiny(), answer()))
    assert mine.pieces == theirs.pieces
    tiny().model.generate(
        **inputs,
        do_sample=False,
        max_new_tokens=NEW,
        custom_generate=varifocal.Speculative("lookup", streamer=third),
    )
    assert third.pieces == theirs.pieces
    if skips_prompt:  # bytes of unfinished characters among them
        assert "".join(text for text, _ in mine.pieces) == tokenizer.decode(answer())


def test_a_streamer_in_another_thread_ends_even_where_decoding_fails():
    inputs, tokenizer = tiny_inputs(), tiny().tokenizer
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    thread = threading.Thread(target=lambda: ours(inputs, streamer=streamer))
    thread.start()
    assert "".join(streamer) == tokenizer.decode(answer())
    thread.join()

    class Fails(StoppingCriteria):
        def __call__(self, input_ids, scores, **kwargs):
            raise KeyError("mine")

    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    begin = time.monotonic()
    with pytest.raises(KeyError, match="mine"):
        ours(inputs, streamer=streamer, stopping_criteria=[Fails()])
    assert list(streamer) and time.monotonic() - begin < 50


def test_every_family_streams_and_samples():
    target, inputs = target_of("qwen2_5_vl"), inputs_of("qwen2_5_vl")
    shown = Pieces(target.tokenizer, skip_prompt=True, skip_special_tokens=True)
    out = varifocal.generate(
        target.model,
        **inputs,
        do_sample=True,
        seed=3,
        max_new_tokens=10,
        tokenizer=target.tokenizer,
        streamer=shown,
        return_dict_in_generate=True,
    )
    assert "".join(text for text, _ in shown.pieces) == out.varifocal.text
    assert len(out.varifocal.token_ids) <= 10
