"""Triton's kernels against the reference, and PRR on and off by them, to the bit.

Without a CUDA device the kernels run in Triton's interpreter (conftest.py). It proves indices and
arithmetic, never speed nor races; a program takes it some 25 ms, so caches here are tiny.
"""

import ast
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from sparse_examples import asking, filled

import varifocal.sparse
from varifocal.errors import BadOption
from varifocal.sparse import backends
from varifocal.sparse.backends import BACKENDS, load_kernel, load_operations
from varifocal.sparse.blocks import BlockCache
from varifocal.sparse.cases import Case, Setting
from varifocal.sparse.kernels import BlockKernel, TokenKernel
from varifocal.sparse.padded import Board, Kept, Merged, PaddedKernel, ranked
from varifocal.sparse.padded_torch import TorchOperations
from varifocal.sparse.runtime import SparseAttention
from varifocal.sparse.selection import Queries, Reach
from varifocal.sparse.static_step import Buffers, StaticStep
from varifocal.sparse.streams import SingleStream

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.float16]
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: pip install 'varifocal[gpu]'"
)


@pytest.fixture(scope="module")
def operations():
    return load_operations("triton", DEVICE)


def cached(lengths, *, dtype=torch.float32, device=DEVICE, **shape) -> BlockCache:
    """The example's cache on the device that kernels run on."""
    example = filled(lengths, dtype=dtype, **{"kv_heads": 1, "stride": 0, "index_dim": 0, **shape})
    cache = BlockCache(example.shape, dtype=dtype, device=device, page_order=[2, 0, 3, 1])
    rows = [example.tokens(0, row) for row in range(len(lengths))]
    keys, values = (torch.cat(parts).to(device) for parts in zip(*rows, strict=True))
    cache.append(0, lengths, keys, values)
    return cache


def asked(cache: BlockCache, rows=(0,), *, group=3, seed=9) -> Queries:
    queries = asking(cache, rows=rows, group=group, seed=seed)
    return Queries(
        vectors=queries.vectors.to(cache.device),
        rows=queries.rows.to(cache.device),
        visible=queries.visible.to(cache.device),
        scale=queries.scale,
    )


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


# -- each operation against the reference ------------------------------------------------------


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_rank_as_by_the_reference(operations, dtype):
    """Blocks of one token, whose bound is the product itself: of either sign."""
    cache = cached([40, 9], dtype=dtype, head_dim=20, block_size=1)
    queries, kept = asked(cache, rows=(0, 1), group=2), Kept(1, 3, 1)
    keys = torch.empty(2, 2, 1, 45, dtype=torch.int64, device=DEVICE)
    for made, into in zip((TorchOperations(), operations), keys, strict=True):
        made.rank(cache.pages(0), queries, kept, into)
    assert torch.equal(ranked(keys)[0] < 0, ranked(keys)[1] < 0)
    assert torch.equal(keys[0].argsort(-1), keys[1].argsort(-1))
    high = (keys >> 31).int()
    scores = torch.where(high < 0, high ^ (2**31 - 1), high).view(torch.float32)
    is_free = ranked(keys[0]) >= 0
    close(scores[1][is_free], scores[0][is_free])
    assert bool((scores[0][is_free] < 0).any()) and bool((scores[0][is_free] > 0).any())


