"""What goes wrong elsewhere when tokens come in blocks, and does not go wrong here."""

import json
from functools import cache

import pytest
import torch
from checkpoints import built
from scripted import EOS, Scripted, Told, ids_of, saying
from tiny import picture, tiny_target
from typer.testing import CliRunner

import varifocal
from varifocal.cli import app
from varifocal.decode import Generation, answers, generate
from varifocal.drafters import load_drafter
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.request import Message, Request, ask
from varifocal.sampling import Sampling
from varifocal.target import Want
from varifocal.targets import load_target

SMALL = {"nodes": 8, "depth": 3, "inner": 32, "memory_width": 16, "bottleneck": 8}
PROMPT = "what is it? what is it? what is it?"


@cache
def target_of(name):
    return load_target(str(built(name)), dtype=torch.float32)


def plainly(target, request):
    return generate(target, load_drafter("plain", target), request)


# -- near-ties and ends ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_exact_ties_go_to_the_same_token_at_every_draft_length(dtype):
    target = tiny_target(dtype=dtype, exact_rows=dtype != torch.float32)
    head = target.model.lm_head.weight
    with torch.no_grad():  # every token has a twin, so every choice is a tie of two
        half = len(head) // 2
        head[half : 2 * half] = head[:half]
    request = ask("what is it?", max_new_tokens=16)
    _, seen = target.prefill(target.encode(request), Want())
    best = seen.logits[0].topk(2)
    assert best.values[0] == best.values[1]
    assert abs(int(best.indices[0] - best.indices[1])) == half
    plain = plainly(target, request)
    for depth in range(1, 9):
        for mode in ("perfect", "mixed", "tree"):
            drafter = Told(target, plain.token_ids, mode, depth=depth)
            assert generate(target, drafter, request).token_ids == plain.token_ids


def test_a_second_turn_after_an_answer_that_ended_inside_a_block_equals_a_cold_run():
    def conversation_of(says):
        return Request(
            messages=(
                Message("user", ("hi",)),
                Message("assistant", (says,)),
                ask("on?").messages[0],
            )
        )

    target = tiny_target()
    first = plainly(target, ask("hi", max_new_tokens=12))
    target.eos_ids = frozenset({first.token_ids[3]})
    script = first.token_ids
    drafted = generate(target, Told(target, script, depth=6), ask("hi", max_new_tokens=12))
    assert drafted.token_ids == script[: script.index(script[3]) + 1]
    assert len(drafted.rounds) == 1  # the end stood inside the block
    warm = plainly(target, conversation_of(drafted.text))
    cold = tiny_target()
    cold.eos_ids = target.eos_ids
    assert warm.token_ids == plainly(cold, conversation_of(drafted.text)).token_ids


def test_lookup_needs_no_end_token():
    target = tiny_target()
    target.eos_ids = frozenset()
    request = ask(PROMPT, [picture()], max_new_tokens=30)
    drafted = generate(target, load_drafter("lookup", target), request)
    assert drafted.token_ids == plainly(target, request).token_ids
    assert len(drafted.token_ids) == 30
    assert sum(r.num_drafted for r in drafted.rounds) > 0


# -- requests beside each other ----------------------------------------------------------------


@pytest.mark.parametrize("name", ["llava_next", "qwen2_5_vl", "internvl"])
def test_requests_between_abandoned_ones_are_answered_as_alone(name):
    target = target_of(name)
    drafter = FoveaDrafter(target, FoveaDrafter.Config(**SMALL))
    drafter.prepare()
    pictures = [picture(seed, (60, 40)) for seed in (1, 2)]  # of one size, unlike each other
    asked = [
        *(ask("what is it?", [image], max_new_tokens=10) for image in pictures),
        ask("what is it?", max_new_tokens=10),
    ]
    alone = []
    for request in asked:
        fresh = load_target(str(built(name)), dtype=torch.float32)
        alone.append(plainly(fresh, request).token_ids)
    assert alone[0] != alone[1] != alone[2]
    left = []
    for turn, number in enumerate((0, 1, 0, 2, 1, 0, 2)):
        left.append(Generation(target, drafter, asked[turn % 3]))
        for _ in range(turn % 4):
            next(iter(left[-1]))  # and never to its end
        assert generate(target, drafter, asked[number]).token_ids == alone[number]


