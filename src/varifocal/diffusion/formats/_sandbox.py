"""Runs the tests of a program in a process of its own, within limits of time and memory.

It keeps accidents away: endless loops, exhausted memory, a flood of output, an early exit that
would pass for success. It is no wall against a program that means harm: files and network can be
reached. Score programs of an untrusted source in a container.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress

# Reads the job from standard input, limits itself, and proves that the tests ran to their end by
# writing the job's token, which the program has no reason to know.
_DRIVER = """
import json, os, sys
job = json.load(sys.stdin)
out = os.dup(1)
null = os.open(os.devnull, os.O_RDWR)
for stream in (0, 1, 2):
    os.dup2(null, stream)
try:
    import resource
except ImportError:
    pass
else:
    limits = {
        "RLIMIT_AS": job["memory_bytes"],
        "RLIMIT_CPU": job["cpu_seconds"],
        "RLIMIT_FSIZE": 1 << 20,
        "RLIMIT_CORE": 0,
    }
    for name, limit in limits.items():
        try:
            resource.setrlimit(getattr(resource, name), (limit, limit))
        except (AttributeError, ValueError, OSError):
            pass  # not every system has each of them
sys.argv = ["answer"]
space = {"__name__": "answer"}
for name in ("answer", "tests"):
    exec(compile(job[name], name, "exec"), space)
os.write(out, job["token"].encode())
"""


def passes(answer: str, tests: str, *, seconds: float, memory_bytes: int) -> bool:
    """Whether `answer` and then `tests`, in one namespace, run to their end without an exception.

    Memory is limited where the system has RLIMIT_AS (Linux), time everywhere.
    """
    token = secrets.token_hex(16)
    job = {
        "answer": answer,
        "tests": tests,
        "token": token,
        "memory_bytes": memory_bytes,
        "cpu_seconds": int(seconds) + 1,
    }
    kept = {key: os.environ[key] for key in ("SYSTEMROOT",) if key in os.environ}  # Windows' own
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as given,
        tempfile.TemporaryFile() as written,
    ):
        given.write(json.dumps(job).encode())
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _DRIVER],
            stdin=given,
            stdout=written,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env=kept,
            start_new_session=True,
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
        written.seek(0)
        return process.returncode == 0 and written.read(len(token) + 1) == token.encode()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and what it started."""
    if sys.platform == "win32":
        process.kill()
    else:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own
    process.wait()
