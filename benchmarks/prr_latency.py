"""What PRR gives and costs on this CPU: a token and its windows, against plain sparse attention.

    .venv/bin/python benchmarks/prr_latency.py --target tiny --contexts 2048 8000 --json FILE

Dense attention, plain sparse attention and PRR (on one thread, on two, and on two guarded) take
turns at every token of a text, so that they meet the same disturbances. A way is judged by the
ratio of its total time to plain sparse attention's over the same tokens, so that what its trials
cost counts in full. The interval is a bootstrap over runs of eight neighbouring tokens, which a
disturbance or a trial of the guard lasts; `no more than 2 % slower` is shown where the interval
ends below 1.02, and refuted where it begins above. The machine has to be quiet: on a busy one two
threads have no second core, and intervals are wide.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median, quantiles
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from varifocal.cli._sparse_texts import TextOptions, draw_from
from varifocal.evaluation.machine import git_commit, machine_info
from varifocal.sparse import Reach, TwoThreads
from varifocal.sparse.contest import (
    DENSE,
    GUARDED,
    PARALLEL,
    PLAIN,
    SERIAL,
    Contest,
    Setting,
    Track,
    compete,
    prefilled,
)
from varifocal.sparse.decoding import dense_twin, open_model

WAYS = (DENSE, PLAIN, SERIAL, PARALLEL, GUARDED)
LIMIT = 1.02  # of plain: the guard's promise
BLOCK, DRAWS = 8, 2000


@dataclass(frozen=True)
class Ratio:
    """Of totals over the same tokens, with the middle 95 % of its resamples."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, own: Sequence[float], base: Sequence[float], seed: int) -> "Ratio":
        """Paired by token; runs of BLOCK tokens are drawn with replacement."""
        runs = [
            (sum(own[n : n + BLOCK]), sum(base[n : n + BLOCK])) for n in range(0, len(own), BLOCK)
        ]
        rng = Random(seed)
        drawn = []
        for _ in range(DRAWS):
            some = rng.choices(runs, k=len(runs))
            drawn.append(sum(a for a, _ in some) / sum(b for _, b in some))
        ends = quantiles(drawn, n=40)
        return cls(sum(own) / sum(base), ends[0], ends[-1])

    @property
    def verdict(self) -> str:
        """Whether it is no more than 2 % slower."""
        if self.high <= LIMIT:
            return "shown"
        return "refuted" if self.low > LIMIT else "open"


def main() -> None:
    """Measure, print, write."""
    args = parse()
    torch.set_num_threads(1)
    target = open_model(args.target)
    twin, draw = dense_twin(target), draw_from(TextOptions(tasks=args.tasks), target)
    setting = Setting(
        reach=Reach(budget=args.budget),
        block_size=args.block_size,
        kernel="torch",
        share=args.share,
        warm_up=args.warm_up,
        tokens=args.tokens,
        follows=True,
    )
    rows = []
    with TwoThreads() as queues:
        for context in args.contexts:
            for sample in draw(context, args.warm_up + args.tokens):
                full = prefilled(twin, sample)
                contest = compete(
                    target, full, sample, args.selector, (args.predictor,), setting, queues
                )
                about = {"context": context, "text": sample.name}
                rows += [about | measured(contest, way, args) for way in WAYS]
    show(rows)
    if args.json:
        made = {
            "machine": machine_info(torch.device("cpu")),
            "commit": git_commit(),
            "target": target.name,
            "dtype": str(target.dtype).removeprefix("torch."),
            "settings": {k: v for k, v in vars(args).items() if k != "json"},
        }
        args.json.write_text(f"{json.dumps(made | {'rows': rows}, indent=1)}\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="tiny")
    parser.add_argument("--contexts", type=int, nargs="+", default=[2048, 8000])
    parser.add_argument(
        "--tasks", default="", help="kinds of text of the tiny model; else documentation"
    )
    parser.add_argument("--selector", default="quest")
    parser.add_argument("--predictor", default="ema")
    parser.add_argument("--share", type=float, default=1.0, help="guesses, where not guarded")
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=128, help="a period of the guard")
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0, help="of the resamples")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.tokens < 2 * BLOCK:
        parser.error(f"--tokens: at least {2 * BLOCK}, or there is nothing to resample")
    return args


def measured(contest: Contest, way: str, args: argparse.Namespace) -> dict[str, Any]:
    """One way of one contest, as JSON; seconds."""
    plain = contest.track(PLAIN)
    track = contest.track(way, "" if way in (DENSE, PLAIN) else args.predictor)
    token = Ratio.of(track.seconds, plain.seconds, args.seed)
    work = Ratio.of(track.cpu_seconds, plain.cpu_seconds, args.seed)
    made: dict[str, Any] = {
        "way": way,
        "token": quartiles(track.seconds),
        "token_ratio": vars(token),
        "median_ratio": median(a / b for a, b in zip(track.seconds, plain.seconds, strict=True)),
        "cpu_ratio": vars(work),
        "verdict": token.verdict,
        "unlike_plain": track.unlike_plain if way != DENSE else None,
    }
    if way == DENSE:
        return made
    windows, base = ([w.total for w in t.windows] for t in (track, plain))
    made |= {"window": quartiles(windows)}
    made |= {"window_ratio": vars(Ratio.of(windows, base, args.seed))}
    made |= {"contention": track.contention, "hit_rates": rates(track)}
    return made


def rates(track: Track) -> dict[str, float | None]:
    """By predictor, `last` among them; nothing where nothing was guessed."""
    return {rate.predictor: rate.hit_rate for rate in track.rates if rate.layer is None}


def quartiles(seconds: Sequence[float]) -> tuple[float, float, float]:
    """Lower, median, upper."""
    low, _, high = quantiles(seconds, n=4)
    return low, median(seconds), high


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Milliseconds; savings against plain sparse attention."""
    table = Table(
        *("text", "context", "way", "token", "window", "window saved", "token saved (95 %)"),
        *("its CPU time", "at most 2 % slower", "hit rates"),
    )
    for row in rows:
        token, window = row["token_ratio"], row.get("window_ratio")
        table.add_row(
            row["text"],
            f"{row['context']}",
            row["way"],
            "{1:.1f} ({0:.1f}–{2:.1f})".format(*(1e3 * seconds for seconds in row["token"])),
            f"{1e3 * row['window'][1]:.1f}" if window else "–",
            f"{1 - window['value']:+.1%}" if window else "–",
            f"{1 - token['value']:+.1%} ({1 - token['high']:+.1%} to {1 - token['low']:+.1%})",
            f"{row['cpu_ratio']['value'] - 1:+.1%}",
            "–" if row["way"] in (DENSE, PLAIN) else row["verdict"],
            ", ".join(f"{n} {r:.2f}" for n, r in (row.get("hit_rates") or {}).items() if r),
        )
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
