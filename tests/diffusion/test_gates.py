"""When LATCH's own gates stop, on scripted runs of a token a step. Steps are counted from 1."""

import numpy as np
import pytest
import torch
from gated import CANVAS, HIGH, NONE, OPEN, TAIL, A, B, exit_of, run, told
from tabled import MASK, Law, ids_of, scripted, sure

from varifocal.diffusion.candidate import Candidate
from varifocal.diffusion.gates._cvc import CVCConfig, Streak, ended
from varifocal.diffusion.result import DiffusionResult

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

    result = run(law, "cvc:w=2:tau=0.9:agg=min")
    assert result.exit_step == 7  # its seven tokens, and nothing can change them any more
    assert result.reason == "the text has ended, with candidate '7'"
    assert result.confidence == pytest.approx(0.6, abs=1e-6)


def test_a_text_that_has_ended_without_an_answer_runs_to_its_end():
    result = run(scripted((told(NONE)[0], [0.99 - i / 1000 for i in range(CANVAS)])), "cvc:w=2")
    assert result.exit_step is None and result.finish == "filled"


def test_a_drawn_token_that_the_parser_has_not_seen_is_looked_at_first():
    """What is committed may differ from the argmax that the candidate was found in."""
    config, streak = CVCConfig(), Streak(stops=frozenset({0}))
    span = Candidate(value="7", span=(1,), closed=True, marker=1, ids=(7,))
    streak.candidate, streak.says = span, np.array([5, 7, 0, 0])
    masked = np.array([False, False, False, True])
    assert ended(config, streak, np.array([5, 7, 0, MASK]), masked) is not None
    assert ended(config, streak, np.array([6, 7, 0, MASK]), masked) is None  # another beginning
    assert ended(config, streak, np.array([5, 7, 9, MASK]), masked) is None  # no end


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


def test_a_guess_in_the_form_of_the_answer_waits_for_what_is_said_behind_it():
    text = "\\boxed{4} b7"
    text += "$" * (CANVAS - len(text))
    doubtful = [HIGH] * 9 + [0.5] * 3 + [TAIL] * (CANVAS - 12)
    sure = [HIGH] * 12 + [TAIL] * (CANVAS - 12)
    script = [(text, doubtful)] * 4 + [(text, sure)]
    assert run(scripted(*script), "cvc:w=2:context=none", format="boxed").exit_step == 5
    assert run(scripted((text, sure)), "cvc:w=2:context=none", format="boxed").exit_step == 2


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
    result = run(law, "latch:w=9:context=prefix_committed", block=8)
    assert early_steps(result) == [2, 3]  # the second has all of the answer, and the text's end
    assert result.exit_step == 3 and result.value == "7"
    law = scripted(("working" + A + "$$$$$$", [0.97] * 7 + [0.6] + [0.97] * 12))
    result = run(law, "latch:w=4:t_min=1:context=none:agg=mean", block=8)
    assert early_steps(result) == [] and result.exit_step == 4
