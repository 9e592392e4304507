"""Every setting gives with any drafter what it gives without: ids, text, log-probs and counts."""

import math
import random
from dataclasses import replace

import pytest
import tiny
import torch
from scripted import EOS, MODES, Scripted, Told, ids_of, saying

from varifocal.decode import Generation, answers, generate
from varifocal.drafters.plain import PlainDrafter
from varifocal.errors import BadRequest
from varifocal.request import ask
from varifocal.sampling import Sampling

SAMPLED = {"temperature": 0.9, "seed": 7}
SETTINGS = {
    "none": {},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.7},
    "min-p": {"min_p": 0.2},
    "repetition": {"repetition_penalty": 1.5},
    "repetition that rewards": {"repetition_penalty": 0.8},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5},
    "frequency that rewards": {"frequency_penalty": -1.5},
    "bias": {"logit_bias": {70: 8.0, 71: 7.5, 72: -100.0}},
    "bad words": {"bad_words": [(t,) for t in range(60, 150)] + [(200, 201), "the"]},
    "end tokens late": {"min_new_tokens": 9, "logit_bias": {0: 5.0}},
    "all": {
        "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.2,
        "presence_penalty": 0.5, "frequency_penalty": 0.5, "logit_bias": {70: 3.0},
        "bad_words": [(70, 70), (71,)], "min_new_tokens": 5,
    },
}  # fmt: skip


def plainly(target, request):
    return generate(target, PlainDrafter(target, PlainDrafter.Config()), request)


def comparable(result):
    return result.token_ids, result.text, result.finish_reason


@pytest.fixture(scope="module")
def target():
    return tiny.tiny_target(sharp=0.2)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_ids_do_not_depend_on_the_drafter(setting, temperature, target):
    sampling = Sampling(temperature=temperature, seed=3, **SETTINGS[setting])
    request = ask("what is it?", max_new_tokens=10, sampling=sampling)
    plain = plainly(target, request)
    for mode in MODES:
        drafted = generate(target, Told(target, plain.token_ids, mode), request)
        assert comparable(drafted) == comparable(plain), mode
        assert (drafted.num_spec_steps < plain.num_spec_steps) is (mode != "wrong"), mode


@pytest.mark.parametrize(
    "setting", ["repetition", "presence", "frequency", "bias", "bad words", "all"]
)
def test_greedy_decoding_heeds_what_changes_logits(setting, target):
    request = ask("what is it?", max_new_tokens=10)
    settings = {k: v for k, v in SETTINGS[setting].items() if k not in ("top_k", "top_p", "min_p")}
    changed = replace(request, sampling=Sampling(**settings))
    assert plainly(target, changed).token_ids != plainly(target, request).token_ids


HF = {
    "repetition": (Sampling(repetition_penalty=1.4), {"repetition_penalty": 1.4}),
    "bias": (Sampling(logit_bias={70: 6.0}), {"sequence_bias": [[[70], 6.0]]}),
    "bad words": (
        Sampling(bad_words=[(t,) for t in range(60, 150)]),
        {"bad_words_ids": [[t] for t in range(60, 150)]},
    ),
    "end tokens late": (
        Sampling(min_new_tokens=7, logit_bias={EOS: 50.0}),
        {"min_new_tokens": 7, "sequence_bias": [[[EOS], 50.0]]},
    ),
}


@pytest.mark.parametrize("setting", HF)
def test_a_picture_prompt_is_penalised_as_transformers_own_generate_does(setting, target):
    assert target.eos_ids == {EOS}
    sampling, theirs = HF[setting]
    request = ask("what is it?", [tiny.picture()], max_new_tokens=12, sampling=sampling)
    prompt = target.encode(request)
    made = target.model.generate(
        input_ids=prompt.tokens[None],
        attention_mask=torch.ones_like(prompt.tokens[None]),
        **prompt.pixels,
        **theirs,
        max_new_tokens=12,
        do_sample=False,
        pad_token_id=0,
    )
    wanted = made[0, len(prompt.tokens) :].tolist()
    assert generate(target, Told(target, wanted, "mixed"), request).token_ids == wanted


def looping(answer):
    """Says x y z for ever, but other tokens are not far behind."""
    wanted = ids_of("xyz")[len(answer) % 3]
    return [3.0 if t == wanted else 2.5 - 0.01 * t for t in range(258)]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [{"frequency_penalty": 0.7}, {"repetition_penalty": 1.3}])
