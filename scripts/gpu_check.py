"""Check varifocal on a GPU: equal texts, memory, what the parts of a round cost, a graph baseline.

    python scripts/gpu_check.py                            # 7B shapes in bfloat16, some minutes
    python scripts/gpu_check.py --device cpu --size small  # all but the graph, in seconds

The model is a LLaVA-NeXT with random weights, made on the device: nothing is downloaded. So tokens
a round mean nothing here; that texts are equal, memory and milliseconds do. A part that fails is
named and the others still run. Exit code 1: texts differ, or a part broke off; 2: no such device.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from PIL import Image
from random_model import SIZES, Oracle, Size, build, bush, random_fovea, text_prompt
from rich.console import Console
from rich.table import Table
from static_decoding import StaticStep, captured

from varifocal.cache import KVCache
from varifocal.decode import generate
from varifocal.drafters import load_drafter
from varifocal.drafters.fovea import FoveaDrafter
from varifocal.drafters.lookup import LookupDrafter
from varifocal.engine import Engine
from varifocal.evaluation.compare import compare
from varifocal.plan import Budget
from varifocal.request import Request, ask
from varifocal.target import Prompt, Want
from varifocal.targets.llava_next import LlavaNextTarget
from varifocal.tree import DraftTree

TREES = (1, 8, 16, 40)  # nodes of a target forward, root included
LENGTHS = (300, 3000)  # tokens before it
PATH = (0, 3, 7, 12)  # nodes of a tree of 40 that are kept


# -- what is printed ---------------------------------------------------------------------------


@dataclass
class Report:
    """Rows of the table, and what failed."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, part: str, what: str, value: object, unit: str = "") -> None:
        """One measured thing."""
        self.rows.append({"part": part, "what": what, "value": value, "unit": unit})

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A part that may fail without the others."""
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            yield
        except Exception as error:  # whatever it is, the rest of the report is wanted
            reason = (str(error).strip() or "no message").split("\n")[0]
            self.failures.append(f"{name} broke off with {type(error).__name__}: {reason}")

    def show(self) -> None:
        """On standard output."""
        table = Table("part", "what", "value", "unit")
        for row in self.rows:
            value = row["value"]
            shown = f"{value:,.2f}" if isinstance(value, float) else str(value)
            table.add_row(row["part"], row["what"], shown, row["unit"])
        Console(width=None if sys.stdout.isatty() else 140).print(table)
        for failure in self.failures:
            print(f"FAILED: {failure}")
        print(f"{len(self.failures)} parts failed" if self.failures else "nothing failed")


# -- the parts ---------------------------------------------------------------------------------


def check_texts(report: Report, target: LlavaNextTarget, size: Size) -> None:
    """Plain and drafted texts on repetitive prompts, with and without a picture."""
    side = size.tower["image_size"]
    image = Image.effect_noise((2 * side, side), 90).convert("RGB")
    words = "a red circle and a blue square, " * 8
    requests = [
        ask(words + str(n), images, max_new_tokens=size.tokens, id=f"request {n}")
        for n, images in enumerate(([image], []))
    ]
    plain = load_drafter("plain", target)
    answers = [generate(target, plain, request).token_ids for request in requests]
    dtype = str(target.dtype).removeprefix("torch.")
    rows = ", exact rows" if target.exact_rows else ""
    for drafter in (
        LookupDrafter(target, LookupDrafter.Config(nodes=10)),
        random_fovea(target, size),
        Oracle(target, answers),
    ):
        what = f"{drafter.name} in {dtype}{rows}"
        with report.part(f"texts: {what}"):
            check_text(report, Engine(target, drafter), requests, what)


def check_text(report: Report, engine: Engine, requests: Sequence[Request], what: str) -> None:
    """Identical, or parted at a near-tie that is proven from the plain path's logits."""
    verdict = compare(engine, requests)
    said = f"{verdict.identical} identical, {verdict.near_tie} near-ties"
    report.add("texts", what, f"{said}, {verdict.different} different", f"of {len(requests)}")
    tau = engine.generate(requests[0]).mean_acceptance_length
    report.add("texts", f"{what}: tokens a round", tau)
    for mismatch in verdict.mismatches:
        if not mismatch.near_tie:
            report.failures.append(f"texts: {what}: {mismatch}")


