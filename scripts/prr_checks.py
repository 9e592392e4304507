"""Whether PRR by some kernels equals plain by the same ones, to the bit, and how exact they are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from gpu_check import Report
from prr_layer import Shape, ask, filled, gathered, sparse, streams_for
from static_decoding import captured

from varifocal.sparse.padded import Operations
from varifocal.sparse.partials import Partials
from varifocal.sparse.static_step import StaticStep
from varifocal.sparse.streams import SingleStream

STEPS = 6  # of each check of equality
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@dataclass
class Findings(Report):
    """The table's rows, and the numbers behind them."""

    times: list[dict[str, Any]] = field(default_factory=list)
    timelines: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Bench:
    """What is measured, and with what."""

    shape: Shape
    device: torch.device
    operations: Operations
    kernel: str

    @property
    def is_compiled(self) -> bool:
        """Whether Triton compiles, rather than that it or torch interprets."""
        return self.device.type == "cuda" and self.kernel in ("auto", "triton", "flashinfer")

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Those that can be computed here."""
        is_interpreted = self.kernel == "triton" and self.device.type == "cpu"
        return DTYPES[:-1] if is_interpreted else DTYPES

    @property
    def dtype(self) -> torch.dtype:
        """What is timed."""
        return self.dtypes[-1]


def check_equality(found: Findings, bench: Bench) -> None:
    """PRR against plain by the same kernels: on two streams, and as a graph."""
    shape = bench.shape
    length = shape.lengths[0]
    for dtype in bench.dtypes:
        for block in shape.blocks:
            cache = filled(shape, block, 2, length, dtype, bench.device)
            guesses = shape.reach.count(block)
            plain, eager, graph = (
                sparse(cache, shape, bench.operations, length, number)[:1]
                for number in (None, guesses, guesses)
            )
            runs = {"eager": _attending(eager, bench.device)}
            if bench.device.type == "cuda":
                runs["graph"] = captured(_attending(graph, bench.device))
            for kind, run in runs.items():
                steps = eager if kind == "eager" else graph
                same, reused = 0, 0
                for number in range(STEPS):
                    same += _same_step(plain, steps, run, length, number)
                    reused += _reused(steps[0])
                name = f"PRR equals plain, {short(dtype)}, blocks of {block}, {kind}"
                found.add("equality", name, same, f"of {STEPS}")
                found.add("equality", f"{name}: guesses reused", reused, "blocks")
                if same < STEPS:
                    found.failures.append(f"equality: {name}: {STEPS - same} steps differ")
                if not reused:
                    found.failures.append(f"equality: {name}: no guess was right, so none was seen")


def _attending(steps: list[StaticStep], device: torch.device) -> Callable[[], None]:
    streams = streams_for(device)

    def run() -> None:
        for step in steps:
            step.begin(streams)
            step.attend(streams)
        for step in steps[-1:]:
            step.join(streams)

    return run


def _same_step(
    plain: list[StaticStep],
    guessing: list[StaticStep],
    run: Callable[[], None],
    length: int,
    number: int,
) -> bool:
    """One query of those that take turns: some come again, and are guessed."""
    for steps in (plain, guessing):
        ask(steps, length - 7 * number, number % 3)
    plain[0].attend(SingleStream())
    run()
    ours, theirs = (steps[0].buffers.merged for steps in (guessing, plain))
    return _same(ours.state, theirs.state) and torch.equal(ours.output, theirs.output)


def _same(ours: Partials, theirs: Partials) -> bool:
    names = ("peak", "mass", "total")
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in names)


def _reused(step: StaticStep) -> int:
    """Chosen blocks that had been guessed; kept ones do not count."""
    b = step.buffers
    is_free = b.kept.is_free(b.queries.visible, b.ranks.shape[-1])[:, None].expand_as(b.ranks)
    is_early = (b.found >= 0) & (b.found < b.early)
    return int((is_early & is_free.gather(-1, b.chosen.clamp(min=0).long())).sum())


def check_binaries(found: Findings, bench: Bench) -> None:
    """Whether speculation and repair ran one compiled kernel, as bit equality wants."""
    if not bench.is_compiled:
        found.add("equality", "compiled kernels of both phases", "nothing is compiled here")
        return
    for block in bench.shape.blocks:
        cache = filled(bench.shape, block, 1, bench.shape.lengths[0], bench.dtype, bench.device)
        count = bench.shape.reach.count(block)
        step = sparse(cache, bench.shape, bench.operations, bench.shape.lengths[0], count)[0]
        with _noted_binaries() as binaries:
            step.begin(SingleStream())
            step.attend(SingleStream())
        found.add("equality", f"compiled kernels of both phases, blocks of {block}", len(binaries))
        if len(binaries) != 1:
            found.failures.append(f"equality: {len(binaries)} kernels for blocks of {block}, not 1")


@contextmanager
def _noted_binaries() -> Iterator[set[int]]:
    """What launches of the attention kernel ran meanwhile."""
    from varifocal.sparse import triton_kernels

    kernel, binaries, kept = triton_kernels.attend_kernel, set(), []

    class Noting:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            def launch(*args: Any, **options: Any) -> None:
                made = kernel[grid](*args, **options)
                kept.append(made)  # an id lives as long as what it names
                binaries.add(id(made))

            return launch

    triton_kernels.attend_kernel = Noting()
    try:
        yield binaries
    finally:
        triton_kernels.attend_kernel = kernel


def check_error(found: Findings, bench: Bench) -> None:
    """Greatest error of the output against float64, beside that of torch's own kernel."""
    shape = bench.shape
    for dtype in bench.dtypes:
        cache = filled(shape, shape.blocks[0], 2, shape.lengths[0], dtype, bench.device)
        step = sparse(cache, shape, bench.operations, shape.lengths[0], None)[0]
        ours = step.attend(SingleStream()).double()
        keys, values, is_seen = gathered(step)
        queries = step.buffers.queries.vectors
        mask = is_seen[:, :, None].expand(-1, -1, shape.group, -1)
        logits = queries.double() @ keys.double().mT * shape.scale
        exact = logits.masked_fill(~mask, -torch.inf).softmax(-1) @ values.double()
        theirs = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, mask, scale=shape.scale
        )
        for name, output in (("ours", ours), ("torch", theirs.double())):
            error = float((output - exact).abs().max() / exact.abs().max())
            found.add("error", f"to float64, {short(dtype)}, {name}", f"{error:.2e}", "relative")
            units = 64 if dtype == torch.float32 else 1  # in 16 bits, rounding the output is most
            if name == "ours" and error > units * torch.finfo(dtype).eps:
                found.failures.append(f"error: {short(dtype)}: {error:.2e} is more than rounding")


def short(dtype: torch.dtype) -> str:
    """Without its library."""
    return str(dtype).removeprefix("torch.")
