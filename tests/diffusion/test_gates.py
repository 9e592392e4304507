"""When each gate stops, on scripted runs. Steps are counted from 1; each commits one token."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tabled import END, MASK, SIZE, Law, Tabled, ids_of, scripted, sure

from varifocal.diffusion import gates
from varifocal.diffusion.decode import Decoding
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.schedule import Plan
from varifocal.errors import BadOption

CANVAS = 20
# The tail is surer than the answer, so that commits stay away from it for a dozen steps.
HIGH, TAIL = 0.95, 0.99
A, B, NONE, OPEN = "#### 7$", "#### 8$", "nothing", "#### 77"


def told(text: str, confidence: float = HIGH) -> tuple[str, list[float]]:
    """A provisional text, filled up with ends."""
    rest = CANVAS - len(text)
    return text + "$" * rest, [confidence] * len(text) + [TAIL] * rest


def run(
    law: Law,
    gate: str | Gate,
    *,
    format: str | None = "number_hash",
    sampler="low_confidence",
    **plan,
) -> DiffusionResult:
    decoding = Decoding(
        Tabled(law),
        [ids_of("?")],
        format=format,
        plan=Plan(**{"canvas": CANVAS, "block": CANVAS} | plan),
        sampler=sampler,
        gate=gate,
    )
    for _ in decoding:
        pass
    (result,) = decoding.results()
    assert MASK not in result.token_ids
    return result


def exit_of(texts: Sequence[str], gate: str, confidence: float = HIGH) -> int | None:
    return run(scripted(*(told(text, confidence) for text in texts)), gate).exit_step


# -- CVC: candidate, streak, confidence --------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "step"),
    [
        ([A, A, B, B, B], 5),
        ([A, NONE, A, A, A], 5),
        ([A, A, A], 3),
        ([NONE, A], 4),
        ([A, OPEN + "x", A, A, A], 5),  # another candidate for a step
    ],
)
def test_the_streak_counts_observations_with_this_one(texts, step):
    assert exit_of(texts, "cvc:w=3:t_min=1") == step


@pytest.mark.parametrize("w", [1, 2, 3, 4])
def test_a_candidate_that_is_there_from_the_beginning_exits_at_w(w):
    assert exit_of([A], f"cvc:w={w}:t_min=1") == w


def test_no_exit_before_t_min():
    assert exit_of([A], "cvc:w=1") == 2
    assert exit_of([A], "cvc:w=1:t_min=6") == 6


def test_a_candidate_that_something_may_still_follow_is_none():
    text = "so #### 7" + "7" * (CANVAS - 9)  # no closer, no end
    result = run(scripted((text, HIGH)), "cvc:w=1")
    assert result.exit_step is None and result.finish == "filled"
    assert result.reason == "the format's parser never found a closed candidate"


def test_confidence_is_that_of_the_whole_span():
    text, confidence = told(A)
    for position in (0, 5, 6):  # marker, answer, closer
        low = [*confidence]
        low[position] = 0.5
        script = [(text, low)] * 3 + [(text, confidence)]
        assert run(scripted(*script), "cvc:w=2").exit_step == 4
    low = [*confidence]
    low[9] = 0.5  # behind the answer
    assert run(scripted((text, low)), "cvc:w=2").exit_step == 2


@pytest.mark.parametrize(("agg", "is_out"), [("min", False), ("mean", True), ("geo", False)])
def test_min_mean_and_geometric_mean_of_the_span(agg, is_out):
    text, confidence = told(A)
    confidence[5] = 0.56  # seven tokens: mean 0.894, geometric 0.881
    result = run(scripted((text, confidence)), f"cvc:w=2:agg={agg}:tau=0.89")
    assert (result.exit_step == 2) == is_out
    if agg == "mean":
        assert result.confidence == pytest.approx((6 * HIGH + 0.56) / 7, abs=1e-6)


def test_geometric_mean_has_its_value():
    text, confidence = told(A)
    confidence[5] = 0.56
    result = run(scripted((text, confidence)), "cvc:w=2:agg=geo:tau=0.8")
    assert result.confidence == pytest.approx(
        np.exp(np.mean(np.log([HIGH] * 6 + [0.56]))), abs=1e-6
    )


def test_a_committed_token_keeps_the_confidence_of_its_commit():
    """What the model says of a visible token afterwards must not count."""

    def law(prompt: list[int], canvas: list[int]) -> torch.Tensor:
        text, _ = told(A)
        each = [0.01 if token != MASK else 0.97 for token in canvas]
        return sure(ids_of(text), each)

    result = run(law, "cvc:w=8")
    assert result.exit_step == 8
    assert result.confidence == pytest.approx(0.97, abs=1e-6)


def test_a_committed_token_that_was_doubtful_stays_so():
    def law(prompt: list[int], canvas: list[int]) -> torch.Tensor:
        text, _ = told(A)
        each = [0.999 if token != MASK else 0.6 for token in canvas]
        return sure(ids_of(text), each)

    result = run(law, "cvc:w=2")
    assert result.exit_step is None
    assert result.reason == "no candidate that held was confident (min >= 0.9) in its context"


def answer_after(working: int) -> Law:
    """An answer known at once, and working before it that is committed from the left."""
    text = "w" * working + A
    text += "$" * (CANVAS - len(text))
    each = [0.99 - i / 1000 for i in range(working)] + [0.95] * (CANVAS - working)
    return scripted((text, each))


@pytest.mark.parametrize(
    ("context", "step"),
    [
        ("context=none", 2),
        ("context=prefix_frac:rho=0", 2),
        ("context=prefix_frac:rho=0.5", 5),  # 4 of 8 committed before the fifth
        ("context=prefix_committed", 9),
    ],
)
def test_context_asks_how_much_before_the_marker_is_decided(context, step):
    # The marker is the first "####" that a number follows.
    assert run(answer_after(8), f"cvc:w=2:{context}").exit_step == step


def test_with_one_token_a_step_tokens_and_steps_are_the_same():
    for w in (1, 2, 5):
        steps = exit_of([B, A], f"cvc:w={w}")
        assert exit_of([B, A], f"cvc:w={w}:unit=tokens") == steps


def test_tokens_count_what_parallel_steps_commit():
    law = scripted(told(A))
    plan = {"steps": 5}  # four tokens a step
    assert run(law, "cvc:w=6", **plan).exit_step is None
    assert run(law, "cvc:w=6:unit=tokens", **plan).exit_step == 3  # 1 + 8 committed since


def test_a_short_span_may_be_refused():
    assert exit_of([A], "cvc:w=2:min_len=7") == 2
    assert exit_of([A], "cvc:w=2:min_len=8") is None


def test_the_result_says_what_was_verified():
    result = run(scripted(told(A)), "cvc:w=3")
    assert result.verified_span == (0, 1, 2, 3, 4, 5, 6)
    assert result.value == "7" and result.finish == "exit" and result.num_filled == CANVAS - 2
    assert result.reason == "candidate '7' held for 3 steps, min confidence 0.950"
    assert [step.told["streak"] for step in result.steps] == [1, 2, 3]


def test_cut_drops_what_is_behind_the_closer():
    text = "#### 7.junk junk"
    text += "x" * (CANVAS - len(text))
    result = run(scripted((text, HIGH)), "cvc:w=2:fill=cut")
    assert result.token_ids == ids_of("#### 7.j") and result.text == "#### 7.j"
    assert result.value == "7"


def test_finish_block_goes_on_to_the_end_of_the_candidates_block_and_stops():
    law = scripted(told(A))
    result = run(law, "cvc:w=2:fill=finish_block", block=8)
    assert result.exit_step == 2 and result.nfe == 8  # the candidate lies in the first block
    assert result.num_filled == CANVAS - 8
    assert result.verified_span is not None and result.finish == "exit"
    assert result.text == "#### 7"


def test_a_span_that_later_steps_decided_otherwise_is_not_called_verified():
    law = scripted(*[told(A)] * 2, told(B))
    result = run(law, "cvc:w=2:fill=finish_block", block=8)
    assert result.exit_step == 2 and result.value == "8"
    assert result.verified_span is None and result.confidence is None


# -- freshness -----------------------------------------------------------------------------------


def in_second_block() -> Law:
    """Eight tokens of working, then an answer in the second of two blocks."""
    text = "workings" + A
    return scripted((text + "$" * (16 - len(text)), [0.97] * 8 + [0.96] * 8))


def test_a_stale_candidate_is_not_counted():
    """With the dual cache, the second block is computed when a block begins, and not between."""
    options = {"canvas": 16, "block": 8}
    gate = "cvc:w=3:context=none"
    assert run(in_second_block(), gate, **options).exit_step == 3
    # Seen at step 1, not between, and again at steps 9 and 10.
    result = run(in_second_block(), gate, caching="dual", **options)
    assert result.exit_step == 10
    assert [step.told["streak"] for step in result.steps] == [1] * 8 + [2, 3]
    # The prefix cache computes all that is behind: nothing is stale.
    assert run(in_second_block(), gate, caching="prefix", **options).exit_step == 3


def test_a_span_that_is_fresh_in_part_begins_again():
    """The answer reaches from the second block into the third."""
    law = scripted(("working along" + A + "$$$$", [0.97] * 8 + [0.96] * 16))
    result = run(law, "cvc:w=4:context=none", canvas=24, block=8, caching="dual")
    streaks = [step.told["streak"] for step in result.steps]
    assert streaks[:9] == [1] * 8 + [2]  # computed at steps 1 and 9, when blocks begin
    assert streaks[9:16] == [1] * 7  # of the span, only what lies in the second block
    assert streaks[16:] == [2, 3, 4]


# -- BWEC and LATCH ------------------------------------------------------------------------------


def early_steps(result: DiffusionResult) -> list[int]:
    return [step.step for step in result.steps if step.is_early]


def test_a_block_is_committed_whole_once_it_repeats_itself():
    result = run(scripted(("workings" + A + "$$$$$", 0.97)), "bwec", block=8)
    # Steps 1 and 2 see the first block; the second has been repeated by the time it is reached.
    assert early_steps(result) == [2, 3]
    assert [step.num_masked for step in result.steps[:3]] == [19, 12, 4]
    assert result.nfe == 3 + 4 and result.finish == "filled"  # the last block goes step by step
    assert result.text == "workings#### 7"


def test_bwec_counts_steps_spent_in_the_block():
    result = run(scripted(("workings" + A + "$$$$$", 0.97)), "bwec:s_min=3", block=8)
    assert early_steps(result) == [3, 6]


@pytest.mark.parametrize(
    ("low", "options", "fires"),
    [
        (0.89, "", False),
        (0.91, "", True),
        (0.5, "tau_lo=0.4:tau_b=0.9", True),
        (0.5, "tau_lo=0.4:tau_b=0.94", False),
    ],
)
def test_bwec_asks_for_the_mean_and_the_least_confidence(low, options, fires):
    each = [0.99] * 8 + [0.2] * 12
    each[7] = low
    result = run(scripted(("workings" + "x" * 12, each)), f"bwec:{options}".rstrip(":"), block=8)
    assert bool(early_steps(result)) == fires


def test_bwec_waits_for_w_b_repeats():
    law = scripted(("workings" + "x" * 12, [0.99] * 8 + [0.2] * 12))
    assert early_steps(run(law, "bwec:w_b=3", block=8)) == [4]


def test_an_argmax_that_changes_keeps_its_block():
    texts = ["working" + c + "x" * 12 for c in "abababab"]
    each = [0.99] * 7 + [0.98] + [0.2] * 12
    assert early_steps(run(scripted(*((t, each) for t in texts)), "bwec", block=8)) == []


def test_the_last_block_is_never_committed_early():
    assert early_steps(run(scripted(told(A)), "bwec")) == []


def test_a_block_of_ends_waits_while_something_is_said_behind_it():
    def fires(behind: str) -> list[int]:
        text = "$" * 8 + behind
        return early_steps(run(scripted((text, 0.97)), "bwec", block=8))

    assert fires("$" * 12) == [2, 3]
    assert fires("$" * 8 + "oops") == []
    assert fires("oops" + "$" * 8) == [9]  # the second block, which says something


def test_latch_is_both_rules():
    law = scripted(("workings" + A + "$$$$$", 0.97))
    result = run(law, "latch:w=4:context=prefix_committed", block=8)
    assert early_steps(result) == [2, 3]
    assert result.exit_step == 4 and result.value == "7"


# -- the rivals ----------------------------------------------------------------------------------


def test_full_never_stops():
    result = run(scripted(told(A)), "full")
    assert result.nfe == CANVAS and result.finish == "filled" and result.reason == ""


def test_reduced_plans_fewer_steps():
    law = scripted(told(A))
    assert run(law, "reduced:steps=7").nfe == 7
    assert run(law, "reduced:factor=3").nfe == 7
    assert run(law, "reduced:factor=100", block=8).nfe == 3  # one for each block
    assert run(law, "reduced").nfe == 10


def test_eos_stop_ends_with_the_text_and_without_another_forward():
    law = scripted((A + "$" * 13, [0.99 - i / 100 for i in range(CANVAS)]))  # left to right
    result = run(law, "eos_stop")
    assert result.nfe == 7 and result.token_ids == ids_of(A + "$" * 13)
    assert result.text == "#### 7" and result.num_filled == 13


def test_eos_stop_does_not_help_where_ends_are_committed_first():
    result = run(scripted(told(A)), "eos_stop")
    assert result.nfe == CANVAS and result.text == "#### 7"


def gap_of(confidence: float) -> float:
    """Of `sure`: all others share the rest."""
    return float(np.log(confidence / ((1 - confidence) / (SIZE - 2))))


@pytest.mark.parametrize(
    ("gap", "step"),
    [(8.0, 1), (6.0, 7), (4.0, 14), (2.0, None)],  # of 20: 1/3 is passed at 7, 2/3 at 14
)
def test_prophet_lowers_its_threshold_by_thirds(gap, step):
    odds = np.exp(gap) / (SIZE - 2)
    law = scripted(("x" * CANVAS, float(odds / (1 + odds))))
    assert gap_of(float(odds / (1 + odds))) == pytest.approx(gap, abs=0.02)
    assert run(law, "prophet:suffix=", format=None).exit_step == step


def test_prophet_pins_its_suffix_and_looks_behind_it():
    gate = gates.find("prophet:suffix=is:place=0.5:window=3")
    tabled = Tabled(scripted(("x" * CANVAS, 0.5)))
    plan = gate.plan(Plan(canvas=CANVAS, block=CANVAS), tabled.tokenizer)
    assert [position for position, _ in plan.pins] == [10, 11][: len(plan.pins)]
    assert gate.plan(plan, tabled.tokenizer) == plan
    last = plan.pins[-1][0]
    each = [0.3] * CANVAS
    each[last + 2 : last + 5] = [0.9999] * 3
    result = run(scripted(("x" * CANVAS, each)), gate, format=None)
    assert result.exit_step == 1 and f"in {last + 2}:{last + 5}" in result.reason
    assert "is" in result.text and result.nfe == 1


def test_prophet_needs_room_behind_its_suffix():
    with pytest.raises(BadOption, match="leaves no window on a canvas of 20"):
        run(scripted(told(A)), "prophet:place=0.9")


def test_sched_thresholds_have_their_shapes():
    def at(shape: str, t: float) -> float:
        return gates.find(f"sched:shape={shape}:high=7.5:low=2.5:k=2").threshold(t)

    assert [at("linear", t) for t in (0.0, 0.5, 1.0)] == [7.5, 5.0, 2.5]
    assert [at("cosine", t) for t in (0.0, 0.5, 1.0)] == pytest.approx([7.5, 5.0, 2.5])
    assert at("cosine", 0.25) == pytest.approx(2.5 + 5 * (1 + np.cos(np.pi / 4)) / 2)
    assert [at("exp", t) for t in (0.0, 1.0)] == pytest.approx([7.5, 2.5 + 5 * np.exp(-2)])


def test_sched_asks_for_the_mean_gap_of_the_masks():
    law = scripted(("x" * CANVAS, 0.9999))
    assert run(law, "sched:unchanged=false", format=None).exit_step == 1
    assert run(law, "sched", format=None).exit_step == 2  # no argmax may have changed
    assert run(scripted(("x" * CANVAS, 0.02)), "sched", format=None).exit_step is None


def test_sched_begins_again_when_a_masked_argmax_changes():
    texts = ["ab"[i % 2] + "x" * (CANVAS - 1) for i in range(6)] + ["x" * CANVAS]
    each = [0.999] + [0.9999] * (CANVAS - 1)
    assert run(scripted(*((t, each) for t in texts)), "sched", format=None).exit_step == 8


def test_the_whole_canvas_must_rest_and_be_sure():
    calm = scripted(("x" * CANVAS, 0.9999))
    assert run(calm, "stable_and_confident", format=None).exit_step == 2
    assert run(calm, "stable_and_confident:stability=3", format=None).exit_step == 4
    assert run(calm, "stable_and_confident:stability=0", format=None).exit_step == 1
    moving = scripted(*((text, 0.9999) for text in ["a" + "x" * 19, "b" + "x" * 19, "x" * 20]))
    assert run(moving, "stable_and_confident", format=None).exit_step >= 3
    # 0.0136 nats at each mask, none elsewhere: below 0.005 of 20 with seven masks left.
    doubtful = scripted(("x" * CANVAS, 0.999))
    assert run(doubtful, "stable_and_confident", format=None).exit_step == 14


def test_hf_k_and_our_w_count_the_same_steps():
    texts = [A, A, B, B, B]
    assert exit_of(texts, "cvc:w=3:t_min=1") == 5
    gate = "stable_and_confident:stability=2:entropy=10"
    assert exit_of(texts, gate) == 5


# -- names and settings --------------------------------------------------------------------------


def test_the_catalogue_has_every_gate():
    assert set(gates.names()) == set(
        "full reduced eos_stop prophet sched stable_and_confident cvc bwec latch oracle".split()
    )
    for name in gates.names():
        assert gates.find(name).name == name == gates.find(name).text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stop", "no gate is called 'stop'"),
        ("cvc:tau=1.5", "tau must be from 0 to 1"),
        ("cvc:w=0", "w must be a count from 1"),
        ("cvc:agg=max", "option agg wants"),
        ("cvc:w=true", "option w wants int"),
        ("latch:tau_b=2", "tau_b must be"),
        ("latch:rho=-1", "rho must be"),
        ("bwec:w=4", "bwec has no option w; it has tau_b, tau_lo, w_b, s_min"),
        ("reduced:factor=2:steps=3", "factor or steps, not both"),
        ("reduced:factor=0.5", "factor must be 1 or more"),
        ("sched:shape=flat", "option shape wants"),
        ("prophet:place=1", "place must be a part"),
        ("full:x=1", "full has no option x; it has none"),
    ],
)
def test_gates_that_cannot_be_are_refused(text, said):
    with pytest.raises(BadOption, match=said):
        gates.find(text)


def test_settings_of_latch_are_those_of_both_rules():
    latch = gates.find("latch:tau=0.8:tau_b=0.97:fill=cut")
    assert (latch.config.tau, latch.config.tau_b, latch.config.fill) == (0.8, 0.97, "cut")
    assert latch.text == "latch:tau=0.8:fill=cut:tau_b=0.97"


def test_the_oracle_is_refused_live():
    with pytest.raises(BadOption, match="the gate oracle knows the end of the run"):
        run(scripted(told(A)), "oracle")


def test_gates_that_look_for_an_answer_need_a_format():
    with pytest.raises(BadOption, match="the gate latch looks for an answer: give format="):
        run(scripted(told(A)), "latch", format=None)


def test_end_is_a_stop_token():
    assert END in Tabled(scripted(told(A))).vocabulary.stops
