"""PRR equals plain sparse attention bit for bit, whatever was guessed."""

import subprocess
import sys

import pytest
import torch

from varifocal.sparse import cases
from varifocal.sparse.cases import Case, Setting, check_cases, equal_bits, same
from varifocal.sparse.kernels import BlockKernel

LIMIT = 5040
# In a process of its own, without the shape checks that conftest.py installs: they take longer
# than the cases. The test below runs some of the same cases with them.
SCRIPT = f"""
import torch
from varifocal.sparse.cases import check_cases
torch.set_num_threads(1)
verdicts = [*check_cases({LIMIT}, seed=1)]
print(len(verdicts), [(s, p) for s, p, is_same in verdicts if not is_same][:3])
"""


@pytest.mark.slow
def test_prr_equals_plain_bit_for_bit_in_over_five_thousand_random_cases():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout.strip() == f"{LIMIT} []", done.stdout + done.stderr


def test_random_cases_hold_with_every_shape_checked():
    different = [(s, p) for s, p, is_same in check_cases(140) if not is_same]
    assert not different, different[:3]


def test_random_cases_reach_every_selector_group_batch_and_dtype():
    drawn = [Setting.draw(seed) for seed in range(LIMIT // 7)]
    assert {s.group for s in drawn} == set(range(1, 9))
    assert {s.shape.num_rows for s in drawn} == {1, 2, 3, 4}
    assert {s.dtype for s in drawn} == {*cases.DTYPES}
    assert {s.selector for s in drawn} == {*cases.SELECTORS}
    partial = [s for s in drawn if any(n % s.shape.block_size for n in s.lengths)]
    assert len(partial) > len(drawn) / 2


def test_a_runtime_that_merges_wrong_guesses_is_found_out(monkeypatch):
    """The cases would notice: here the merge reads whatever was computed."""
    honest = BlockKernel.combine

    def union(self, cache, layer, queries, helpings, chosen):
        early, late = helpings
        return honest(self, cache, layer, queries, helpings, early.is_computed | late.is_computed)

    monkeypatch.setattr(BlockKernel, "combine", union)
    verdicts = [is_same for _, _, is_same in check_cases(140)]
    assert not all(verdicts)


def test_equality_is_of_bits_and_not_of_values():
    assert not equal_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert equal_bits(torch.tensor([1.5]), torch.tensor([1.5]))


def test_running_a_case_again_on_other_pages_changes_nothing():
    case = Case(Setting.draw(4))
    runs = [
        [*case.run(cases._attention(case, "ema", layout), is_plain=False)] for layout in (0, 17)
    ]
    assert all(same(a, b) for a, b in zip(*runs, strict=True))