@needs_triton
def test_lists_are_those_of_the_reference(operations):
    visible = torch.tensor([45, 9, 1], device=DEVICE)
    kept = Kept(2, 6, 4)
    keys = torch.empty(3, 1, 40, dtype=torch.int64, device=DEVICE)
    cache = cached([45, 9, 1])
    TorchOperations().rank(cache.pages(0), asked(cache, rows=(0, 1, 2)), kept, keys[..., :8])
    picked = keys[..., :8].topk(5, sorted=False).values
    wide = torch.full((2, 3, 1, kept.most + 5 + 3), 77, dtype=torch.int32, device=DEVICE)
    for made, into in zip((TorchOperations(), operations), wide, strict=True):
        made.list_blocks(picked, visible, kept, into[..., : kept.most + 5])
    assert torch.equal(*wide)
    assert (wide[..., kept.most + 5 :] == 77).all()  # a list may be part of a board
    assert (wide[0, 0] >= 0).sum() > kept.most


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_states_and_their_merge_are_near_the_reference(operations, dtype):
    cache = cached([30, 14], dtype=dtype, head_dim=20, kv_heads=2)
    queries = asked(cache, rows=(0, 1))
    boards = [Board.empty(queries, 6) for _ in range(2)]
    blocks = torch.tensor([7, -1, 0, 3, 1, 2], device=DEVICE).repeat(2, 2, 1)
    blocks[1, :, [0]] = -1  # its row has no such block
    found = torch.tensor([2, 4, 0, -1], device=DEVICE).int().repeat(2, 2, 1)
    found[1] = torch.tensor([3, -1, -1, -1])
    found[1, 1] = -1
    results = []
    for made, board in zip((TorchOperations(), operations), boards, strict=True):
        board.blocks.copy_(blocks)
        made.attend(cache.pages(0), queries, board, 0, 2)
        made.attend(cache.pages(0), queries, board, 2, 4)
        results.append(Merged.empty(queries))
        made.merge(board, found, results[-1])
    for name in ("peak", "mass", "total"):
        theirs, ours = (getattr(board.states, name)[blocks >= 0] for board in boards)
        close(ours, theirs)
        close(getattr(results[1].state, name), getattr(results[0].state, name))
    torch.testing.assert_close(results[1].output, results[0].output, rtol=1e-3, atol=1e-4)
    assert not results[1].output[1, 1].any()


@needs_triton
def test_what_a_list_lacks_is_missing_and_found_behind_it(operations):
    blocks = torch.tensor([[[9, 2, -1, 40]], [[-1, -1, -1, -1]]], device=DEVICE).int()
    chosen = torch.tensor([[[2, 3, 9, 40, -1]], [[0, 1, -1, -1, -1]]], device=DEVICE).int()
    board = torch.zeros(2, 2, 1, 9, dtype=torch.int32, device=DEVICE)
    found = torch.empty(2, 2, 1, 5, dtype=torch.int32, device=DEVICE)
    for made, into, places in zip((TorchOperations(), operations), board, found, strict=True):
        into[..., :4] = blocks
        made.find(into[..., :4], chosen, places, into[..., 4:])
    assert torch.equal(*board) and torch.equal(*found)
    assert found[1].tolist() == [[[1, 5, 0, 3, -1]], [[4, 5, -1, -1, -1]]]
    assert board[1, :, :, 4:].tolist() == [[[-1, 3, -1, -1, -1]], [[0, 1, -1, -1, -1]]]


SIZES = [  # tokens of a block, head width, group
    (16, 64, 1), (32, 80, 2), (64, 96, 3), (128, 128, 4), (16, 128, 5), (32, 64, 6), (64, 80, 7),
    (128, 64, 8), (5, 72, 20),
]  # fmt: skip


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size,head_dim,group", SIZES)
def test_blocks_of_real_models_sizes_are_near_the_reference(
    operations, block_size, head_dim, group, dtype
):
    cache = cached([block_size + 3], block_size=block_size, head_dim=head_dim, dtype=dtype)
    queries = asked(cache, group=group)
    boards = [Board.empty(queries, 2) for _ in range(2)]
    for made, board in zip((TorchOperations(), operations), boards, strict=True):
        board.blocks.copy_(torch.arange(2))
        made.attend(cache.pages(0), queries, board, 0, 2)
    for name in ("peak", "mass", "total"):
        close(*(getattr(board.states, name) for board in reversed(boards)))


# -- PRR on and off ----------------------------------------------------------------------------


