"""Hold the simulator of PRR to steps on two threads of this CPU, at several context lengths.

    .venv/bin/python benchmarks/prr.py --json FILE

For each length: the phases are measured, then steps run in turn, plainly, with PRR on one thread
and with PRR on two, over the same drifting queries. What the simulator makes of the phases and of
the hit rate of these steps is compared with what the steps took. The keys are random: such steps
say what a machine does, not how often guesses are right.

With --asleep both phases sleep as well, for 20 ms and 0.1 ms a block scored, 10 ms and 0.5 ms a
block attended to: that holds the schedule alone to the simulator, on a machine however busy.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table

from varifocal.evaluation.machine import git_commit, machine_info
from varifocal.sparse import (
    BlockCache,
    CacheShape,
    FixedSpeculation,
    PhaseTimes,
    Queries,
    Reach,
    SparseAttention,
    TwoThreads,
)
from varifocal.sparse.kernels import BlockKernel
from varifocal.sparse.phases import SHARES
from varifocal.sparse.profiles import Profile
from varifocal.sparse.profiling import Care, Profiler, Trial
from varifocal.sparse.selectors import Quest
from varifocal.sparse.simulator import Projection, project

WARM_UP = 3
TOLERANCE = 0.1  # of a measured step


@dataclass(frozen=True)
class Row:
    """One length: seconds of a step as medians with quartiles, measured and predicted."""

    context: int
    selector: str
    guessed: int
    chosen: int
    hit_rate: float
    contention: float
    select: float
    attend: float
    plain: tuple[float, float, float]
    serial: tuple[float, float, float]
    two_threads: tuple[float, float, float]
    predicted_plain: float
    predicted: float
    overlap_fraction: float
    is_guarded: bool  # the budget would fall to zero here

    @property
    def deviation(self) -> float:
        """Of the predicted step on two threads from the measured one."""
        return self.predicted / self.two_threads[1] - 1

    @property
    def is_near(self) -> bool:
        """Whether the simulator may be believed here."""
        return abs(self.deviation) <= TOLERANCE

    @property
    def saving(self) -> float:
        """Of the window, measured."""
        return 1 - self.two_threads[1] / self.plain[1]


def main() -> None:
    """Measure, print, write."""
    args = parse()
    torch.set_num_threads(1)
    slowed = asleep() if args.asleep else nullcontext()
    with torch.inference_mode(), TwoThreads() as queues, slowed:
        rows = [row(args, context, queues) for context in args.contexts]
    show(rows)
    if args.json:
        about = {
            "machine": machine_info(torch.device("cpu")),
            "commit": git_commit(),
            "settings": {k: v for k, v in vars(args).items() if k != "json"},
        }
        made = [
            asdict(r) | {"deviation": r.deviation, "is_near": r.is_near, "saving": r.saving}
            for r in rows
        ]
        text = json.dumps(about | {"rows": made}, indent=1)
        args.json.write_text(f"{text}\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 8192, 16384, 32768])
    parser.add_argument("--selector", default="quest")
    parser.add_argument("--predictor", default="last")
    parser.add_argument("--share", type=float, default=1.0, help="guesses per chosen block")
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=4)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--drift", type=float, default=0.95, help="of queries: 1 stays, 0 is new")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument(
        "--fastest",
        action="store_true",
        help="compare the fastest steps instead of the median ones: for a busy machine",
    )
    parser.add_argument("--asleep", action="store_true", help="phases of known length")
    parser.add_argument("--rest", type=float, default=0.0, help="seconds before each step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def row(args: argparse.Namespace, context: int, queues: TwoThreads) -> Row:
    """Measure phases, then steps in turn, then compare."""
    cache, reach = filled(args, context), Reach(budget=args.budget)
    drifting = queries(args, context)
    trial = Trial(
        cache=cache,
        reach=reach,
        layer=0,
        selector=args.selector,
        predictor=args.predictor,
        care=Care(typical=min if args.fastest else median, rest=args.rest),
    )
    profiler = Profiler(trial, next(drifting), queues)
    options = {"selector": args.selector, "predictor": args.predictor}
    share = FixedSpeculation(args.share)
    plain = SparseAttention(cache, reach, **options)
    serial = SparseAttention(cache, reach, speculation=share, **options)
    parallel = SparseAttention(cache, reach, speculation=share, queues=queues, **options)
    steps: dict[str, list[Any]] = {"plain": [], "serial": [], "two_threads": []}
    acts = {"plain": plain.plain, "serial": serial.step, "two_threads": parallel.step}
    for turn in range(WARM_UP + args.turns):
        asked, made = next(drifting), {}
        profiler.round(asked)  # in turn, since what a machine does changes from second to second
        names = list(acts)
        for name in names[turn % 3 :] + names[: turn % 3]:  # the first finds its keys cold
            act = acts[name]
            time.sleep(args.rest)
            made[name] = act(0, asked)
            parallel.settle()
        assert torch.equal(made["plain"].state.total, made["two_threads"].state.total)
        if turn >= WARM_UP:
            for name, step in made.items():
                steps[name].append(step)
    return compared(context, args, profiler.times(), reach, plain.unit, steps)


def compared(
    context: int,
    args: argparse.Namespace,
    times: PhaseTimes,
    reach: Reach,
    unit: int,
    steps: dict[str, list[Any]],
) -> Row:
    """What the steps took, beside what the simulator makes of the phases."""
    pairs, typical = args.kv_heads, min if args.fastest else median
    chosen = reach.count(unit)
    attended = median(int(s.chosen.sum()) / pairs for s in steps["plain"])
    kept = round(attended) - chosen
    guessed = round(median(s.speculated / pairs for s in steps["two_threads"])) - kept
    repaired = sum(s.repaired for s in steps["two_threads"]) / pairs / args.turns
    rate = 1 - repaired / chosen
    profile = Profile(
        name="measured",
        context=context,
        times=times,
        units=-(-context // unit),
        kept=kept,
        chosen=chosen,
        group=args.group,
        is_by_head=True,
    )
    predicted: Projection = project(profile, (guessed, rate))
    curve = [rate * min(1.0, s / args.share) for s in SHARES]
    return Row(
        context=context,
        selector=args.selector,
        guessed=guessed,
        chosen=chosen,
        hit_rate=rate,
        contention=times.contention,
        select=typical(s.times.select for s in steps["plain"]),
        attend=typical(s.times.repair for s in steps["plain"]),
        plain=spread([s.times.total for s in steps["plain"]], args.fastest),
        serial=spread([s.times.total for s in steps["serial"]], args.fastest),
        two_threads=spread([s.times.total for s in steps["two_threads"]], args.fastest),
        predicted_plain=predicted.plain_window,
        predicted=predicted.window,
        overlap_fraction=median(s.times.overlap_fraction for s in steps["two_threads"]),
        is_guarded=times.fastest(profile.units, kept, chosen, curve, gain=0.02) is None,
    )


@contextmanager
def asleep() -> Iterator[None]:
    """Selection by Quest and attention to blocks take as long as they take, and a sleep."""
    scores, compute = Quest.scores, BlockKernel.compute

    def score(self: Quest, cache: BlockCache, layer: int, asked: Queries) -> torch.Tensor:
        time.sleep(0.02 + 1e-4 * cache.num_blocks(int(asked.visible.max())))
        return scores(self, cache, layer, asked)

    def attend(
        self: BlockKernel, cache: BlockCache, layer: int, asked: Queries, wanted: torch.Tensor
    ) -> Any:
        if number := int(wanted.sum()):
            time.sleep(0.01 + 5e-4 * number)
        return compute(self, cache, layer, asked, wanted)

    with patch.object(Quest, "scores", score), patch.object(BlockKernel, "compute", attend):
        yield


def spread(seconds: Sequence[float], is_fastest: bool) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile; the median stands for all, or the least does."""
    low, middle, high = quantiles(seconds, n=4)
    return low, min(seconds) if is_fastest else middle, high


