import json
import logging
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from tiny import tiny_target

from varifocal.cost import cache_folder, cost_model, interpolate, measure, never_falling
from varifocal.drafter import Drafter
from varifocal.drafters import load_drafter
from varifocal.tree import DraftTree


class Clock:
    """Stands still unless pushed on."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Slow(Drafter[None]):
    """A chain of token 5 whose start takes 2 s and each level 3 s."""

    name: ClassVar[str] = "slow"
    pictures: ClassVar[str] = "none"
    clock: Clock

    @dataclass(frozen=True, kw_only=True)
    class Config(Drafter.Config):
        max_nodes: int = 9

    def start(self, prompt, prefill, root):
        return None

    def propose(self, state, root, budget):
        self.clock.now += 2 + 3 * budget.depth
        return DraftTree.chain([root, *[5] * budget.depth])

    def observe(self, state, verdict, seen):
        self.clock.now += 0.5


class SelfMeasured(Slow):
    """Knows its own figures."""

    def measure(self, target):
        return 7.0, 4.0


@pytest.fixture
def target():
    return tiny_target()


def timed(target, monkeypatch, cls=Slow, **options):
    """A drafter and a target that push a common clock: a forward takes 10 s, and 1 s a row."""
    clock = Clock()
    forward = target.forward

    def slow_forward(trees, caches, want):
        clock.now += sum(10 + len(tree) for tree in trees)
        return forward(trees, caches, want)

    monkeypatch.setattr(target, "forward", slow_forward)
    drafter = cls(target, cls.Config(**options))
    drafter.clock = clock
    return drafter, clock


def test_the_parts_of_a_round_are_told_apart(target, monkeypatch):
    drafter, clock = timed(target, monkeypatch)
    cost = measure(target, drafter, clock)
    assert cost.verify == pytest.approx([10.0 + n for n in range(1, 11)])
    assert (cost.start, cost.step, cost.other) == pytest.approx((5.0, 3.0, 0.5))


def test_a_busy_machine_neither_spoils_the_figures_nor_has_them_remembered(
    target, monkeypatch, tmp_path, caplog
):
    drafter, clock = timed(target, monkeypatch)
    forward, seen = target.forward, Counter()

    def disturbed(trees, caches, want):
        size = len(trees[0])
        seen[size] += 1
        clock.now += 500 * (seen[size] % 3 > 0)  # a neighbour, two times out of three
        return forward(trees, caches, want)

    monkeypatch.setattr(target, "forward", disturbed)
    cost = measure(target, drafter, clock)
    assert cost.verify == pytest.approx([10.0 + n for n in range(1, 11)])
    assert not cost.is_calm
    monkeypatch.setattr("varifocal.cost.measure", lambda target, drafter: cost)
    assert cost_model(target, drafter, cache_dir=tmp_path) == cost
    assert "busy" in caplog.text and not list(tmp_path.rglob("*.json"))


def test_a_drafter_may_measure_itself(target, monkeypatch):
    drafter, clock = timed(target, monkeypatch, SelfMeasured)
    cost = measure(target, drafter, clock)
    assert (cost.start, cost.step) == (7.0, 4.0)


def test_drafting_that_cannot_be_measured_costs_nothing(target):
    cost = measure(target, load_drafter("plain", target))
    assert cost.start == cost.step == 0
    assert len(cost.verify) == 41
    assert 0 < cost.verify[0] <= cost.verify[-1]
    assert cost.other > 0


def test_curve_never_falls_and_is_linear_in_between():
    assert never_falling([3.0, 1.0, 2.0, 5.0, 4.0]) == [2, 2, 2, 4.5, 4.5]
    curve = interpolate({1: 2.0, 4: 5.0, 8: 5.0}, 8)
    assert curve == pytest.approx((2, 3, 4, 5, 5, 5, 5, 5))


def test_costs_are_measured_once(target, monkeypatch, tmp_path):
    monkeypatch.setattr("varifocal.cost.natural_clock", lambda device: Clock())
    calls = []
    monkeypatch.setattr("varifocal.cost.measure", counting(calls))
    drafter = load_drafter("lookup", target)
    first = cost_model(target, drafter, cache_dir=tmp_path)
    assert cost_model(target, drafter, cache_dir=tmp_path) == first
    assert len(calls) == 1
    cost_model(target, drafter, cache_dir=tmp_path, refresh=True)
    assert len(calls) == 2
    cost_model(target, load_drafter("lookup", target, ngram=2), cache_dir=tmp_path)
    assert len(calls) == 3
    assert not list(tmp_path.rglob("*.new"))


def counting(calls):
    from varifocal.plan import CostModel

    def measured(target, drafter):
        calls.append(drafter)
        return CostModel(verify=(1.0, 2.0), step=0.1, start=0.2, other=0.3)

    return measured


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: "",
        lambda raw: raw[: len(raw) // 2],
        lambda raw: "[]",
        lambda raw: json.dumps(json.loads(raw) | {"verify": [1.0, float("nan")]}),
        lambda raw: json.dumps(json.loads(raw) | {"verify": []}),
        lambda raw: json.dumps(json.loads(raw) | {"step": -1.0}),
        lambda raw: json.dumps(json.loads(raw) | {"key": {}}),
        lambda raw: raw.replace('"step"', '"stop"'),
    ],
)
def test_damaged_file_is_measured_again_and_repaired(target, monkeypatch, tmp_path, caplog, damage):
    calls = []
    monkeypatch.setattr("varifocal.cost.measure", counting(calls))
    drafter = load_drafter("lookup", target)
    good = cost_model(target, drafter, cache_dir=tmp_path)
    (file,) = (tmp_path / "cost").iterdir()
    file.write_text(damage(file.read_text()))
    with caplog.at_level(logging.WARNING):
        assert cost_model(target, drafter, cache_dir=tmp_path) == good
    assert "measuring again" in caplog.text
    assert len(calls) == 2
    assert cost_model(target, drafter, cache_dir=tmp_path) == good
    assert len(calls) == 2


def test_folder_that_cannot_be_written_only_costs_a_warning(target, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr("varifocal.cost.measure", counting([]))
    blocked = tmp_path / "file"
    blocked.write_text("")
    with caplog.at_level(logging.WARNING):
        cost = cost_model(target, load_drafter("lookup", target), cache_dir=blocked)
    assert cost.step == 0.1
    assert "not stored" in caplog.text


def test_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "varifocal"


def test_threads_and_rows_are_measured_apart(target, monkeypatch, tmp_path):
    calls = []
    monkeypatch.setattr("varifocal.cost.measure", counting(calls))
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            cost_model(target, load_drafter("lookup", target), cache_dir=tmp_path)
    finally:
        torch.set_num_threads(before)
    exact = tiny_target(exact_rows=True)
    cost_model(exact, load_drafter("lookup", exact), cache_dir=tmp_path)
    assert len(calls) == 3


def test_measuring_leaves_texts_alone(target):
    from varifocal.decode import generate
    from varifocal.request import ask

    request = ask("What is this?", max_new_tokens=8)
    drafter = load_drafter("lookup", target)
    before = generate(target, drafter, request).token_ids
    cost = measure(target, drafter)
    assert generate(target, drafter, request, cost=cost).token_ids == before
