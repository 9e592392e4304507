import json

import pytest
import torch
from ticking import Ticks
from tiny import picture, save_tiny, tiny_target
from transformers import LlamaConfig, LlamaForCausalLM

from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.errors import BadOption, UnsupportedTarget
from varifocal.evaluation.peers import Peer, parse_peer_options
from varifocal.request import ask
from varifocal.sampling import Sampling


@pytest.fixture(scope="module")
def target():
    return tiny_target()


@pytest.fixture(scope="module")
def request_():
    return ask("What is this?", [picture()], max_new_tokens=16)


@pytest.fixture(scope="module")
def plain(target, request_):
    return generate(target, load_drafter("plain", target), request_)


def peer(target, name, **options):
    return Peer(target, name, parse_peer_options(name, options))


def test_generate_says_what_plain_says(target, request_, plain):
    made = peer(target, "hf-generate").run(request_, Ticks())
    assert made.token_ids == plain.token_ids
    assert made.text == plain.text
    assert made.finish_reason == plain.finish_reason
    assert made.mean_acceptance_length == 1.0
    assert (made.prompt_tokens, made.image_tokens) == (plain.prompt_tokens, plain.image_tokens)


def test_first_arrival_ends_the_prefill(target, request_):
    made = peer(target, "hf-generate").run(request_, Ticks())
    assert made.seconds["prefill"] == 1.0  # one look at the start, one at the first token
    assert made.seconds["decode"] == len(made.rounds) + 1  # and one when generate returned
    assert made.seconds["draft"] == made.seconds["verify"] == 0


def test_prompt_lookup_counts_what_came_together(target, request_, plain):
    made = peer(target, "hf-prompt-lookup", ngram="3").run(request_, Ticks())
    assert made.token_ids == plain.token_ids
    assert [t for r in (made.prefill, *made.rounds) for t in r.tokens] == made.token_ids
    assert all(r.num_accepted == len(r.tokens) - 1 for r in made.rounds)


def test_assistant_is_loaded_by_name(target, request_, plain, tmp_path):
    folder = save_tiny(tmp_path / "assistant", seed=1)
    made = peer(target, "hf-assistant", model=str(folder))
    assert made.memory_bytes > 0
    assert made.run(request_, Ticks()).token_ids == plain.token_ids


def test_a_text_model_with_the_same_tokenizer_assists_as_well(target, request_, plain, tmp_path):
    small = LlamaConfig(
        vocab_size=target.vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096,
    )  # fmt: skip
    LlamaForCausalLM(small).save_pretrained(tmp_path)
    target.tokenizer.save_pretrained(tmp_path)
    made = peer(target, "hf-assistant", model=str(tmp_path))
    assert made.assistant is not None
    assert made.run(request_, Ticks()).token_ids == plain.token_ids


def test_an_assistant_with_another_tokenizer_is_refused(target, tmp_path):
    folder = save_tiny(tmp_path / "other")
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content))
    with pytest.raises(BadOption, match="another tokenizer than tiny"):
        peer(target, "hf-assistant", model=str(folder))


def test_assistant_must_be_given(target):
    with pytest.raises(BadOption, match="hf-assistant:model=PATH"):
        peer(target, "hf-assistant")
    with pytest.raises(UnsupportedTarget, match="cannot be loaded"):
        peer(target, "hf-assistant", model="/nonesuch")


def test_sampling_leaves_the_global_generator_alone(target):
    request = ask("What?", max_new_tokens=6, sampling=Sampling(temperature=1.0, seed=3))
    before = torch.get_rng_state()
    texts = [peer(target, "hf-generate").run(request, Ticks()).token_ids for _ in range(2)]
    assert texts[0] == texts[1]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("settings", [{"min_p": 0.1}, {"repetition_penalty": 1.2}], ids=str)
def test_settings_that_a_peer_does_not_get_are_refused(settings, target):
    request = ask("What?", max_new_tokens=6, sampling=Sampling(**settings))
    with pytest.raises(BadOption, match="temperature, top-k and top-p alone"):
        peer(target, "hf-generate").run(request, Ticks())


def test_stop_text_ends_both_alike(target, plain):
    piece = plain.text[3:6]
    request = ask("What is this?", [picture()], max_new_tokens=16, stop=[piece])
    ours = generate(target, load_drafter("plain", target), request)
    theirs = peer(target, "hf-generate").run(request, Ticks())
    assert (theirs.text, theirs.finish_reason) == (ours.text, ours.finish_reason)
