"""`varifocal sparse verify` counts identical cases, and says so when one is not."""

import json

import pytest
from typer.testing import CliRunner

from varifocal.cli import app
from varifocal.sparse.kernels import BlockKernel, TokenKernel


def run(*words: str):
    return CliRunner().invoke(app, ["sparse", "verify", *words])


def test_every_case_is_identical():
    ran = run("--limit", "21", "--json", "-")
    assert ran.exit_code == 0
    assert json.loads(ran.stdout) == {"requests": 21, "identical": 21}


def test_a_difference_is_counted_named_and_ends_in_1(monkeypatch):
    for kernel in (BlockKernel, TokenKernel):
        honest = kernel.combine

        def wrong(self, cache, layer, queries, helpings, chosen, honest=honest):
            early, _ = helpings
            if early.is_computed.any():  # with speculation: leave a chosen unit out
                chosen = chosen.clone()
                chosen[0, 0, chosen[0, 0].nonzero()[0]] = chosen.sum() == 1
            return honest(self, cache, layer, queries, helpings, chosen)

        monkeypatch.setattr(kernel, "combine", wrong)
    ran = run("--limit", "21", "--json", "-")
    assert ran.exit_code == 1
    counts = json.loads(ran.stdout)
    assert counts["requests"] == 21 and counts["identical"] < 21
    assert "differs: " in ran.stderr and "block_size=" in ran.stderr


@pytest.mark.parametrize("limit", ["0", "-3"])
def test_no_cases_are_no_verdict(limit):
    assert run("--limit", limit).exit_code == 2