# -- options -----------------------------------------------------------------------------------

OPTIONS = {
    "log-probs": ({"logprobs": 3}, {}),
    "stop": ({"stop": "~~~"}, {}),
    "penalties": ({}, {"repetition_penalty": 1.1, "presence_penalty": 0.1}),
    "bans": ({}, {"bad_words": ["zzz"], "logit_bias": {40: 1.0}, "min_new_tokens": 5}),
    "sampling": ({}, {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "min_p": 0.01}),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_no_option_switches_drafting_off(option):
    settings, sampling = OPTIONS[option]
    target = tiny_target()
    request = ask(PROMPT, max_new_tokens=20, sampling=Sampling(**sampling), **settings)
    plain = plainly(target, request)
    (several,) = answers(target, Told(target, plain.token_ids), request, 1)
    for _ in several:
        pass
    for result in (several.result(), generate(target, Told(target, plain.token_ids), request)):
        assert result.token_ids == plain.token_ids and result.fallback is None
        assert result.num_spec_steps < plain.num_spec_steps / 2


@pytest.mark.parametrize("depth", [2, 5, 9])
def test_the_draft_length_that_was_asked_for_is_drafted_however_it_was_asked(depth, tmp_path):
    folder, options = built("llava_next"), {"depth": depth, "nodes": depth}
    engine = varifocal.load(folder, "lookup", dtype="float32", drafter_options=options)
    request = ask(PROMPT, max_new_tokens=40)
    by_hand = engine.generate(request)
    assert max(r.num_drafted for r in by_hand.rounds) == depth
    config = tmp_path / "run.yaml"
    config.write_text(f"drafting:\n  drafter: lookup\n  set: [depth={depth}, nodes={depth}]\n")
    common = ["generate", "--target", str(folder), "--dtype", "float32", "--prompt", PROMPT,
              "--max-new-tokens", "40", "--quiet", "--json", "-"]  # fmt: skip
    typed = ["--drafter", "lookup", "--set", f"depth={depth}", "--set", f"nodes={depth}"]
    for more in (typed, ["--config", str(config)]):
        ran = CliRunner().invoke(app, [*common, *more])
        assert ran.exit_code == 0, ran.output
        assert json.loads(ran.stdout)["spec"] == by_hand.to_dict()["spec"]


# -- figures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "tau"), [("perfect", 4.0), ("wrong", 1.0)])
def test_tokens_a_round_are_four_for_perfect_drafts_of_three_and_one_for_wrong_ones(mode, tau):
    script = ids_of("abcdefghijkl")  # the first comes with the prefill, 4 each with 3 rounds
    target = Scripted(saying([*script, *ids_of("m")]))
    request = ask("x", max_new_tokens=13)
    result = generate(target, Told(target, [*script, *ids_of("m")], mode, depth=3), request)
    assert result.mean_acceptance_length == tau
    assert sum(len(r.tokens) for r in result.rounds) + 1 == len(result.token_ids) == 13


def test_counters_of_twenty_requests_add_up_to_what_was_delivered():
    results = []
    for length in range(1, 21):
        script = [*ids_of("x" * length), EOS, *ids_of("never")]
        target = Scripted(saying(script))
        results.append(generate(target, Told(target, script, "perfect"), ask("x")))
        assert results[-1].token_ids == script[: length + 1]
    for result in results:
        spec = result.to_dict()["spec"]
        assert spec["num_accepted_draft_tokens"] <= spec["num_draft_tokens"]
        assert spec["num_accepted_draft_tokens"] < len(result.token_ids)
    made = sum(r.to_dict()["usage"]["completion_tokens"] for r in results)
    assert made == sum(range(2, 22))
    assert made == sum(len(r.tokens) for g in results for r in (g.prefill, *g.rounds))