def same(ours, theirs) -> bool:
    names = ("peak", "mass", "total")
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in names)


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_prr_equals_plain_to_the_bit_by_the_same_kernels(dtype):
    cache = cached([38], dtype=dtype)
    reach = Reach(budget=12, first=2, recent=3)
    attention = SparseAttention(cache, reach, predictor="last", kernel="triton")
    reference = SparseAttention(cache, reach)
    for number in range(2):
        queries = asked(cache, seed=number)
        step, plain = attention.step(0, queries), attention.plain(0, queries)
        assert torch.equal(step.chosen, plain.chosen) and same(step.state, plain.state)
        wanted = reference.plain(0, queries).output(torch.float32)
        close(step.output(torch.float32), wanted)
    assert 0 < step.reused < step.speculated and step.repaired  # it guessed right and wrong


@needs_triton
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_static_step_equals_plain_to_the_bit_by_the_same_kernels(operations, dtype):
    cache = cached([38], dtype=dtype)
    reach = Reach(budget=12, first=2, recent=3)
    steps = [
        StaticStep(
            cache,
            0,
            operations,
            Buffers.empty(cache, reach, group=3, guesses=guesses, scale=0.3),
            beta=0.0,
        )
        for guesses in (None, 3)
    ]
    for number in range(2):
        for step in steps:
            step.buffers.queries.visible.fill_(38)
            step.begin(SingleStream())
            step.buffers.queries.vectors.copy_(asked(cache, seed=number).vectors)
            step.attend(SingleStream())
        plain, guessing = (step.buffers for step in steps)
        assert same(guessing.merged.state, plain.merged.state)
        assert torch.equal(guessing.merged.output, plain.merged.output)
        assert torch.equal(guessing.chosen, plain.chosen)
    found = guessing.found[(guessing.chosen >= 0)]
    assert bool((found < guessing.early).any()) and bool((found >= guessing.early).any())


@needs_triton
@pytest.mark.slow
def test_prr_equals_plain_to_the_bit_in_random_cases():
    """Groups of 1 to 8, batches of 1 to 4, odd blocks, other pages, drafted and rejected tokens."""
    drawn = (Setting.draw(seed) for seed in range(200))
    settings = [s for s in drawn if s.selector == "quest" and sum(s.lengths) < 60][:12]
    groups = set()
    for setting in settings:
        dtype = DTYPES[setting.seed % 2]
        case = Case(replace(setting, dtype=dtype))
        runs = []
        for predictor, layout in (("none", 0), ("ema", 5)):
            attention = SparseAttention(
                case.cache(layout), setting.reach, predictor=predictor, kernel="triton"
            )
            runs.append([*case.run(attention, is_plain=predictor == "none")])
        assert all(same(a.state, b.state) for a, b in zip(*runs, strict=True)), setting
        groups.add(setting.group)
    assert len(groups) > 4


# -- what both phases share --------------------------------------------------------------------


class Recorder:
    """Stands for a kernel and notes what it is launched with."""

    def __init__(self) -> None:
        self.launches: list = []

    def __getitem__(self, grid):
        return lambda *args, **options: self.launches.append((grid, args, options))


@needs_triton
def test_speculation_and_repair_differ_in_nothing_that_a_binary_depends_on(operations, monkeypatch):
    from varifocal.sparse import triton_kernels

    recorder = Recorder()
    monkeypatch.setattr(triton_kernels, "attend_kernel", recorder)
    cache = cached([38])
    reach = Reach(budget=12, first=2, recent=3)
    buffers = Buffers.empty(cache, reach, group=3, guesses=4, scale=0.3)
    works = StaticStep(cache, 0, operations, buffers).works
    works["speculate"](), works["repair"]()
    (_, early, options), (_, late, others) = recorder.launches
    for a, b in zip(early, late, strict=True):
        if torch.is_tensor(a):
            assert (a.data_ptr(), a.dtype, a.stride()) == (b.data_ptr(), b.dtype, b.stride())
        else:
            assert a == b
    differing = {name for name in options if options[name] != others[name]}
    assert differing == {"start"} and "start" in triton_kernels.VARYING
    assert options["num_warps"] and options["num_stages"] and not options["enable_fp_fusion"]


