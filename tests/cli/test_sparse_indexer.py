"""`varifocal sparse` with the lightning selectors: which indexer is used, and what is refused."""

import json
from pathlib import Path
from shutil import copytree

import pytest
import torch
from checkpoints import built
from typer.testing import CliRunner

from varifocal.cli import app
from varifocal.sparse.decoding import open_model
from varifocal.sparse.indexer import Indexer, IndexerConfig, Origin

TEXT = "The quick brown fox jumps over the lazy dog. " * 12
REACH = ("--budget", "16", "--first", "4", "--recent", "8", "--block-size", "4")
COMMON = ("--dtype", "float32", "--one-thread", *REACH)


def run(command: str, *words: object):
    return CliRunner().invoke(app, ["sparse", command, *map(str, words)])


def made(folder: Path, fingerprint: str, **sizes: int) -> Path:
    torch.manual_seed(0)
    config = IndexerConfig(**{"heads": 2, "width": 4, "rotary": 4} | sizes)
    Indexer(config, Origin(target="llama", fingerprint=fingerprint)).save(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """With an indexer beside its weights."""
    folder = tmp_path_factory.mktemp("indexed") / "llama"
    copytree(built("text-llama"), folder)
    target = open_model(str(folder), dtype=torch.float32)
    sizes = {"num_layers": target.num_layers, "hidden_size": target.hidden_size}
    made(folder, target.fingerprint, **sizes)
    return folder


def generate(target: Path, *words: object):
    given = ("--target", target, "--prompt", TEXT, "--max-new-tokens", 3, "--guesses", "1")
    return run("generate", *given, "--json", "-", *COMMON, *words)


def test_the_indexer_beside_the_weights_is_used_or_the_one_that_is_named(llama, tmp_path):
    beside = generate(llama, "--selector", "lightning")
    named = generate(built("text-llama"), "--selector", "lightning", "--indexer", llama)
    assert beside.exit_code == named.exit_code == 0, beside.stderr + named.stderr
    ours, theirs = (json.loads(ran.stdout) for ran in (beside, named))
    assert ours["selector"] == "lightning" and ours["token_ids"] == theirs["token_ids"]


def test_an_indexer_that_is_missing_foreign_or_without_effect_is_refused(llama, tmp_path):
    plain = built("text-llama")
    foreign = made(tmp_path / "foreign", "0", num_layers=1, hidden_size=4)
    for target, words, wrong in (
        (plain, ("--selector", "lightning"), "no indexer beside the weights"),
        (plain, ("--selector", "lightning", "--indexer", tmp_path), "there is no indexer in"),
        (llama, ("--selector", "lightning", "--indexer", foreign), "the weights differ"),
        (llama, ("--selector", "quest", "--indexer", llama), "quest reads none"),
        (llama, ("--selector", "thunder"), "no selector 'thunder'"),
    ):
        ran = generate(target, *words)
        assert ran.exit_code == 2 and wrong in " ".join(ran.stderr.split()), ran.stderr
    ran = run("verify", "--selector", "quest", "--indexer", llama)
    assert ran.exit_code == 2 and "quest reads none" in " ".join(ran.stderr.split())


def test_bench_measures_an_indexer_beside_other_selectors(llama, tmp_path):
    (tmp_path / "fox.txt").write_text(TEXT * 2)
    ran = run(
        *("bench", "--target", llama, "--text", tmp_path / "fox.txt", "--contexts", 60),
        *("--selectors", "quest,lightning", "--predictors", "last", "--tokens", 2),
        *("--warm-up", 0, "--json", "-", *COMMON),
    )
    assert ran.exit_code == 0, ran.stderr
    rows = json.loads(ran.stdout)["rows"]
    assert [row["selector"] for row in rows] == ["quest", "lightning"]
    assert all(row["identical"] == 6 and not row["different"] for row in rows)


def test_verify_draws_cases_of_one_selector_with_the_sizes_of_an_indexer(llama, monkeypatch):
    from varifocal.sparse import cases

    seen = []
    honest = cases.Setting.draw.__func__

    def noted(cls, seed, *given):
        seen.append(honest(cls, seed, *given))
        return seen[-1]

    monkeypatch.setattr(cases.Setting, "draw", classmethod(noted))
    ran = run("verify", "--limit", 14, "--selector", "lightning_tokens", "--indexer", llama)
    assert ran.exit_code == 0, ran.stderr
    assert {(s.selector, s.index) for s in seen} == {("lightning_tokens", (2, 4))}
