"""Predictors, by hand: what each expects after what it saw."""

from random import Random

import pytest
import torch

from varifocal.errors import BadOption
from varifocal.sparse.blocks import CacheShape
from varifocal.sparse.predictors import PREDICTORS, Average, Predictor, load_predictor

SHAPE = CacheShape(num_rows=2, num_layers=2, kv_heads=1, head_dim=8, block_size=4)
CPU = torch.device("cpu")


def show(predictor: Predictor, *choices, layer=0, row=0, units=6, scores=None) -> None:
    """Let it see choices, one query after the other."""
    for choice in choices:
        chosen = torch.zeros(1, 1, units, dtype=torch.bool)
        chosen[0, 0, list(choice)] = True
        drawn = torch.zeros(1, 1, units) if scores is None else torch.tensor([[scores]])
        is_free = torch.ones(1, units, dtype=torch.bool)
        predictor.observe(layer, torch.tensor([row]), chosen, drawn, is_free)


def weights(predictor: Predictor, layer=0, row=0, units=6) -> list[float]:
    return predictor.weights(layer, torch.tensor([row]), units)[0, 0].tolist()


@pytest.mark.parametrize("name", PREDICTORS)
def test_before_anything_was_seen_nothing_is_expected(name):
    assert weights(load_predictor(name, SHAPE, CPU)) == [0.0] * 6


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", [0, 0, 0, 0, 0, 0]),
        ("last", [0, 1, 0, 1, 0, 0]),
        ("oracle", [0, 1, 0, 1, 0, 0]),
        ("ema:beta=0.5", [0.125, 0.75, 0.25, 0.5, 0, 0]),  # a first choice on zeros
        ("static", [1, 2, 1, 1, 0, 0]),
    ],
)
def test_after_three_choices(name, expected):
    predictor = load_predictor(name, SHAPE, CPU)
    show(predictor, (0,), (1, 2), (1, 3))
    assert weights(predictor) == expected
    assert weights(predictor, row=1) == weights(predictor, layer=1, row=1) == [0.0] * 6


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])  # probabilities; logits of wide heads
def test_the_average_of_scores_ranks_units_that_were_not_chosen_at_any_scale(scale):
    predictor = load_predictor("ema_score", SHAPE, CPU)
    show(predictor, (0,), scores=[scale * score for score in (3.0, 1.0, 2.0, 0.0, -1.0, 0.5)])
    got = torch.tensor(weights(predictor))
    assert got.argsort(descending=True).tolist() == [0, 2, 1, 5, 3, 4]
    assert got.tolist() == pytest.approx([0.5, 0.25, 0.375, 0.125, 0, 0.1875], abs=1e-5)
    assert (got > 0).all()  # each of them might be chosen


def test_scores_that_are_no_numbers_are_not_expected_again():
    predictor = load_predictor("ema_score", SHAPE, CPU)
    show(predictor, (0,), scores=[3.0, float("nan"), 2.0, -torch.inf, -1.0, 0.5])
    got = weights(predictor)
    assert got[1] == got[3] == 0 and got[0] == max(got) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize("beta,is_last", [(0.3, True), (0.5, True), (0.7, False)])
def test_an_average_of_short_memory_guesses_what_was_chosen_last(beta, is_last):
    rng = Random(0)
    predictor, differs = load_predictor(f"ema:beta={beta}", SHAPE, CPU), False
    for _ in range(20):  # in float32 a unit may draw level after 24 choices in a row
        choice = {*rng.sample(range(12), 4)}
        show(predictor, tuple(choice), units=12)
        got = torch.tensor(weights(predictor, units=12)).topk(4).indices.tolist()
        differs |= {*got} != choice
    assert differs is not is_last


def test_cross_layer_expects_what_the_layer_below_chose_in_this_step():
    predictor = load_predictor("cross_layer", SHAPE, CPU)
    show(predictor, (2,), layer=0)
    assert weights(predictor, layer=1) == [0, 0, 1, 0, 0, 0]
    show(predictor, (4,), layer=1)
    assert weights(predictor, layer=0) == [0, 0, 1, 0, 0, 0]


def test_a_new_unit_enters_as_the_best():
    predictor = load_predictor("ema:beta=0.5", SHAPE, CPU)
    show(predictor, (1,), units=4)
    show(predictor, (1,), units=5)
    assert weights(predictor) == [0, 0.75, 0, 0, 0.25, 0]


def test_a_unit_is_new_when_it_is_first_free_and_not_when_a_longer_row_has_it():
    predictor = load_predictor("ema:beta=0.5", SHAPE, CPU)
    chosen = torch.zeros(2, 1, 6, dtype=torch.bool)
    chosen[:, :, 1] = True
    is_free = torch.ones(2, 6, dtype=torch.bool)
    for row_0_has in (4, 5):
        is_free[0, row_0_has:] = False
        predictor.observe(0, torch.tensor([0, 1]), chosen, torch.zeros(2, 1, 6), is_free)
        is_free[0] = True
    assert weights(predictor) == [0, 0.75, 0, 0, 0.25, 0]


def test_rejected_units_are_forgotten():
    predictor = load_predictor("ema:beta=0.5", SHAPE, CPU)
    show(predictor, (1, 5))
    predictor.forget(0, 4)
    assert weights(predictor) == [0, 0.5, 0, 0, 0, 0]


def test_several_queries_of_a_row_count_one_after_the_other():
    apart, together = Average(SHAPE, CPU), Average(SHAPE, CPU)
    show(apart, (1,), (2,), (2, 3))
    show(apart, (0,), row=1)
    chosen = torch.zeros(4, 1, 6, dtype=torch.bool)
    for number, choice in enumerate([(1,), (0,), (2,), (2, 3)]):
        chosen[number, 0, list(choice)] = True
    free = torch.ones(4, 6, dtype=torch.bool)
    together.observe(0, torch.tensor([0, 1, 0, 0]), chosen, torch.zeros(4, 1, 6), free)
    for row in (0, 1):
        assert weights(apart, row=row) == weights(together, row=row)


def test_a_beta_out_of_range_or_out_of_place_is_refused():
    with pytest.raises(BadOption, match=r"beta must lie in \[0, 1\), got 1.0"):
        Average(SHAPE, CPU, beta=1.0)
    for name in ("ema:beta=1", "ema:beta=often", "ema:alpha=0.5", "static:beta=0.5"):
        with pytest.raises(BadOption, match=f"{name}' is not understood: ema and ema_score take"):
            load_predictor(name, SHAPE, CPU)
    assert load_predictor("ema_score:beta=0.2", SHAPE, CPU).name == "ema_score:beta=0.2"
