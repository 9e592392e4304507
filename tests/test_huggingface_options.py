"""Options of `model.generate`: each does what it does in transformers, or is refused by name."""

import copy
from functools import cache
from inspect import unwrap

import pytest
import torch
from drop_in import (
    answer,
    new_ids,
    ours,
    padded,
    right,
    tiny,
    tiny_inputs,
)
from guesses import Guesses
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    TextStreamer,
)

import varifocal
from varifocal.decode import generate as decode_request
from varifocal.errors import BadOption, BadRequest
from varifocal.huggingface._run import NodeProcessor
from varifocal.request import ask
from varifocal.sampling import Sampling


class Lifts(LogitsProcessor):
    """A caller's own: depends on how long the text is, and on its last two tokens."""

    def __call__(self, input_ids, scores):
        last, before = int(input_ids[0, -1]), int(input_ids[0, -2])
        scores[:, (7 * last + before + input_ids.shape[1]) % scores.shape[1]] += 40.0
        return scores


def bias():
    return {(answer()[0],): -9.0, (answer()[3], answer()[4]): -60.0}


SETTINGS = {
    "repetition_penalty": lambda: {"repetition_penalty": 1.3},
    "a strong repetition_penalty": lambda: {"repetition_penalty": 300.0},
    "bad_words_ids": lambda: {"bad_words_ids": [[answer()[0]], [answer()[-2], answer()[-1]]]},
    "min_new_tokens": lambda: {"min_new_tokens": 9, "eos_token_id": answer()[0]},
    "min_length": lambda: {"min_length": 147, "eos_token_id": answer()[0]},
    "min_new_tokens beyond the budget": lambda: {
        "min_new_tokens": 90,
        "eos_token_id": list(answer()[:2]),
    },
    "several end tokens": lambda: {"eos_token_id": [answer()[-1], 5]},
    "max_length": lambda: {"max_length": 150, "max_new_tokens": None},
    "no_repeat_ngram_size": lambda: {"no_repeat_ngram_size": 2},
    "sequence_bias": lambda: {"sequence_bias": bias()},
    "suppress_tokens": lambda: {"suppress_tokens": [answer()[0]]},
    "begin_suppress_tokens": lambda: {"begin_suppress_tokens": [answer()[0]]},
    "forced_eos_token_id": lambda: {"forced_eos_token_id": 7},
    "exponential_decay": lambda: {
        "exponential_decay_length_penalty": (4, 3.0),
        "eos_token_id": 9,
    },
    "encoder_no_repeat_ngram_size": lambda: {"encoder_no_repeat_ngram_size": 1},
    "prefix_allowed_tokens_fn": lambda: {
        "prefix_allowed_tokens_fn": lambda _, ids: [(int(ids[-1]) + k) % 290 for k in (1, 9)]
    },
    "logits_processor": lambda: {"logits_processor": LogitsProcessorList([Lifts()])},
    "several": lambda: {
        "logits_processor": LogitsProcessorList([Lifts()]),
        "repetition_penalty": 1.2,
        "bad_words_ids": [[answer()[0]]],
        "min_new_tokens": 3,
    },
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_gives_the_ids_that_it_gives_in_transformers(name):
    settings, inputs = SETTINGS[name](), tiny_inputs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", lambda *_, **__: None)  # of transformers, about the budget
        wanted = right(inputs, **settings)
        assert torch.equal(ours(inputs, **settings), wanted)
        guesses = Guesses(tiny(), new_ids(wanted, inputs))
        counted = []
        got = ours(inputs, drafter=guesses, on_result=counted.append, **settings)
    assert torch.equal(got, wanted)
    if len(new_ids(wanted, inputs)) > 8:  # and drafts were accepted
        assert any(r.num_accepted > 1 for r in counted[0].rounds)


def test_generation_config_of_the_model_and_of_the_call_are_honoured():
    model, inputs = tiny().model, tiny_inputs()
    config = GenerationConfig(max_new_tokens=6, repetition_penalty=1.3, do_sample=False)
    wanted = model.generate(**copy.deepcopy(inputs), generation_config=config)
    assert torch.equal(varifocal.generate(model, **inputs, generation_config=config), wanted)
    before = model.generation_config
    try:
        model.generation_config = GenerationConfig(max_new_tokens=5, eos_token_id=answer()[-1])
        wanted = model.generate(**copy.deepcopy(inputs))
        assert torch.equal(varifocal.generate(model, **inputs), wanted)
    finally:
        model.generation_config = before


def test_scores_and_logits_are_those_of_transformers():
    inputs = tiny_inputs()
    wish = {
        "repetition_penalty": 1.2,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    wanted = right(inputs, **wish)
    got = ours(inputs, drafter=Guesses(tiny(), new_ids(wanted.sequences, inputs)), **wish)
    assert torch.equal(got.sequences, wanted.sequences)
    for name in ("scores", "logits"):
        mine, theirs = torch.cat(got[name]), torch.cat(wanted[name])
        torch.testing.assert_close(mine, theirs, atol=1e-3, rtol=1e-4)
    mine[0, 0] += 1  # they are ordinary tensors
    assert isinstance(got, type(wanted)) and got.attentions is None


@cache
def sampled():
    """Sampling of several kinds, with the settings that say the same here."""
    return {
        "temperature": ({"temperature": 0.7, "top_k": 0}, Sampling(temperature=0.7, seed=5)),
        "the default top_k": ({}, Sampling(temperature=1.0, top_k=50, seed=5)),
        "all": (
            {"temperature": 1.4, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
            Sampling(temperature=1.4, top_k=9, top_p=0.9, min_p=0.02, seed=5),
        ),
    }


@pytest.mark.parametrize("name", ["temperature", "the default top_k", "all"])
def test_a_seed_gives_the_text_that_it_gives_everywhere_here(name):
    target, (options, sampling) = tiny(), sampled()[name]
    request = ask("what is it?", max_new_tokens=16, sampling=sampling)
    wanted = decode_request(target, varifocal.load_drafter("plain", target), request)
    inputs = {"input_ids": target.encode(request).tokens[None]}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    wish = {"do_sample": True, "max_new_tokens": 16, "seed": 5, **options}
    got = ours(inputs, **wish, drafter=Guesses(target, wanted.token_ids))
    assert new_ids(got, inputs) == wanted.token_ids
    by_node = ours(inputs, **wish, return_dict_in_generate=True, output_scores=True)
    assert new_ids(by_node.sequences, inputs) == wanted.token_ids


def test_without_a_seed_the_global_generator_decides():
    inputs = tiny_inputs()
    texts = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        texts.append(new_ids(ours(inputs, do_sample=True, temperature=9.0), inputs))
    assert texts[0] == texts[1] != texts[2]


def test_samples_of_one_prompt_have_seeds_that_count_up():
    inputs = tiny_inputs()
    wish = {"do_sample": True, "temperature": 9.0}
    several = ours(inputs, **wish, num_return_sequences=3, seed=2)
    for number, row in enumerate(several):
        assert torch.equal(row[None], ours(inputs, **wish, seed=2 + number))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_beams", 2),
        ("penalty_alpha", 0.6),
        ("dola_layers", "high"),
        ("guidance_scale", 1.5),
        ("prompt_lookup_num_tokens", 3),
        ("prefill_chunk_size", 8),
        ("output_attentions", True),
        ("output_hidden_states", True),
        ("use_cache", False),
        ("cache_implementation", "offloaded"),
        ("assistant_model", "a model"),
        ("custom_generate", "somewhere/else"),
        ("inputs_embeds", torch.zeros(1, 3, 64)),
    ],
)
def test_an_option_that_is_not_honoured_is_refused_by_name(option, value):
    with pytest.raises(BadOption, match=option):
        ours(tiny_inputs(), **{option: value})


def test_names_options_and_seeds_are_checked_before_there_is_a_model():
    with pytest.raises(BadOption, match=r"no drafter is called 'zz'; there are .*lookup"):
        varifocal.Speculative("zz")
    with pytest.raises(BadOption, match="lookup has no option dept"):
        varifocal.Speculative("lookup", drafter_options={"dept": 1})
    with pytest.raises(BadOption, match="cannot be imported"):
        varifocal.Speculative("no.such.module")
    with pytest.raises(BadOption, match=r"a hub id or a Drafter made for the model, got None"):
        unwrap(varifocal.Speculative.__init__)(object.__new__(varifocal.Speculative), None)
    for seed in (-1, 2**63, True):
        with pytest.raises(BadRequest, match=r"seed must be a whole number in \[0, 2\*\*63\)"):
            varifocal.Speculative(seed=seed)
        with pytest.raises(BadRequest, match="seed must be"):
            ours(tiny_inputs(), do_sample=True, seed=seed)
    varifocal.Speculative("owner/name", seed=2**63 - 1)  # a hub id is read at the first call


def test_an_unknown_option_is_refused():
    with pytest.raises(ValueError, match="max_new_tokns"):
        ours(tiny_inputs(), max_new_tokns=4)


class Counter(LogitsProcessor):
    """Changes its mind with every call."""

    calls = 0

    def __call__(self, input_ids, scores):
        self.calls += 1
        return scores + self.calls * torch.arange(scores.shape[1])


def test_processors_that_are_no_functions_of_the_ids_are_refused():
    with pytest.raises(BadOption, match=r"Counter gives different scores.*same ids"):
        ours(tiny_inputs(), logits_processor=LogitsProcessorList([Counter()]))


def test_a_constraint_is_not_asked_about_texts_that_it_excludes():
    inputs, start = tiny_inputs(), tiny_inputs()["input_ids"].shape[1]
    asked = []

    def allowed(_, ids):
        asked.append(ids[start:].tolist())
        return [4, 5] if len(asked[-1]) % 2 else [6, 7]

    wish = {"prefix_allowed_tokens_fn": allowed}
    whole = new_ids(right(inputs, **wish), inputs)
    assert new_ids(ours(inputs, drafter=Guesses(tiny(), whole), **wish), inputs) == whole
    assert all(t in ([6, 7], [4, 5])[k % 2] for text in asked for k, t in enumerate(text))


def test_what_looks_at_a_whole_batch_is_refused_for_several_rows():
    rows = padded([tiny_inputs("a b c"), tiny_inputs("and")])
    with pytest.raises(BadOption, match=r"PrefixConstrained.*each row"):
        ours(rows, prefix_allowed_tokens_fn=lambda batch, ids: [4, 5])
    with pytest.raises(BadOption, match=r"output_scores.*each row"):
        ours(rows, return_dict_in_generate=True, output_scores=True)
    with pytest.raises(BadOption, match="streamer takes one sequence"):
        ours(rows, streamer=TextStreamer(tiny().tokenizer))


def test_settings_do_in_padded_rows_what_they_do_alone():
    rows = [tiny_inputs("a b c d e f"), tiny_inputs("and")]
    for wish in (
        {"repetition_penalty": 1.3, "min_new_tokens": 3, "eos_token_id": answer()[0]},
        {"repetition_penalty": 300.0},  # beyond what is done for all nodes at once
    ):
        both = ours(padded(rows), **wish, max_new_tokens=10, pad_token_id=0)
        start = padded(rows)["input_ids"].shape[1]
        for got, row in zip(both, rows, strict=True):
            wanted = new_ids(right(row, **wish, max_new_tokens=10), row)
            assert got[start:].tolist()[: len(wanted)] == wanted


def test_common_settings_cost_no_call_for_each_node(monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(NodeProcessor, "__init__", never)
    ours(tiny_inputs(), repetition_penalty=1.1, bad_words_ids=[[9]], min_new_tokens=2)
    ours(tiny_inputs(), do_sample=True, temperature=0.5, top_p=0.9, min_p=0.1)