def filled(args: argparse.Namespace, context: int) -> BlockCache:
    """One row of random tokens."""
    shape = CacheShape(
        num_rows=1,
        num_layers=1,
        kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        block_size=args.block_size,
        stride=min(16, args.block_size) if args.selector == "infllm" else 0,
    )
    cache = BlockCache(shape)
    rng = torch.Generator().manual_seed(args.seed)
    keys, values = torch.randn(2, context, args.kv_heads, args.head_dim, generator=rng)
    cache.append(0, [context], keys, values)
    return cache


def queries(args: argparse.Namespace, context: int) -> Iterator[Queries]:
    """Queries that drift slowly, so that choices do."""
    rng = torch.Generator().manual_seed(args.seed + 1)
    sizes = (1, args.kv_heads, args.group, args.head_dim)
    vectors = torch.randn(sizes, generator=rng)
    while True:
        news = torch.randn(sizes, generator=rng)
        vectors = args.drift * vectors + (1 - args.drift**2) ** 0.5 * news
        yield Queries(
            vectors=2 * vectors,
            rows=torch.tensor([0]),
            visible=torch.tensor([context]),
            scale=args.head_dim**-0.5,
        )


def show(rows: Sequence[Row]) -> None:
    """Milliseconds."""
    table = Table(
        *("context", "select", "attend", "plain", "PRR, one thread", "two threads", "predicted"),
        *("deviation", "contention", "hit rate", "saved", "guard"),
    )
    for r in rows:
        table.add_row(
            f"{r.context}",
            *(f"{1e3 * s:.2f}" for s in (r.select, r.attend)),
            *(f"{1e3 * s[1]:.2f}" for s in (r.plain, r.serial, r.two_threads)),
            f"{1e3 * r.predicted:.2f}",
            f"{r.deviation:+.1%}",
            f"{r.contention:.2f}",
            f"{r.hit_rate:.2f}",
            f"{r.saving:+.1%}",
            "off" if r.is_guarded else "on",
        )
    console = Console(width=160)
    console.print(table)
    near = sum(r.is_near for r in rows)
    console.print(f"predicted within {TOLERANCE:.0%} at {near} of {len(rows)} lengths")


if __name__ == "__main__":
    main()
