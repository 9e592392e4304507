"""When the other gates stop, on scripted runs of a token a step; what gates can be asked for."""

import numpy as np
import pytest
from gated import CANVAS, A, B, exit_of, run, told
from tabled import SIZE, Tabled, ids_of, scripted

from varifocal.diffusion import gates
from varifocal.diffusion.schedule import Plan
from varifocal.errors import BadOption


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
