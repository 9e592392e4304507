"""What every test runs under: checked shapes, a known number of threads, no network."""

import os
import signal

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch starts its threads

import pytest
import torch
from jaxtyping import install_import_hook

if not torch.cuda.is_available():  # before triton is imported: its kernels run on the CPU then
    os.environ.setdefault("TRITON_INTERPRET", "1")

install_import_hook("varifocal", "typecheck.checked")  # before anything imports varifocal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as under nohup: children would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or min(2, os.cpu_count() or 1)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
