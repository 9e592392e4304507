"""Measure PRR's kernels on a GPU: bit equality, error, overlap, and time against plain and dense.

    python scripts/prr_gpu.py --json prr.json             # an 8B model's layer, under 8 minutes
    python scripts/prr_gpu.py --device cpu --small        # the same code in seconds
    TRITON_INTERPRET=1 python scripts/prr_gpu.py --device cpu --small --kernel triton

Keys and weights are random, so hit rates are set and not measured: a rate of 0.9 means that nine of
ten chosen blocks had been guessed. Times are medians of CUDA graphs that pass several layers in
turn. `alone` is attention by itself, `layer` with projections and MLP, `window` what a layer takes
more than those two, `token` a layer's time by the model's layers. Exit code 1: bits differ, or a
part broke off; 2: no such device.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from gpu_check import machine
from prr_checks import Bench, Findings, check_binaries, check_equality, check_error
from prr_layer import (
    SHAPES,
    Layer,
    filled,
    fix_guesses,
    gathered_sparse,
    grouped_dense,
    packed_dense,
    seconds,
    sparse,
    streams_for,
    without_learning,
)
from torch import Tensor

from varifocal.sparse.backends import load_operations
from varifocal.sparse.static_step import StaticStep
from varifocal.sparse.streams import ATTEND, BEGIN, JOIN, Launch, SingleStream, Streams

RATES = (0.0, 0.5, 0.9, 1.0)  # shares of the chosen blocks that had been guessed
SLEEP = 20_000_000  # cycles that the device waits while the host enqueues a timeline's work


# -- what runs beside what ---------------------------------------------------------------------


def check_overlap(found: Findings, bench: Bench) -> None:
    """When each piece of work began and ended, on two streams without a graph."""
    shape = bench.shape
    for batch in shape.batches:
        length, block = shape.lengths[-1], shape.blocks[0]
        cache = filled(shape, block, batch, length, bench.dtype, bench.device)
        step = sparse(cache, shape, bench.operations, length, shape.reach.count(block))[0]
        fix_guesses(step, 0.9)
        works = without_learning(step)
        streams = streams_for(bench.device)
        for _ in range(2):  # the first one compiles
            spans = _spans(works, streams, bench.device)
        found.timelines.append({"batch": batch, "length": length, "block": block, "spans": spans})
        early, late = spans["speculate"], (spans["rank"][0], spans["select"][1])
        both = max(0.0, min(early[1], late[1]) - max(early[0], late[0]))
        share = both / min(early[1] - early[0], late[1] - late[0])
        name = f"speculation beside selection at {length} tokens, batch {batch}"
        found.add("overlap", name, 100 * share, "% of the shorter")


def _spans(
    works: dict[str, Callable[[], None]], streams: Streams, device: torch.device
) -> dict[str, tuple[float, float]]:
    """Microseconds from the first launch to each work's begin and end."""
    marks: dict[str, tuple[Any, Any]] = {}

    def noted(name: str) -> Callable[[], None]:
        def work() -> None:
            begin = _mark(device)
            works[name]()
            marks[name] = (begin, _mark(device))

        return work

    names = [act.work for act in (*BEGIN, *ATTEND) if isinstance(act, Launch)]
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda._sleep(SLEEP)  # or the host's launching would be what is timed
    start = _mark(device)
    streams.run((*BEGIN, *ATTEND, *JOIN), {name: noted(name) for name in names})
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return {
        name: (_microseconds(start, begin), _microseconds(start, end))
        for name, (begin, end) in marks.items()
    }


