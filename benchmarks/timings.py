"""Time what LOG.md quotes: a draft against the size of the picture, exact rows, views.

    .venv/bin/python benchmarks/timings.py --threads 1 --json FILE

The variants of a table take turns, so that a busy machine disturbs all alike; a ratio is the
median over the turns. The clock is the process's CPU time on one CPU thread, else wall time. The
target is the embedded one; the drafter's weights and all tokens are random, as no time depends on
them.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, cast

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from varifocal.cost import natural_clock
from varifocal.decode import Clock, synchronised
from varifocal.demo.world import draw
from varifocal.drafters import load_drafter
from varifocal.drafters._caption import ChatCaptioner
from varifocal.drafters._views import Reading, open_views
from varifocal.drafters.ensemble import EnsembleDrafter
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.engine import DTYPES
from varifocal.evaluation.machine import git_commit, machine_info
from varifocal.plan import Budget
from varifocal.request import ask
from varifocal.target import Forward, Prompt, Want
from varifocal.targets import load_target
from varifocal.targets._hf import HFTarget
from varifocal.tree import DraftTree

VISUAL_TOKENS = (64, 114, 700, 2880)
ROWS = (1, 8, 16, 24, 40)
CONTEXTS = (250, 3000)
TEXT = 60  # text tokens beside the visual ones
LEVELS, NODES = 6, 40  # of a drafted tree
VIEWS = ("M", "MT", "MTP", "MTPC")  # of the shipped draft model
STEPS = 20  # draft steps in a timing of them


@dataclass(frozen=True)
class Timing:
    """One variant over all turns: milliseconds, and how often the time of its baseline."""

    table: str
    variant: str
    median_ms: float
    quartiles_ms: tuple[float, float]
    ratio: float
    ratio_quartiles: tuple[float, float]


def main() -> None:
    """Measure, print, write."""
    args = parse()
    disable_progress_bar()  # of loading
    if args.threads:
        torch.set_num_threads(args.threads)
    clock = synchronised(natural_clock(torch.device("cpu")), torch.device("cpu"))
    with torch.inference_mode():
        timings = [*drafts(args, clock), *exact_rows(args, clock), *views(args, clock)]
    show(timings)
    if args.json:
        about = {
            "machine": machine_info(torch.device("cpu")),
            "commit": git_commit(),
            "threads": torch.get_num_threads(),
            "dtype": args.dtype,
            "turns": args.turns,
            "seed": args.seed,
        }
        made = json.dumps(about | {"timings": [asdict(t) for t in timings]}, indent=1)
        args.json.write_text(f"{made}\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", 1)[0])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; 0: torch's own choice")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--turns", type=int, default=15, help="repeats of every variant, 2 or more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers here")
    args = parser.parse_args()
    if args.turns < 2:
        parser.error(f"--turns must be at least 2 for a spread, got {args.turns}")
    return args


# -- what is timed ---------------------------------------------------------------------------


def drafts(args: argparse.Namespace, clock: Clock) -> list[Timing]:
    """A drafted tree of six levels, by the number of visual tokens."""
    target = load_target("demo", dtype=DTYPES[args.dtype], exact_rows=False)
    torch.manual_seed(args.seed)
    drafter = FoveaDrafter(target, FoveaDrafter.Config(nodes=NODES))
    drafter.prepare()
    budget = Budget(depth=LEVELS, nodes=NODES)
    variants: dict[str, Callable[[], object]] = {}
    for count in VISUAL_TOKENS:
        prompt, seen = made_up(target, count, len(drafter.want.layers))
        state = drafter.start(prompt, seen, root=20)
        variants[f"{count} visual tokens"] = partial(drafter.propose, state, 20, budget)
    baseline = dict.fromkeys(variants, f"{VISUAL_TOKENS[0]} visual tokens")
    title = f"draft of {LEVELS} levels, {NODES} nodes"
    return summed_up(title, in_turns(variants, 5 * args.turns, clock), baseline)


def made_up(target: HFTarget, count: int, num_taps: int) -> tuple[Prompt, Forward]:
    """A prompt with so many visual tokens and its states, all random."""
    length = count + TEXT
    image_of = torch.full((length,), -1)
    image_of[1 : 1 + count] = 0
    tokens = torch.randint(target.vocab_size, (length,))
    states = torch.randn(2 + num_taps, length, target.hidden_size).to(target.dtype)
    prompt = Prompt(tokens, image_of, {}, ask("made up"))
    logits = torch.zeros(1, target.vocab_size)
    hidden = states[2:].transpose(0, 1).contiguous()
    return prompt, Forward(logits, hidden=hidden, final=states[0], embeddings=states[1])


def exact_rows(args: argparse.Namespace, clock: Clock) -> list[Timing]:
    """A target forward with and without exact rows, by rows and entries before them."""
    timings = []
    kinds = {"stock": False, "exact": True}
    targets = {
        k: load_target("demo", dtype=DTYPES[args.dtype], exact_rows=e) for k, e in kinds.items()
    }
    for context in CONTEXTS:
        variants = {
            f"{kind}, {rows} rows": forward(target, context, rows)
            for rows in ROWS
            for kind, target in targets.items()
        }
        baseline = {name: name.replace("exact", "stock") for name in variants}
        title = f"target forward after {context} entries"
        timings += summed_up(title, in_turns(variants, args.turns, clock), baseline)
    return timings


def views(args: argparse.Namespace, clock: Clock) -> list[Timing]:
    """Draft steps of the shipped draft model by the number of its views, beside plain tokens."""
    target = load_target("demo", dtype=DTYPES[args.dtype])
    sample = draw("document", 3, "valid")
    prompt = target.encode(ask(sample.turns[0].question, [sample.image], max_new_tokens=8))
    model = cast(EnsembleDrafter, load_drafter("ensemble", target)).model
    captioner = ChatCaptioner(model, "Describe the picture in detail.", 32)
    cache, _ = target.prefill(prompt, Want())
    newest = DraftTree.chain([20], target.device)

    def plain() -> None:
        for _ in range(STEPS):
            target.forward([newest], [cache], Want())
            cache.keep([], 1)

    def drafted(reading: Reading) -> None:
        tokens, sees = torch.tensor([20]), torch.ones(1, 1, dtype=torch.bool)
        for _ in range(STEPS):
            reading.draft(model, tokens, sees, 1)
            reading.keep([])

    variants: dict[str, Callable[[], object]] = {
        f"draft step, {len(names)} views ({names})": partial(
            drafted, open_views(model, prompt, names, captioner)
        )
        for names in VIEWS
    }
    baseline = dict.fromkeys((*variants, "plain token"), next(iter(variants)))
    variants["plain token"] = plain
    return summed_up(f"{STEPS} steps", in_turns(variants, 3 * args.turns, clock), baseline)


def forward(target: HFTarget, context: int, rows: int) -> Callable[[], object]:
    """One forward over a binary tree; the cache is cut back afterwards."""
    tokens = torch.randint(
        target.vocab_size, (context,), generator=torch.Generator().manual_seed(0)
    )
    prompt = Prompt(tokens, torch.full((context,), -1), {}, ask("made up"))
    cache, _ = target.prefill(prompt, Want())
    parents = (torch.arange(rows) - 1).div(2, rounding_mode="floor")
    parents[0] = -1
    tree = DraftTree(tokens[:rows], parents)

    def step() -> None:
        target.forward([tree], [cache], Want(final=True))
        cache.keep([], rows)

    return step


# -- how -------------------------------------------------------------------------------------


def in_turns(
    variants: Mapping[str, Callable[[], object]], turns: int, clock: Clock
) -> dict[str, list[float]]:
    """Milliseconds of each variant in each turn, after one unmeasured turn."""
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(turns + 1):
        for name, step in variants.items():
            begin = clock()
            step()
            if turn:
                taken[name].append(1e3 * (clock() - begin))
    return taken


def summed_up(
    table: str, taken: Mapping[str, Sequence[float]], baseline: Mapping[str, str]
) -> list[Timing]:
    """Medians and quartiles; ratios are taken turn by turn."""
    timings = []
    for name, times in taken.items():
        ratios = [a / b for a, b in zip(times, taken[baseline[name]], strict=True)]
        timings.append(
            Timing(table, name, median(times), quartiles(times), median(ratios), quartiles(ratios))
        )
    return timings


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """A quarter of the values is below the first, a quarter above the second."""
    low, _, high = quantiles(values, n=4)
    return low, high


def show(timings: Sequence[Timing]) -> None:
    """One table after the other."""
    by_title: dict[str, list[Timing]] = {}
    for timing in timings:
        by_title.setdefault(timing.table, []).append(timing)
    for title, rows in by_title.items():
        table = Table("variant", "ms", "quartiles", "ratio", "quartiles", title=title)
        for t in rows:
            table.add_row(t.variant, *cells(t))
        Console(width=100).print(table)


def cells(t: Timing) -> tuple[Any, ...]:
    """The numbers of a row, as they are printed."""
    ms, ratio = t.quartiles_ms, t.ratio_quartiles
    return (
        f"{t.median_ms:.2f}",
        f"{ms[0]:.2f} to {ms[1]:.2f}",
        f"{t.ratio:.2f}",
        f"{ratio[0]:.2f} to {ratio[1]:.2f}",
    )


if __name__ == "__main__":
    main()
