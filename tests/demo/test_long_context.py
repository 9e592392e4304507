"""The training of the tiny long-context model: what the shipped weights came from."""

import json
from pathlib import Path

import pytest

import varifocal
from varifocal.demo.long_context import LEGS, LongPlan
from varifocal.errors import BadOption

RECIPE = Path(varifocal.__file__).parent / "sparse" / "weights" / "tiny" / "RECIPE.json"


def test_the_default_plan_is_the_shipped_recipe():
    made, plan = json.loads(RECIPE.read_text())["plan"], LongPlan()
    (leg,) = LEGS[: plan.legs]
    for name in ("rate", "floor", "tokens", "hidden", "layers", "seed"):
        assert getattr(plan, name) == made[name]
    assert (plan.seconds, leg.hold) == (made["seconds"], made["hold"])
    assert [*leg.lengths] == made["lengths"] and [*leg.shares] == made["shares"]
    assert not leg.reviews and leg.height == 1 and leg.rise == 0


def test_a_second_leg_begins_where_the_first_one_ends():
    plan = LongPlan(legs=2, pace=0.5)
    assert plan.leg(0.0) == (LEGS[0], 0.0)
    assert plan.leg(760.0) == (LEGS[1], 0.0) and plan.leg(1060.0) == (LEGS[1], 0.5)
    assert plan.leg(plan.seconds) == (LEGS[1], 1.0)
    first, second = LEGS
    assert first.rate(1.0, 0.05) == pytest.approx(0.05)
    assert second.rate(0.0, 0.05) == 0 and second.rate(0.3, 0.05) == 0.5
    assert [second.length(0.99, step) for step in range(1, 9)] == [4096] * 3 + [768] + [
        4096
    ] * 3 + [3072]
    with pytest.raises(BadOption, match="legs must be within 1 and 2, got 3"):
        LongPlan(legs=3)