def _mark(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _microseconds(start: Any, end: Any) -> float:
    return 1e6 * (end - start) if isinstance(start, float) else 1e3 * start.elapsed_time(end)


# -- time --------------------------------------------------------------------------------------


def check_times(found: Findings, bench: Bench) -> None:
    """Every length, batch and block size; the dense ones once for each batch."""
    shape = bench.shape
    for batch in shape.batches:
        layer = Layer(shape, batch, bench.dtype, bench.device)
        layer.measure(shape, bench.device)
        for length in shape.lengths:
            with found.part(f"dense at {length} tokens, batch {batch}"):
                _time_dense(found, bench, layer, batch, length)
        for block in shape.blocks:
            cache = filled(shape, block, batch, shape.lengths[-1], bench.dtype, bench.device)
            for length in shape.lengths:
                with found.part(f"sparse at {length} tokens, batch {batch}, blocks of {block}"):
                    _time_sparse(found, bench, layer, cache, length)
            del cache


def _time_dense(found: Findings, bench: Bench, layer: Layer, batch: int, length: int) -> None:
    """torch's attention with the heads of a group as heads, and as queries."""
    shape = bench.shape
    sizes = (shape.rotation, batch, shape.kv_heads, length, shape.width)
    keys, values = (torch.randn(sizes, dtype=bench.dtype, device=bench.device) for _ in range(2))
    queries = torch.randn(
        batch, shape.kv_heads, shape.group, shape.width, dtype=bench.dtype, device=bench.device
    )
    for name, attend in (("dense", grouped_dense), ("dense, packed", packed_dense)):
        works = [
            lambda k=k, v=v, attend=attend: attend(queries, k, v, shape.scale)
            for k, v in zip(keys, values, strict=True)
        ]
        place = {"batch": batch, "length": length, "block": None, "rate": None}
        _time(found, bench, layer, name, place, lambda: None, works)


def _time_sparse(found: Findings, bench: Bench, layer: Layer, cache: Any, length: int) -> None:
    """Plain, PRR at each rate, the phases alone, and plain by torch's attention over a copy."""
    shape, block = bench.shape, cache.shape.block_size
    place = {"batch": cache.shape.num_rows, "length": length, "block": block, "rate": None}
    count = shape.reach.count(block)
    plain = sparse(cache, shape, bench.operations, length, None)
    works = [lambda s=s: s.attend(SingleStream()) for s in plain]
    _time(found, bench, layer, "plain", place, lambda: None, works)
    works = [lambda s=s: gathered_sparse(s, shape.scale) for s in plain]
    _time(found, bench, layer, "plain, gathered", place, lambda: None, works)
    for rate in RATES:
        steps = sparse(cache, shape, bench.operations, length, count)
        got = [fix_guesses(step, rate) for step in steps]
        streams = streams_for(bench.device)
        known = [without_learning(step) for step in steps]
        begins = [lambda w=w, s=streams: s.run(BEGIN, w) for w in known]
        works = [
            lambda w=w, s=streams, step=step: (s.run(ATTEND, w), step.buffers.merged.output)[1]
            for w, step in zip(known, steps, strict=True)
        ]
        there = {**place, "rate": sum(got) / len(got)}
        join = lambda w=known[0], s=streams: s.run(JOIN, w)  # noqa: E731 - one act
        _time(found, bench, layer, f"PRR at {rate:.1f}", there, join, works, begins)
    _time_phases(found, bench, place, steps)


def _time_phases(
    found: Findings, bench: Bench, place: dict[str, Any], steps: list[StaticStep]
) -> None:
    """Each piece of work alone, over the layers in turn."""
    for act in (*BEGIN, *ATTEND):
        if isinstance(act, Launch):
            works = [step.works[act.work] for step in steps]
            spent = seconds(lambda works=works: [w() for w in works], bench.device, 3)
            row = {**place, "method": f"phase {act.work}", "alone_us": 1e6 * spent / len(works)}
            found.times.append(row)


def _time(
    found: Findings,
    bench: Bench,
    layer: Layer,
    method: str,
    place: dict[str, Any],
    join: Callable[[], None],
    works: Sequence[Callable[[], Tensor]],
    begins: Sequence[Callable[[], None]] = (),
) -> None:
    """Attention alone, and within whole layers, where guessing runs beside the projections."""
    before = begins or [lambda: None for _ in works]

    def alone() -> None:
        for begin, work in zip(before, works, strict=True):
            begin()
            work()
        join()

    def layers() -> None:
        for begin, work in zip(before, works, strict=True):
            begin()
            layer.before()
            layer.after(work())
        join()

    shape = bench.shape
    alone_us, layer_us = (
        1e6 * seconds(run, bench.device, shape.repeats) / len(works) for run in (alone, layers)
    )
    spent = {
        "alone_us": alone_us,
        "layer_us": layer_us,
        "window_us": layer_us - layer.rest_us,
        "token_ms": layer_us * shape.layers / 1000,
    }
    found.times.append({**place, "method": method, **spent})


def show_savings(found: Findings) -> None:
    """What PRR saves of plain, by both denominators, and how both compare with dense."""
    by = {(t["batch"], t["length"], t["block"], t["method"]): t for t in found.times}
    for (batch, length, block, method), row in by.items():
        if not method.startswith("PRR"):
            continue
        if (plain := by.get((batch, length, block, "plain"))) is None:
            continue  # it broke off, and was named
        dense = [t for m in ("dense", "dense, packed") if (t := by.get((batch, length, None, m)))]
        where = f"{length} tokens, batch {batch}, blocks of {block}, {method}"
        for part, unit in (("window_us", "window"), ("layer_us", "token")):
            saved = 100 * (1 - row[part] / plain[part])
            found.add("time", f"{where}: saved of plain's {unit}", saved, "%")
        found.add("time", f"{where}: token", row["token_ms"], "ms")
        if dense:
            least = min(t["token_ms"] for t in dense)
            found.add("time", f"{where}: dense / PRR", least / row["token_ms"], "token times")


# -- joinery -----------------------------------------------------------------------------------


def parts() -> Iterator[tuple[str, Callable[[Findings, Bench], None]]]:
    """The cheapest first; all but times take seconds, besides compiling."""
    yield "equality", check_equality
    yield "binaries", check_binaries
    yield "error", check_error
    yield "overlap", check_overlap
    yield "times", check_times


@torch.inference_mode()
def run(bench: Bench) -> Findings:
    """All parts."""
    found = Findings()
    for name, check in parts():
        begin = time.perf_counter()
        with found.part(name):
            check(found, bench)
        found.add("script", f"{name} took", time.perf_counter() - begin, "s")
    with found.part("savings"):
        show_savings(found)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--small", action="store_true", help="sizes for a dry run")
    parser.add_argument("--kernel", default="auto", help="auto, torch, triton, flashinfer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there")
    given = parser.parse_args(arguments)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        print("there is no CUDA device that torch can use here; --device cpu --small makes a dry "
              "run of everything but the graphs", file=sys.stderr)  # fmt: skip
        return 2
    device = torch.device(given.device)
    shape = SHAPES["small" if given.small else "llama-8b"]
    operations = load_operations(given.kernel, device)
    found = run(Bench(shape, device, operations, given.kernel))
    found.show()
    if given.json:
        about = {"machine": machine(device), "shape": asdict(shape), "kernel": given.kernel}
        text = json.dumps({**about, **asdict(found)}, indent=1, default=str)
        given.json.write_text(text + "\n", encoding="utf-8")
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