def check_exact_rows(report: Report, target: LlavaNextTarget, size: Size) -> None:
    """The same with forwards that are to be bit-equal: how many near-ties are left."""
    exact = LlavaNextTarget(target.model, target.processor, target.name, exact_rows=True)
    try:
        check_texts(report, exact, size)
    finally:  # both are the same model
        target.model.config.get_text_config()._attn_implementation = exact.stock_attention


@torch.inference_mode()
def check_costs(report: Report, target: LlavaNextTarget, size: Size) -> None:
    """Milliseconds of each part of a round, and of the reading of a prompt."""
    drafter = random_fovea(target, size)
    side = size.tower["image_size"]
    prompt = target.encode(ask("what is it?", [Image.new("RGB", (2 * side, side), "grey")]))
    name = f"prefill of a picture and text ({len(prompt.tokens)} tokens)"
    spent = timed(lambda: target.prefill(prompt, drafter.want), target, size)
    report.add("cost", name, spent, "ms")
    for length in LENGTHS:
        with report.part(f"cost at {length} tokens"):
            _check_costs_at(report, target, drafter, size, length)


def _check_costs_at(
    report: Report, target: LlavaNextTarget, drafter: FoveaDrafter, size: Size, length: int
) -> None:
    prompt = text_prompt(target, length)

    def add(what: str, work: Callable[[], object]) -> float:
        spent = timed(work, target, size)
        report.add("cost", f"{what} at {length} tokens", spent, "ms")
        return spent

    add("prefill", lambda: target.prefill(prompt, drafter.want))
    cache, seen = target.prefill(prompt, drafter.want)
    report.add("memory", f"cache of {length} tokens", cache.num_bytes / 2**20, "MiB")

    def forward(tree: DraftTree) -> None:
        target.forward([replace(tree)], [cache], drafter.want)  # its mask is part of the cost
        cache.keep([], len(tree))

    for nodes in TREES:
        tree = bush(target, nodes)
        add("plain step" if nodes == 1 else f"tree of {nodes}", lambda tree=tree: forward(tree))
    add("append 40 rows and keep 4", cache_round(cache))
    state = drafter.start(prompt, seen, 10)
    first = add("draft of 1 level", lambda: drafter.propose(state, 10, Budget(depth=1, nodes=40)))
    all_ = add("draft of 6 levels", lambda: drafter.propose(state, 10, Budget(depth=6, nodes=40)))
    report.add("cost", f"draft step at {length} tokens", (all_ - first) / 5, "ms")


def check_memory(report: Report, target: LlavaNextTarget, size: Size) -> None:
    """What lies where, and the most that was ever held."""
    weights = sum(p.numel() * p.element_size() for p in target.model.parameters())
    report.add("memory", "weights of the target", weights / 2**20, "MiB")
    drafted = random_fovea(target, size).memory_bytes
    report.add("memory", "weights of the drafter", drafted / 2**20, "MiB")
    if target.device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(target.device) / 2**20
        report.add("memory", "peak on the device", peak, "MiB")
    else:
        held = psutil.Process().memory_info().rss / 2**20
        report.add("memory", "this process", held, "MiB")


@torch.inference_mode()
def check_graph(report: Report, target: LlavaNextTarget, size: Size) -> None:
    """Plain decoding with static tensors, and on CUDA as a graph: the baseline to beat."""
    if target.device.type != "cuda":
        report.add("graph", "CUDA graph", f"there is none on {target.device.type}")
    for length in LENGTHS:
        prompt = text_prompt(target, length)
        wanted = answer(target, prompt, size.tokens)
        step = StaticStep(target, prompt, room=128)
        kinds: list[tuple[str, Callable[[], None]]] = [("eager", step)]
        if target.device.type == "cuda":
            kinds.append(("CUDA graph", captured(step)))
        for kind, run in kinds:
            name = f"plain step with StaticCache at {length} tokens, {kind}"
            found = step.tokens(size.tokens, run)
            agreed = [a == b for a, b in zip(found, wanted, strict=True)]
            same = [*agreed, False].index(False)
            report.add("graph", f"{name}: equal tokens", same, f"of {size.tokens}")
            if target.dtype == torch.float32 and same < size.tokens:
                report.failures.append(f"graph: {name}: token {same} differs from the plain loop")
            step.rewind()
            report.add("graph", name, timed(run, target, size), "ms")