@needs_triton
def test_no_number_that_varies_makes_a_kernel_be_compiled_anew(operations, monkeypatch):
    """All numbers but the scale are named in VARYING, or known when a kernel is compiled."""
    from varifocal.sparse import triton_kernels

    kernels = [name for name in vars(triton_kernels) if name.endswith("_kernel")]
    assert len(kernels) == 5
    recorders = {name: Recorder() for name in kernels}
    for name, recorder in recorders.items():
        monkeypatch.setattr(triton_kernels, name, recorder)
    cache = cached([38])
    reach = Reach(budget=12, first=2, recent=3)
    buffers = Buffers.empty(cache, reach, group=3, guesses=4, scale=0.3)
    step = StaticStep(cache, 0, operations, buffers)
    step.begin(SingleStream()), step.attend(SingleStream())
    options = ("num_warps", "num_stages", "enable_fp_fusion")
    for recorder in recorders.values():
        assert recorder.launches
        for _, args, named in recorder.launches:
            numbers = {name for name in named if name.islower()} - {*options}
            assert numbers <= {*triton_kernels.VARYING}
            assert all(torch.is_tensor(a) or isinstance(a, float) for a in args)


# -- choosing, and what is refused -------------------------------------------------------------


def test_kernels_are_chosen_by_name_or_device(monkeypatch):
    assert isinstance(load_kernel("torch", DEVICE), BlockKernel)
    assert isinstance(load_kernel("auto", torch.device("cpu")), BlockKernel)
    made = []
    monkeypatch.setitem(BACKENDS, "triton", lambda: made.append("triton") or TorchOperations())
    assert isinstance(load_kernel("auto", torch.device("cuda")), PaddedKernel)
    assert isinstance(load_kernel("triton", torch.device("cpu")), PaddedKernel)
    assert made == ["triton"] * 2
    with pytest.raises(BadOption, match="no kernel 'cuda'; there are auto, torch, triton, flash"):
        load_kernel("cuda", DEVICE)
    assert isinstance(load_kernel("auto", torch.device("cuda"), by_token=True), TokenKernel)
    with pytest.raises(BadOption, match="the triton kernel attends to blocks, and this selector"):
        load_kernel("triton", DEVICE, by_token=True)


def test_the_absence_of_triton_is_said_with_the_way_out(monkeypatch):
    monkeypatch.setattr(backends, "find_spec", lambda name: None)
    with pytest.raises(BadOption, match=r"pip install 'varifocal\[gpu\]'"):
        load_operations("triton", DEVICE)


def test_nothing_imports_triton_or_flashinfer_unless_asked():
    lazy = {"triton", "flashinfer", "triton_kernels", "triton_operations"}
    for path in Path(varifocal.sparse.__file__).parent.glob("*.py"):
        if path.stem in lazy - {"flashinfer"}:
            continue
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "")]
                assert not any(set(str(name).split(".")) & lazy for name in names), path.name


@needs_triton
def test_what_would_be_computed_wrongly_is_refused(operations, monkeypatch):
    from varifocal.sparse import triton_kernels

    def attend(dtype=torch.float32, *, group=1, **shape):
        cache = cached([9], dtype=dtype, device="cpu", **shape)
        queries = asked(cache, group=group)
        operations.attend(cache.pages(0), queries, Board.empty(queries, 1), 0, 1)

    monkeypatch.setattr(triton_kernels, "INTERPRETED", True)
    with pytest.raises(BadOption, match="interpreter computes wrong numbers in bfloat16"):
        attend(torch.bfloat16)
    with pytest.raises(BadOption, match="take float32, float16 and bfloat16, got"):
        attend(torch.float64)
    with pytest.raises(BadOption, match="at most, padded to powers of two; got a group of 65"):
        attend(group=65)
    with pytest.raises(BadOption, match="got a group of 1 and 128 KiB"):
        attend(block_size=129, head_dim=128)
    monkeypatch.setattr(triton_kernels, "IS_LATE", True)
    with pytest.raises(BadOption, match="set after triton had been imported"):
        attend()
    monkeypatch.setattr(triton_kernels, "INTERPRETED", False)
    with pytest.raises(BadOption, match="run on CUDA, the cache is on cpu"):
        attend()
