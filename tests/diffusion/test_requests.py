"""What can be asked of the loop and what cannot, and what it says where an answer never comes."""

import pytest
from tabled import MASK, SIZE, Tabled, ids_of, scripted

from varifocal.diffusion.decode import generate
from varifocal.diffusion.schedule import Plan
from varifocal.errors import BadOption, BadRequest
from varifocal.sampling import Sampling


def run(denoiser, prompts, **options):
    chosen = {"format": None, "plan": Plan(canvas=22, block=8), "gate": "full"} | options
    return generate(denoiser, prompts, **chosen)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"prompts": [[]]}, BadRequest, "prompt 0 is empty"),
        ({"prompts": [[5], [SIZE]]}, BadRequest, "prompt 1 has token ids outside"),
        ({"prompts": [[5, MASK]]}, BadRequest, "contains the model's mask token"),
        ({"prompts": "why"}, BadRequest, "wanted a list of prompts"),
        ({"prompts": [[5] * 30]}, BadRequest, "reads 40 in all; give canvas=10 at most"),
        ({"prompts": [[5] * 40]}, BadRequest, "shorten the prompt"),
        ({"format": "number"}, BadOption, "no format is called 'number'"),
        ({"sampler": "threshold", "plan": Plan(steps=8)}, BadOption, "steps=8 has no effect"),
        (
            {"sampler": "factor", "gate": "reduced"},
            BadOption,
            "steps=11, for which the gate reduced asks, has no effect",
        ),
        ({"sampling": [Sampling()] * 2}, BadRequest, "one for each of 1 prompts, got 2"),
        ({"sampling": Sampling(presence_penalty=1.0)}, BadRequest, "from left to right"),
        ({"max_batch": 0}, BadOption, "max_batch must be a count"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused_before_a_forward(options, error, said):
    denoiser = Tabled(scripted(("x" * 22, 0.5)), context=40)
    with pytest.raises(error, match=said):
        run(denoiser, **({"prompts": [[5]]} | options))
    assert not denoiser.forwards


def test_no_prompts_have_no_results():
    assert run(Tabled(scripted(("x", 0.5))), []) == []


def test_a_parser_that_never_matches_runs_to_the_end_and_says_so():
    (result,) = run(
        Tabled(scripted(("no number in here" + "$" * 5, 0.99))),
        [[5]],
        format="number_hash",
        gate="latch",
    )
    assert result.finish == "filled" and result.exit_step is None and result.candidate is None
    assert result.reason == "the format's parser never found a closed candidate"
    assert MASK not in result.token_ids and result.text == "no number in here"


def test_pinned_tokens_stay_and_blocks_of_pins_need_no_forward():
    pins = tuple(enumerate(ids_of("pinned!!"), start=4))
    plan = Plan(canvas=12, block=4, pins=pins)
    (result,) = run(Tabled(scripted(("x" * 12, 0.5))), [[5]], plan=plan)
    assert result.text == "xxxxpinned!!" and result.nfe == 4
