"""Which kernels compute, by name or by device; what they need is imported when one is chosen."""

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from varifocal.errors import BadOption
from varifocal.sparse.kernels import BlockKernel, Kernel, TokenKernel
from varifocal.sparse.padded import Operations, PaddedKernel


def _torch() -> Operations:
    from varifocal.sparse.padded_torch import TorchOperations

    return TorchOperations()


def _triton() -> Operations:
    if find_spec("triton") is None:
        raise BadOption(
            "Triton kernels need triton, which is not installed: pip install 'varifocal[gpu]', or "
            "choose the torch kernel"
        )
    from varifocal.sparse.triton_operations import TritonOperations

    return TritonOperations()


def _flashinfer() -> Operations:
    from varifocal.sparse.flashinfer import FlashInferOperations

    return FlashInferOperations(_triton())


BACKENDS: dict[str, Callable[[], Operations]] = {
    "torch": _torch,  # the reference, on any device
    "triton": _triton,  # CUDA, or Triton's interpreter
    "flashinfer": _flashinfer,  # Triton's with FlashInfer's merge: near, not bit-equal
}


def load_operations(name: str, device: torch.device) -> Operations:
    """Operations over listed blocks by name; `auto` is Triton's on CUDA and torch's elsewhere."""
    return BACKENDS[_resolved(name, device)]()


def load_kernel(name: str, device: torch.device, *, by_token: bool = False) -> Kernel[Any]:
    """A kernel by name, for blocks or for tokens. `torch` is the reference, which pads nothing."""
    if by_token:
        if name not in ("torch", "auto"):
            raise BadOption(
                f"the {name} kernel attends to blocks, and this selector chooses tokens: leave "
                "the kernel at torch, or choose a selector of blocks"
            )
        return TokenKernel()
    name = _resolved(name, device)
    return BlockKernel() if name == "torch" else PaddedKernel(BACKENDS[name]())


def _resolved(name: str, device: torch.device) -> str:
    if name == "auto":
        return "triton" if device.type == "cuda" else "torch"
    if name not in BACKENDS:
        raise BadOption(f"no kernel {name!r}; there are auto, {', '.join(BACKENDS)}")
    return name
