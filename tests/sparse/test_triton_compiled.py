"""Triton's kernels compile for a Hopper, on a machine without one: nothing is run."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

COMPILE = """
import subprocess, sys, tempfile
from pathlib import Path

import torch
import triton
from sparse_examples import filled
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from varifocal.sparse import triton_kernels, triton_operations
from varifocal.sparse.selection import Reach
from varifocal.sparse.static_step import Buffers, StaticStep
from varifocal.sparse.streams import SingleStream

TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16",
         torch.int32: "*i32", torch.int64: "*i64"}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")
wanted = {}


class Recorder:
    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.launch

    def launch(self, *args, **named):
        given = dict(zip(self.kernel.arg_names, args)) | named
        options = tuple((name, given.pop(name)) for name in OPTIONS)
        known = tuple((name, value) for name, value in given.items() if name.isupper())
        kinds = {name: "constexpr" if name.isupper() else TYPES[value.dtype]
                 if torch.is_tensor(value) else "fp32" if isinstance(value, float) else "i32"
                 for name, value in given.items()}
        signature = tuple((name, kinds[name]) for name in self.kernel.arg_names)
        wanted[self.kernel, signature, known, options] = None


kernels = {n: k for n, k in vars(triton_kernels).items() if n.endswith("_kernel")}
for name, kernel in kernels.items():
    setattr(triton_kernels, name, Recorder(kernel))
triton_operations.check = lambda pages, queries: None  # nothing runs here
tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
for dtype, size, width, group in [
    (torch.bfloat16, 16, 128, 4), (torch.bfloat16, 64, 80, 7), (torch.float16, 128, 128, 8),
    (torch.float32, 32, 96, 1), (torch.float32, 128, 128, 8),
]:
    cache = filled([3 * size], block_size=size, head_dim=width, dtype=dtype, stride=0, index_dim=0)
    wanted.clear()
    for guesses in (None, 0, 1):  # plain, and two numbers that compilers like to treat as special
        buffers = Buffers.empty(
            cache, Reach(budget=size), group=group, guesses=guesses, scale=width**-0.5
        )
        step = StaticStep(cache, 0, triton_operations.TritonOperations(), buffers)
        step.begin(SingleStream()), step.attend(SingleStream())
    for kernel, signature, known, options in wanted:
        names = kernel.arg_names
        aligned = {(i,): [["tt.divisibility", 16]]
                   for i, (_, kind) in enumerate(signature) if kind.startswith("*")}
        known = {(names.index(name),): value for name, value in known}
        source = ASTSource(kernel, dict(signature), known, aligned)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=dict(options))
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(made.asm["cubin"])
            said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True)
        spilt = [word for word in said.stdout.split() if word.startswith("STACK:")]
        print(kernel.__name__, dtype, size, width, group, *spilt, made.metadata.shared < 228 * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
def test_kernels_compile_for_hopper_once_each_without_spilling_registers(tmp_path):
    """In a process of its own, whose kernels are not interpreted: plain and PRR, as launched."""
    here = str(Path(__file__).parents[1])
    told = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    told["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=told)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5 * 5  # sizes, kernels: speculation and repair are one
    assert all(line.endswith("STACK:0 True") for line in lines), done.stdout
