"""The trainer: resumes exactly, refuses what cannot work, reports no health without a signal."""

import json
import math
from functools import cache

import pytest
import torch
from fake_learner import LinearDrafter, made_up, made_up_store
from tiny import tiny_target

from varifocal.errors import BadArtifact, BadOption, VarifocalError
from varifocal.request import ask
from varifocal.training import trainer
from varifocal.training.losses import Losses
from varifocal.training.trainer import Stopped, TrainConfig, tau_of, train

FROZEN = torch.nn.Linear(2, 2)


@pytest.fixture
def data(tmp_path):
    return made_up_store(tmp_path / "store", [made_up(n) for n in range(12)]).all


@cache
def target():
    return tiny_target()


def drafter(kind=LinearDrafter):
    return kind(target(), kind.Config())


def config(**changes):
    settings = {"steps": 10, "batch": 4, "rate": 1e-2, "log_every": 2, "checkpoint_seconds": 0.0}
    return TrainConfig(**{**settings, **changes})


def run(learner, data, out, settings, **more):
    more.setdefault("export", lambda steps, scores: None)
    return train(learner, data, out, settings, frozen=FROZEN, quiet=True, **more)


class Killed(Exception):
    """Stands for kill -9: nothing after it runs but what is on disk."""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_that_was_killed_and_resumed_equals_one_never_stopped(
    data, tmp_path, monkeypatch, optimizer
):
    whole, broken, resumed = drafter(), drafter(), drafter()
    settings = config(optimizer=optimizer)
    run(whole, data, tmp_path / "whole", settings)
    save = trainer.save_state

    def save_until(path, state):
        if state["step"] == 7:
            raise Killed
        save(path, state)

    monkeypatch.setattr(trainer, "save_state", save_until)
    with pytest.raises(Killed):
        run(broken, data, tmp_path / "broken", settings)
    monkeypatch.undo()
    torch.manual_seed(99)  # the global generator must not matter
    result = run(resumed, data, tmp_path / "broken", settings, resume=True)
    assert result.steps == 10
    for a, b in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b)
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "broken")]
    assert logs[0] == logs[1]


def saying_yes_after(asked):
    """A `should_stop` that says yes from the so-manieth question on."""
    questions = iter(range(asked))
    return lambda: next(questions, None) is None


@pytest.mark.parametrize("asked", [0, 3, 4, 5, 6, 9, 13, 14, 15])
def test_a_run_that_was_stopped_anywhere_and_resumed_equals_one_never_stopped(
    data, tmp_path, asked
):
    settings = config(steps=10, eval_every=4, valid_batches=2, checkpoint_seconds=1e9)
    whole, broken, resumed = drafter(), drafter(), drafter()
    exports = {"whole": [], "broken": []}

    def go(learner, name, **more):
        def export(steps, scores):
            exports[name].append((steps, scores))

        return run(learner, data, tmp_path / name, settings, valid=data, export=export, **more)

    wanted = go(whole, "whole")
    with pytest.raises(Stopped, match=r"stopped after update \d+ of 10"):
        go(broken, "broken", should_stop=saying_yes_after(asked))
    assert go(resumed, "broken", resume=True) == wanted
    for a, b in zip(whole.network.parameters(), resumed.network.parameters(), strict=True):
        assert torch.equal(a, b)
    assert exports["broken"] == exports["whole"]
    logs = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "broken")]
    assert logs[0] == logs[1]


def test_two_trainings_do_not_write_into_one_folder(data, tmp_path):
    refused = []

    def train_beside() -> bool:
        with pytest.raises(BadArtifact, match="another record or train is writing into") as error:
            run(drafter(), data, tmp_path / "out", config(), resume=True)
        refused.append(error)
        return True

    with pytest.raises(Stopped):
        run(drafter(), data, tmp_path / "out", config(), should_stop=train_beside)
    assert refused


def test_stopping_loses_no_update(data, tmp_path):
    with pytest.raises(Stopped, match="after update 3 of 10"):
        run(drafter(), data, tmp_path / "out", config(checkpoint_seconds=1e9),
            should_stop=saying_yes_after(3))  # fmt: skip
    assert trainer.load_state(tmp_path / "out" / "trainer_state.pt")["step"] == 3


def test_measuring_tau_stops_between_two_requests():
    requests = {"a": [ask("hello", max_new_tokens=4)] * 3}
    questions = []
    with pytest.raises(Stopped):
        tau_of(target(), drafter(), requests, lambda: questions.append(1) or len(questions) > 2)
    assert len(questions) == 3  # one before each request; the third was not decoded


def test_the_logged_rate_follows_warm_up_and_decay_and_the_loss_falls(data, tmp_path):
    settings = config(steps=40, warmup=0.25, log_every=1)
    run(drafter(), data, tmp_path / "out", settings)
    lines = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    train_lines = [line for line in lines if line["kind"] == "train"]
    rates = [line["rate"] for line in train_lines]
    assert rates[0] == pytest.approx(1e-3) and rates[9] == pytest.approx(1e-2)
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[-1] < 1e-3
    losses = [line["loss"] for line in train_lines]
    assert sum(losses[-5:]) < sum(losses[:5])


def test_evaluation_runs_when_asked_and_its_last_scores_are_returned(data, tmp_path):
    calls, exports = [], []

    def evaluate(learner):
        assert not learner.network.training
        calls.append(1)
        return {"tau_a": float(len(calls))}

    result = run(
        drafter(),
        data,
        tmp_path / "out",
        config(steps=6, eval_every=2),
        evaluate=evaluate,
        valid=data,
        export=lambda steps, scores: exports.append((steps, scores["tau_a"])),
    )
    assert exports == [(2, 1.0), (4, 2.0), (6, 3.0)]
    assert result.scores["tau_a"] == 3 and result.scores["valid_loss"] > 0