def test_penalties_break_a_loop_at_the_same_token_with_every_drafter(settings, mode):
    target = Scripted(looping)
    request = ask("x", max_new_tokens=60, sampling=Sampling(**settings))
    unpenalised = plainly(target, ask("x", max_new_tokens=60)).token_ids
    plain = plainly(target, request)
    drafted = generate(target, Told(target, plain.token_ids, mode, depth=4), request)
    assert drafted.token_ids == plain.token_ids != unpenalised


def ending_at(*places):
    """Wants the end token where these many tokens have come."""
    return lambda answer: [
        9.0 if t == (EOS if len(answer) in places else 7) else 0.01 * t for t in range(20)
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("least", "length"), [(0, 6), (4, 6), (5, 6), (6, 9), (8, 9)])
def test_an_end_token_may_come_once_min_new_tokens_came_before_it(least, length, mode):
    target = Scripted(ending_at(5, 8), 20)
    request = ask("x", max_new_tokens=30, sampling=Sampling(min_new_tokens=least))
    plain = plainly(target, request)
    drafted = generate(target, Told(target, plain.token_ids, mode, depth=3), request)
    assert comparable(drafted) == comparable(plain)
    assert len(plain.token_ids) == length and plain.finish_reason == "eos"


@pytest.mark.parametrize("mode", MODES)
def test_an_end_token_that_is_always_wanted_comes_at_the_first_place_allowed(mode):
    target = Scripted(ending_at(*range(40)), 20)
    request = ask("x", max_new_tokens=30, sampling=Sampling(min_new_tokens=8))
    script = [19] * 8 + [EOS]
    assert generate(target, Told(target, script, mode, depth=4), request).token_ids == script


def test_the_text_ends_at_an_end_token_inside_an_accepted_block():
    script = [*ids_of("ab"), EOS, *ids_of("cde")]
    target = Scripted(saying(script))
    generation = Generation(target, Told(target, script), ask("x", max_new_tokens=20))
    pieces = [decided.text for decided in generation]
    result = generation.result()
    assert result.token_ids == script[:3] and result.finish_reason == "eos"
    assert "".join(pieces) == result.text == "ab"
    assert sum(r.num_accepted for r in result.rounds) == 2  # what is behind the end is not counted
    assert comparable(result) == comparable(plainly(target, ask("x", max_new_tokens=20)))