def answer(target: LlavaNextTarget, prompt: Prompt, count: int) -> list[int]:
    """The plain loop's greedy tokens after a bare prompt."""
    cache, seen = target.prefill(prompt, Want())
    found = [int(seen.logits.argmax())]
    while len(found) < count:
        root = DraftTree.chain(found[-1:], target.device)
        (seen,) = target.forward([root], [cache], Want())
        found.append(int(seen.logits.argmax()))
    return found


# -- joinery -----------------------------------------------------------------------------------


def timed(work: Callable[[], object], target: LlavaNextTarget, size: Size) -> float:
    """Median wall milliseconds, the device's queue included."""

    def synchronise() -> None:
        if target.device.type == "cuda":
            torch.cuda.synchronize(target.device)

    spent = []
    for turn in range(2 + size.repeats):
        synchronise()
        begin = time.perf_counter()
        work()
        synchronise()
        if turn >= 2:  # the first two warm up
            spent.append(time.perf_counter() - begin)
    return 1000 * statistics.median(spent)


def cache_round(cache: KVCache) -> Callable[[], None]:
    """Append 40 rows in every layer and keep four of them; the length stays what it was."""
    layer = cache.layers[0]
    rows = layer.keys[:, :, :1].expand(-1, -1, 40, -1).clone()

    def work() -> None:
        length = cache.length
        for one in cache.layers:
            one.update(rows, rows)
        cache.keep(PATH, 40)
        cache.keep([], cache.length - length)

    return work


def cache_milliseconds(
    *, layers: int = 32, heads: int = 8, width: int = 128, length: int = 3000, rounds: int = 30
) -> tuple[float, float]:
    """CPU milliseconds of `cache_round` on one thread in bfloat16: the fastest, and the median.

    A median above 2 on an idle machine is too slow. What else runs on it slows a round too.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        cache = KVCache(layers)
        filling = torch.zeros(1, heads, 1, width, dtype=torch.bfloat16).expand(-1, -1, length, -1)
        for layer in cache.layers:
            layer.update(filling, filling)
        work = cache_round(cache)
        spent = []
        for _ in range(rounds):
            begin = time.process_time()
            work()
            spent.append(time.process_time() - begin)
    finally:
        torch.set_num_threads(before)
    return 1000 * min(spent), 1000 * statistics.median(spent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--size", choices=SIZES, default="7b")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, cpu")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    given = parser.parse_args(arguments)
    if given.device.startswith("cuda") and not torch.cuda.is_available():
        print("there is no CUDA device that torch can use here; --device cpu --size small makes a "
              "dry run of everything but the graph", file=sys.stderr)  # fmt: skip
        return 2
    device, size = torch.device(given.device), SIZES[given.size]
    report = run(device, size)
    report.show()
    if given.json:
        found = {"machine": machine(device), "size": given.size, **asdict(report)}
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 1 if report.failures else 0


def run(device: torch.device, size: Size) -> Report:
    """All parts, the cheapest first."""
    report = Report()
    with report.part("cache on one CPU thread"):
        name = "append 40 rows and keep 4: 32 layers, 8 heads of 128, 3000 tokens, bfloat16"
        fastest, median = cache_milliseconds()
        report.add("cache", name, median, "CPU ms")
        report.add("cache", "the same, fastest round", fastest, "CPU ms")
    with report.part("texts in float32"):
        check_texts(report, build(SIZES["small"], torch.float32, device), SIZES["small"])
    with report.part("the model"):
        target = build(size, torch.bfloat16, device)
        for name, check in (
            ("texts", check_texts),
            ("texts with exact rows", check_exact_rows),
            ("costs", check_costs),
            ("graph", check_graph),
            ("memory", check_memory),  # last, for the peak
        ):
            with report.part(name):
                check(report, target, size)
    return report


def machine(device: torch.device) -> dict[str, str]:
    """What the numbers belong to."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "platform": platform.platform(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "varifocal": version("varifocal"),
    }


if __name__ == "__main__":
    sys.exit(main())
