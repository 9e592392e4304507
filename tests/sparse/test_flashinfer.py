"""FlashInfer's merge: its logarithms have base 2, and it is near ours, not equal to the bit."""

import importlib.util
import types

import pytest
import torch
from sparse_examples import asking, filled

from varifocal.errors import BadOption
from varifocal.sparse.backends import BACKENDS, load_operations
from varifocal.sparse.flashinfer import FlashInferOperations, from_flashinfer, to_flashinfer
from varifocal.sparse.padded import Board, Merged
from varifocal.sparse.padded_torch import TorchOperations
from varifocal.sparse.partials import weigh


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the library's documentation and its dispatch say: base 2, no float32."""
    assert v.dtype in (torch.float16, torch.bfloat16) and s.dtype == torch.float32
    assert v.is_contiguous() and s.is_contiguous() and v.shape[:3] == s.shape
    weights = 2.0 ** (s - s.amax(1, keepdim=True))
    sums = weights.sum(1)
    merged = (weights[..., None] * v.float()).sum(1) / sums[..., None]
    return merged.to(v.dtype), sums.log2() + s.amax(1)


FAKE = types.SimpleNamespace(merge_states=merge_states)


def states(*sizes: int):
    rng = torch.Generator().manual_seed(0)
    logits = 5 * torch.randn(*sizes, generator=rng)
    return logits, weigh(logits, torch.randn(sizes[0], sizes[2], 8, generator=rng))


def test_the_logarithm_has_base_two():
    logits, made = states(6, 3, 4)
    _, logs = to_flashinfer(made)
    torch.testing.assert_close(logs, logits.exp().sum(-1).log2())


def test_a_state_comes_back_with_its_output_and_sum():
    _, made = states(6, 3, 4)
    back = from_flashinfer(*to_flashinfer(made))
    torch.testing.assert_close(back.output(), made.output())
    torch.testing.assert_close(log_sum(back), log_sum(made))


def log_sum(made) -> torch.Tensor:
    return made.peak + made.mass.log()


def test_what_saw_no_key_comes_back_as_the_identity_even_from_nan():
    empty = weigh(torch.full((2, 1, 4), -torch.inf), torch.ones(2, 4, 8))
    outputs, logs = to_flashinfer(empty)
    assert (logs == -torch.inf).all() and not outputs.any()
    for log in (-torch.inf, torch.nan):
        back = from_flashinfer(torch.full_like(outputs, torch.nan), torch.full_like(logs, log))
        assert (back.peak == -torch.inf).all() and not back.mass.any() and not back.total.any()


def merges(library, device="cpu") -> tuple[Merged, Merged]:
    """Our merge and the library's, of boards with places left out and a query without any."""
    cache = filled([45, 45], dtype=torch.float16, head_dim=64)
    queries = asking(cache, rows=(0, 1), group=3)
    board = Board.empty(queries, 9)
    board.blocks.copy_(torch.arange(9))
    TorchOperations().attend(cache.pages(0), queries, board, 0, 9)
    found = torch.tensor([0, 2, 5, 8, -1, -1]).int().repeat(2, 2, 1)
    found[1, 1] = -1
    made = [Merged.empty(queries) for _ in range(2)]
    TorchOperations().merge(board, found, made[0])
    there = [moved(what, device) for what in (board, found, made[1])]
    FlashInferOperations(TorchOperations(), library).merge(*there)
    return made[0], moved(there[2], "cpu")


def moved(what, device):
    if isinstance(what, torch.Tensor):
        return what.to(device)
    return type(what)(**{name: moved(part, device) for name, part in vars(what).items()})


def assert_near(ours: Merged, theirs: Merged) -> None:
    torch.testing.assert_close(theirs.output, ours.output, rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(theirs.output, theirs.state.output().half())
    torch.testing.assert_close(log_sum(theirs.state), log_sum(ours.state), rtol=1e-5, atol=1e-5)
    assert not theirs.output[1, 1].any() and not theirs.state.mass[1, 1].any()


def test_its_merge_is_near_ours_and_no_key_gives_zeros():
    assert_near(*merges(FAKE))


def test_logarithms_read_to_another_base_would_be_found_out():
    """Flash attention's merge reads natural ones: the same numbers weigh blocks otherwise."""

    def natural(v, s):
        merged, logs = merge_states(v, s / torch.tensor(2.0).log())
        return merged, logs * torch.tensor(2.0).log()

    with pytest.raises(AssertionError):
        assert_near(*merges(types.SimpleNamespace(merge_states=natural)))


@pytest.mark.parametrize("dtype,head_dim", [(torch.float32, 64), (torch.float16, 80)])
def test_what_the_library_cannot_merge_is_refused(dtype, head_dim):
    queries = asking(filled([9], dtype=dtype, head_dim=head_dim))
    operations = FlashInferOperations(TorchOperations(), FAKE)
    found = torch.zeros(1, 2, 1, dtype=torch.int32)
    with pytest.raises(BadOption, match="FlashInfer merges float16 and bfloat16 in heads of"):
        operations.merge(Board.empty(queries, 1), found, Merged.empty(queries))


def test_it_is_never_taken_by_default():
    assert "flashinfer" in BACKENDS
    assert not isinstance(load_operations("auto", torch.device("cpu")), FlashInferOperations)


@pytest.mark.skipif(
    importlib.util.find_spec("flashinfer") is not None, reason="flashinfer is installed"
)
def test_its_absence_is_said_with_the_way_out():
    with pytest.raises(BadOption, match="pip install flashinfer-python"):
        FlashInferOperations(TorchOperations())


@pytest.mark.gpu
def test_the_real_library_merges_as_ours_does():
    assert_near(*merges(pytest.importorskip("flashinfer"), "cuda"))