@pytest.mark.parametrize("depth", range(1, 17))
def test_a_stop_text_is_found_early_in_a_block_of_any_length(depth):
    script = ids_of("ok. It goes on and on")
    target = Scripted(saying(script))
    request = ask("x", stop=". ", logprobs=0)
    drafted = generate(target, Told(target, script, depth=depth), request)
    assert comparable(drafted) == (ids_of("ok. "), "ok", "stop")
    assert len(drafted.logprobs) == 4
    assert comparable(drafted) == comparable(plainly(target, request))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("script", "budget", "length", "reason"),
    [
        ([*ids_of("abcde"), EOS, *ids_of("uvw")], 7, 6, "eos"),
        ([*ids_of("abcdefg"), EOS], 7, 7, "length"),
        (ids_of("abcdefg#"), 7, 7, "length"),
        (ids_of("abcd#fg"), 7, 5, "stop"),
        (ids_of("abcdef#"), 7, 7, "stop"),
    ],
)
def test_the_earliest_end_decides_when_several_meet(script, budget, length, reason, mode):
    target = Scripted(saying(script))
    request = ask("x", max_new_tokens=budget, stop="#")
    drafted = generate(target, Told(target, script, mode), request)
    assert len(drafted.token_ids) == length and drafted.finish_reason == reason
    assert comparable(drafted) == comparable(plainly(target, request))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("budget", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("stop", [(), ("d",)])
def test_ids_log_probs_usage_and_counters_agree(budget, stop, mode):
    script = ids_of("abcdefghij")
    target = Scripted(saying(script))
    request = ask("x", max_new_tokens=budget, stop=stop, logprobs=2)
    result = generate(target, Told(target, script, mode, depth=4), request)
    length = min(budget, 4) if stop else budget
    rounds = [result.prefill, *result.rounds]
    made = result.to_dict()
    assert result.token_ids == script[:length] == [e.token for e in result.logprobs]
    assert made["usage"]["completion_tokens"] == length == len(made["logprobs"])
    assert [t for r in rounds for t in r.tokens] == result.token_ids
    assert [e for r in rounds for e in r.logprobs] == result.logprobs
    assert all(r.num_accepted <= min(r.num_drafted, len(r.tokens)) for r in rounds)
    histogram = made["spec"]["acceptance_histogram"]
    accepted = sum(j * count for j, count in enumerate(histogram))
    assert accepted == made["spec"]["num_accepted_draft_tokens"]
    assert sum(histogram) == made["spec"]["num_spec_steps"]


@pytest.mark.parametrize("settings", [{}, {**SAMPLED, "repetition_penalty": 1.4, "top_k": 9}])
@pytest.mark.parametrize("mode", MODES)
def test_log_probs_are_the_targets_own_with_every_drafter(settings, mode, target):
    request = ask("what?", max_new_tokens=12, sampling=Sampling(**settings), logprobs=3)
    plain = plainly(target, request)
    drafted = generate(target, Told(target, plain.token_ids, mode), request)
    assert [e.token for e in drafted.logprobs] == drafted.token_ids == plain.token_ids
    for ours, theirs in zip(drafted.logprobs, plain.logprobs, strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert len(ours.best) == 3
        for (_, a), (_, b) in zip(ours.best, theirs.best, strict=True):
            assert a == pytest.approx(b, abs=1e-4)
    assert drafted.to_dict().keys() == plain.to_dict().keys()


def test_log_probs_are_of_the_raw_logits_whatever_the_settings(target):
    sampling = Sampling(temperature=0.3, top_k=2, repetition_penalty=2.0, logit_bias={70: 100.0})
    request = ask("what?", max_new_tokens=1, sampling=sampling, logprobs=1)
    result = plainly(target, request)
    prompt = target.encode(request)
    (entry,) = result.logprobs
    logits = target.model(input_ids=prompt.tokens[None]).logits[0, -1]
    law = logits.detach().log_softmax(-1)
    assert entry.token == 70
    assert entry.logprob == pytest.approx(float(law[70]), abs=1e-4)
    assert entry.best[0] == (int(law.argmax()), pytest.approx(float(law.max()), abs=1e-4))


def test_log_probs_are_absent_unless_asked_for(target):
    result = plainly(target, ask("what?", max_new_tokens=2))
    assert result.logprobs is None and "logprobs" not in result.to_dict()
    with pytest.raises(BadRequest, match="logprobs asks for the 9999 best"):
        plainly(target, ask("what?", logprobs=9999))


@pytest.mark.parametrize("depth", [0, 1, 4])
def test_streamed_pieces_join_to_the_text_whatever_bytes_a_block_ends_in(depth):
    text = "čaj 🙂 木漏れ日"
    script = ids_of(text)
    target = Scripted(saying(script))
    generation = Generation(target, Told(target, script, depth=depth), ask("x"))
    pieces = [decided.text for decided in generation]
    assert "".join(pieces) == generation.result().text == text
    assert not any("\ufffd" in piece for piece in pieces)


def noisy(vocab, spread=1.5):
    """A law that depends on the last two tokens."""

    def law(answer):
        rng = random.Random(str(answer[-2:]))
        return [spread * rng.gauss(0, 1) for _ in range(vocab)]

    return law


def test_drawn_tokens_follow_the_targets_law_when_drafts_are_accepted():
    p = [0.35, 0.0, 0.2, 0.15, 0.1, 0.1, 0.06, 0.04]  # the end token never
    target = Scripted(lambda answer: [math.log(v) if v else -math.inf for v in p], 8, context=9000)
    sampling = Sampling(temperature=1.0, seed=1)
    request = ask("x", max_new_tokens=1000, sampling=sampling)
    result = generate(target, Told(target, [2] * 1000, "tree", depth=2), request)
    # A token's place in its round tells whether it follows the root or accepted guesses.
    counts = torch.zeros(3, 8)
    for decided in result.rounds[:-1]:
        for place, token in enumerate(decided.tokens):
            counts[place, token] += 1
    assert counts[:, 1].sum() == 0
    for place in counts:
        expected = place.sum() * torch.tensor(p)
        distance = (place - expected) ** 2 / expected.clamp(min=1e-9)
        assert float(distance.sum()) < 22.5  # 6 degrees of freedom at 0.1 %
    # A guess is accepted where the target draws it itself: with the mass of 2 and 3, sum p * q.
    guessed = [r.num_accepted > 0 for r in result.rounds[:-1]]
    assert sum(guessed) / len(guessed) == pytest.approx(p[2] + p[3], abs=0.05)


@pytest.mark.parametrize("mode", MODES)
def test_a_seeded_request_gives_the_same_answer_however_often_it_is_asked(mode):
    target = Scripted(noisy(40), 40)
    request = ask("x", max_new_tokens=25, sampling=Sampling(temperature=1.8, seed=7))
    plain = plainly(target, request)
    drafter = Told(target, plain.token_ids, mode)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    for _ in range(5):
        assert comparable(generate(target, drafter, request)) == comparable(plain)
    assert torch.equal(torch.get_rng_state(), state)  # nobody else's draws are disturbed
    other = replace(request, sampling=Sampling(temperature=1.8, seed=8))
    live = [Generation(target, drafter, r) for r in (request, other)]
    running = [iter(g) for g in live]
    while running:
        running = [r for r in running if next(r, None) is not None]
    assert comparable(live[0].result()) == comparable(plain)
    assert live[1].result().token_ids != plain.token_ids


def test_a_drafter_that_agrees_with_the_target_is_accepted_whole_under_filters():
    target = Scripted(noisy(40), 40)
    sampling = Sampling(temperature=0.3, top_p=0.8, seed=5)
    request = ask("x", max_new_tokens=25, sampling=sampling)
    plain = plainly(target, request)
    drafted = generate(target, Told(target, plain.token_ids), request)
    assert drafted.token_ids == plain.token_ids
    assert all(r.num_accepted == min(r.num_drafted, len(r.tokens)) for r in drafted.rounds)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt", [20, 31, 60])
def test_past_the_drafters_context_decoding_goes_on_plainly(prompt, mode):
    target = Scripted(noisy(40), 40, prompt=prompt, context=160)
    sampling = Sampling(bad_words=[(EOS, 2)], logit_bias={EOS: -100.0})
    request = ask("x", max_new_tokens=80, sampling=sampling)
    plain = plainly(target, request)
    drafter = Told(target, plain.token_ids, mode, reads=32)
    drafted = generate(target, drafter, request)
    assert comparable(drafted) == comparable(plain)
    assert drafter.last_position <= 31
    assert drafted.fallback.count("told reads 32 positions") == 1
    assert (sum(r.num_drafted for r in drafted.rounds) > 0) is (prompt == 20)
    assert plain.fallback is None


@pytest.mark.parametrize("mode", MODES)
def test_no_position_beyond_the_targets_context_is_read(mode):
    target = Scripted(saying(ids_of("abcdefghijkl")), prompt=28, context=32)
    drafter = Told(target, ids_of("abcdefghijkl"), mode, depth=8)
    result = generate(target, drafter, ask("x", max_new_tokens=4))
    assert result.text == "abcd" and target.last_position < 32
    assert drafter.last_position < 32


def test_answers_are_those_of_the_following_seeds_and_the_prompt_is_read_once():
    target = Scripted(noisy(40), 40)
    request = ask("x", max_new_tokens=12, sampling=Sampling(temperature=1.0, seed=2**63 - 2))
    script = plainly(target, request).token_ids
    target.num_prefills = 0
    several = answers(target, Told(target, script, "mixed"), request, 3)
    running = [iter(g) for g in several]
    while running:  # in turns
        running = [r for r in running if next(r, None) is not None]
    assert target.num_prefills == 1
    for generation, seed in zip(several, (2**63 - 2, 2**63 - 1, 0), strict=True):
        alone = replace(request, sampling=Sampling(temperature=1.0, seed=seed))
        assert comparable(generation.result()) == comparable(plainly(target, alone))
    assert len({g.result().text for g in several}) > 1
    with pytest.raises(BadRequest, match="n must be a count"):
        answers(target, Told(target, script), request, 0)


@pytest.mark.parametrize("is_drafted", [False, True])
def test_several_greedy_answers_about_two_pictures_equal_the_single_one(is_drafted, target):
    pictures = [tiny.picture(1), tiny.picture(2, (96, 180))]
    request = ask("compare", pictures, max_new_tokens=8)
    single = plainly(target, request)
    drafter = Told(target, single.token_ids if is_drafted else [], "mixed")
    several = answers(target, drafter, request, 3)
    for generation in several:
        for _ in generation:
            pass
        result = generation.result()
        assert comparable(result) == comparable(single)
        assert result.image_tokens == single.image_tokens