def test_a_finished_run_stays_as_it_is_when_resumed(data, tmp_path):
    first, second = drafter(), drafter()
    run(first, data, tmp_path / "out", config(), evaluate=lambda d: {"tau": 2.0})
    result = run(second, data, tmp_path / "out", config(), resume=True)
    assert result.steps == 10 and result.scores["tau"] == 2.0
    assert torch.equal(first.network[0].weight, second.network[0].weight)


class Sometimes(LinearDrafter):
    """Its loss is not finite at some updates; then also the gradient is not."""

    bad: frozenset = frozenset()

    def loss(self, batch, progress):
        losses = super().loss(batch, progress)
        if round(progress * 10) in self.bad:
            return Losses(losses.total * math.nan, losses.parts)
        return losses


def test_an_update_without_a_finite_loss_is_skipped_and_counted(data, tmp_path):
    learner = drafter(Sometimes)
    learner.bad = frozenset({2, 3})
    result = run(learner, data, tmp_path / "out", config())
    assert result.num_skipped == 2 and math.isfinite(result.loss)
    assert all(bool(w.isfinite().all()) for w in learner.network.parameters())
    lines = (tmp_path / "out" / "log.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["num_skipped"] == 2


def test_too_many_bad_updates_in_a_row_end_the_run_with_an_error(data, tmp_path):
    learner = drafter(Sometimes)
    learner.bad = frozenset(range(10))
    with pytest.raises(VarifocalError, match="3 updates in a row"):
        run(learner, data, tmp_path / "out", config(max_bad=3))


def test_samples_without_supervised_tokens_are_refused(tmp_path):
    store = made_up_store(tmp_path / "s", [made_up(n, supervised=False) for n in range(6)])
    with pytest.raises(BadArtifact, match=r"no sample .* has supervised tokens"):
        run(drafter(), store.all, tmp_path / "out", config())


class Constant(LinearDrafter):
    def loss(self, batch, progress):
        return Losses(torch.tensor(0.0))


def test_a_loss_that_does_not_depend_on_the_weights_is_an_error(data, tmp_path):
    with pytest.raises(BadArtifact, match="does not depend on its weights"):
        run(drafter(Constant), data, tmp_path / "out", config())


@pytest.mark.parametrize("value", [0, -1, True])
def test_an_impossible_batch_is_refused_before_anything_is_read(value):
    with pytest.raises(BadOption, match="batch must be a whole number"):
        TrainConfig(batch=value)


@pytest.mark.parametrize(
    "changes", [{"rate": math.nan}, {"warmup": 1.0}, {"clip": 0.0}, {"weight_decay": -1.0}]
)
def test_impossible_settings_are_refused_by_name(changes):
    with pytest.raises(BadOption, match=next(iter(changes))):
        TrainConfig(**changes)


def test_a_batch_larger_than_the_data_is_refused(data, tmp_path):
    with pytest.raises(BadOption, match="only 12 samples"):
        run(drafter(), data, tmp_path / "out", config(batch=10**9))


def test_weights_of_the_frozen_target_are_refused(data, tmp_path):
    learner = drafter()
    with pytest.raises(BadOption, match="frozen target"):
        train(
            learner, data, tmp_path / "out", config(), frozen=learner.network,
            export=lambda steps, scores: None, quiet=True,
        )  # fmt: skip


class ThroughHead(LinearDrafter):
    """Reads its states through the frozen module."""

    def loss(self, batch, progress):
        states = self.network(torch.cat([a.final for a in batch]))
        return Losses(FROZEN(states[:, :2]).square().mean())


def test_the_frozen_target_gets_no_gradient_and_does_not_change(data, tmp_path):
    before = FROZEN.weight.clone()
    run(drafter(ThroughHead), data, tmp_path / "out", config())
    assert FROZEN.weight.grad is None and FROZEN.weight.requires_grad
    assert torch.equal(FROZEN.weight, before)


def test_a_folder_with_a_run_is_not_overwritten(data, tmp_path):
    run(drafter(), data, tmp_path / "out", config())
    with pytest.raises(BadOption, match="--resume"):
        run(drafter(), data, tmp_path / "out", config())


def test_a_resume_with_other_settings_is_refused_by_name(data, tmp_path):
    run(drafter(), data, tmp_path / "out", config())
    with pytest.raises(BadOption, match="rate"):
        run(drafter(), data, tmp_path / "out", config(rate=1e-3), resume=True)


def test_a_checkpoint_that_was_cut_short_is_named(data, tmp_path):
    run(drafter(), data, tmp_path / "out", config())
    path = tmp_path / "out" / "trainer_state.pt"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(BadArtifact, match="trainer_state"):
        run(drafter(), data, tmp_path / "out", config(), resume=True)


def test_training_draws_nothing_from_the_global_generator(data, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    run(drafter(), data, tmp_path / "out", config())
    assert torch.equal(before, torch.get_rng_state())


def test_the_loss_of_padded_samples_is_that_of_bare_ones(data):
    learner = drafter()
    one, two = data[0], data[1]
    alone = [learner.loss([a], 1.0).total * int(a.supervised[1:].sum()) for a in (one, two)]
    counts = sum(int(a.supervised[1:].sum()) for a in (one, two))
    together = learner.loss([one, two], 1.0).total
    torch.testing.assert_close(together, sum(alone) / counts)


def test_tau_is_one_for_a_drafter_that_drafts_nothing():
    scores = tau_of(target(), drafter(), {"a": [ask("hello", max_new_tokens=4)]})
    assert scores == {"tau_a": 1.0, "tau": 1.0}
