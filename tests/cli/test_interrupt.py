"""Signals in the middle of a training: what is kept, what is said, the exit code."""

import os
import signal

import pytest
import torch

from varifocal.cli._interrupt import interruptible
from varifocal.training import trainer
from varifocal.training._checkpoint import load_state

ENDINGS = [(signal.SIGINT, 130), (signal.SIGTERM, 143)]


@pytest.fixture(scope="module")
def artifacts(tiny_folder, tmp_path_factory):
    from typer.testing import CliRunner

    from varifocal.cli import app

    folder = tmp_path_factory.mktemp("recorded")
    done = CliRunner().invoke(app, ["record", "--target", str(tiny_folder), "--dtype", "float32",
                              "--count", "4", "--max-new-tokens", "4", "--out",
                              str(folder)])  # fmt: skip
    assert done.exit_code == 0, done.stderr
    return folder


@pytest.fixture
def train(run, artifacts):
    def train(out, *more):
        return run("train", "--drafter", "fovea", "--artifacts", artifacts, "--out", out, "--steps",
                   3, "--batch", 2, "--held-out", "none", "--set", "inner=32", "--rate", 1e-2,
                   *more)  # fmt: skip

    return train


def signalling(monkeypatch, number, times):
    """The signal arrives in the middle of the second update."""
    update = trainer._Run.update

    def signalled(session, batch):
        if session.step == 1:
            for _ in range(times):
                os.kill(os.getpid(), number)
        update(session, batch)

    monkeypatch.setattr(trainer._Run, "update", signalled)


@pytest.mark.parametrize(("number", "code"), ENDINGS)
def test_a_signal_in_training_keeps_the_update_and_the_resumed_run_ends_the_same(
    train, tmp_path, monkeypatch, number, code
):
    signalling(monkeypatch, number, 1)
    handler = signal.getsignal(number)
    broken = train(tmp_path / "broken")
    assert broken.exit_code == code
    assert "stopped after update 2 of 3" in broken.stderr
    assert "--resume" in broken.stderr and str(tmp_path / "broken") in broken.stderr
    assert load_state(tmp_path / "broken" / "trainer_state.pt")["step"] == 2
    assert signal.getsignal(number) is handler
    monkeypatch.undo()
    assert train(tmp_path / "broken", "--resume").exit_code == 0
    assert train(tmp_path / "whole").exit_code == 0
    resumed, whole = (
        load_state(tmp_path / name / "trainer_state.pt")["network"] for name in ("broken", "whole")
    )
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)


@pytest.mark.parametrize(("number", "code"), ENDINGS)
def test_a_second_signal_in_training_does_not_wait(train, tmp_path, monkeypatch, number, code):
    signalling(monkeypatch, number, 2)
    result = train(tmp_path / "out")
    assert result.exit_code == code
    assert "cut off" in result.stderr and "--resume" in result.stderr
    assert load_state(tmp_path / "out" / "trainer_state.pt")["step"] == 0


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with interruptible(signal.SIGTERM, can_wait=True) as interrupt:
            os.kill(os.getpid(), signal.SIGTERM)
        assert not interrupt.is_asked
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_work_that_cannot_wait_is_stopped_by_the_first_signal():
    with pytest.raises(KeyboardInterrupt), interruptible():
        os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(SystemExit) as left, interruptible(signal.SIGTERM):
        os.kill(os.getpid(), signal.SIGTERM)
    assert left.value.code == 143
