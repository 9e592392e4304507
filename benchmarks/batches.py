"""Serve requests one after the other and as a batch: tokens a second, and whether texts are equal.

    .venv/bin/python benchmarks/batches.py --threads 1 --json FILE

Requests are those of the demo suite, on the embedded target. The ways take turns, so that a busy
machine disturbs all alike; a ratio is the median over the turns. The clock is the process's CPU
time on one CPU thread, else wall time. "decode" leaves the prefills out, which are never shared.
"""

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from varifocal.cost import natural_clock
from varifocal.engine import DTYPES, Engine, load
from varifocal.evaluation.machine import git_commit, machine_info
from varifocal.evaluation.suites import load_suite
from varifocal.request import Request
from varifocal.result import GenerationResult


@dataclass(frozen=True)
class Served:
    """One way of serving, over all turns; ratios are to plain decoding one after the other."""

    drafter: str
    requests: int
    batch: bool
    tokens_per_second: float
    decode_tokens_per_second: float
    ratio: float
    decode_ratio: float
    mean_acceptance_length: float
    plain_share: float  # rounds in which nothing was drafted
    same_texts: int  # equal to plain decoding one after the other
    fallback: str | None


@dataclass(frozen=True)
class _Run:
    seconds: float
    results: list[GenerationResult]

    @property
    def tokens(self) -> int:
        return sum(len(r.token_ids) for r in self.results)

    @property
    def decode_seconds(self) -> float:
        return sum(r.seconds["decode"] for r in self.results)


def main() -> None:
    """Measure, print, write."""
    args = parse()
    disable_progress_bar()  # of loading
    torch.set_num_threads(args.threads)
    engines = {
        name: load("demo", name, dtype=args.dtype, device=args.device, exact_rows=args.exact_rows)
        for name in ["plain", *(d for d in args.drafters if d != "plain")]
    }
    served = [row for count in args.requests for row in serve(args, engines, some(count, args))]
    show(served)
    if args.json:
        target = engines["plain"].target
        about = {
            "machine": machine_info(target.device),
            "commit": git_commit(),
            "threads": args.threads,
            "dtype": str(target.dtype).removeprefix("torch."),
            "exact_rows": target.exact_rows,
            "turns": args.turns,
            "max_new_tokens": args.max_new_tokens,
            "seed": args.seed,
        }
        made = json.dumps(about | {"served": [asdict(row) for row in served]}, indent=1)
        args.json.write_text(f"{made}\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--exact-rows", action=argparse.BooleanOptionalAction, default=None)
    parser.add_argument("--drafters", nargs="+", default=["plain", "fovea"])
    parser.add_argument("--requests", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--max-new-tokens", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3, help="repeats of every way")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    return parser.parse_args()


def some(count: int, args: argparse.Namespace) -> list[Request]:
    """So many requests of the suite, of all kinds."""
    cases = load_suite("demo", limit=4)
    chosen = random.Random(args.seed).sample(cases, count)
    return [replace(case.request, max_new_tokens=args.max_new_tokens) for case in chosen]


def serve(
    args: argparse.Namespace, engines: dict[str, Engine], requests: Sequence[Request]
) -> list[Served]:
    """Every drafter, one after the other and as a batch."""
    runs: dict[tuple[str, bool], list[_Run]] = {(n, b): [] for n in engines for b in (False, True)}
    for turn in range(args.turns + 1):
        for (name, batch), taken in runs.items():
            run = once(engines[name], requests, batch)
            if turn:  # the first is the warm-up
                taken.append(run)
    baseline = runs["plain", False]
    return [summed_up(*way, taken, baseline) for way, taken in runs.items()]


def once(engine: Engine, requests: Sequence[Request], batch: bool) -> _Run:
    """All requests to their end."""
    clock = natural_clock(engine.target.device)
    begin = clock()
    if batch:
        results = engine.batch(requests, max_batch=len(requests), clock=clock).results()
        return _Run(clock() - begin, results)
    streams = [engine.stream(request, clock=clock) for request in requests]
    for stream in streams:
        for _ in stream:
            pass
    return _Run(clock() - begin, [stream.result() for stream in streams])


def summed_up(name: str, batch: bool, runs: Sequence[_Run], baseline: Sequence[_Run]) -> Served:
    """Medians; ratios are taken turn by turn."""
    results = runs[0].results
    rounds = [r for result in results for r in result.rounds]
    wanted = [result.token_ids for result in baseline[0].results]
    pairs = list(zip(baseline, runs, strict=True))
    return Served(
        drafter=name,
        requests=len(results),
        batch=batch,
        tokens_per_second=median(r.tokens / r.seconds for r in runs),
        decode_tokens_per_second=median(r.tokens / r.decode_seconds for r in runs),
        ratio=median(a.seconds / b.seconds for a, b in pairs),
        decode_ratio=median(a.decode_seconds / b.decode_seconds for a, b in pairs),
        mean_acceptance_length=1 + sum(r.num_accepted for r in rounds) / len(rounds),
        plain_share=sum(not r.num_drafted for r in rounds) / len(rounds),
        same_texts=sum(r.token_ids == w for r, w in zip(results, wanted, strict=True)),
        fallback=next((r.fallback for r in results if r.fallback), None),
    )


def show(served: Sequence[Served]) -> None:
    """One table."""
    heads = ("drafter", "requests", "served", "tokens/s", "ratio", "decode t/s", "ratio")
    table = Table(*heads, "tau", "plain rounds", "same texts")
    for s in served:
        cells: list[Any] = [
            s.drafter,
            s.requests,
            "as a batch" if s.batch else "in turn",
            f"{s.tokens_per_second:.0f}",
            f"{s.ratio:.2f}",
            f"{s.decode_tokens_per_second:.0f}",
            f"{s.decode_ratio:.2f}",
            f"{s.mean_acceptance_length:.2f}",
            f"{s.plain_share:.0%}",
            f"{s.same_texts}/{s.requests}",
        ]
        table.add_row(*map(str, cells))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
