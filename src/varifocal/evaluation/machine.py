"""Where and with what a figure is measured."""

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from varifocal.cost import cpu_name


def machine_info(device: torch.device) -> dict[str, Any]:
    """What timings depend on; `load` is the system's load average when asked."""
    info: dict[str, Any] = {
        "cpu": cpu_name(),
        "cores": os.cpu_count() or 1,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": "cpu",
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY", "default"),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
    }
    if device.type == "cuda":
        info["device"] = torch.cuda.get_device_name(device)
    return info | {name: _version(name) for name in ("torch", "transformers", "varifocal")}


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many of torch's threads while this is open, and as many as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def git_commit() -> str:
    """The commit of this source tree, `-dirty` if files differ from it; "unknown" elsewhere."""
    package = Path(__file__).resolve().parent.parent
    top = _git(package, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() / "src" / "varifocal" != package:
        return "unknown"
    commit = _git(package, "rev-parse", "HEAD")
    if not commit:
        return "unknown"
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}-dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
