"""Measure entries against plain decoding on the same requests, in turn, and compare their texts."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Literal

import torch

from varifocal.decode import Clock, synchronised
from varifocal.drafters import load_drafter
from varifocal.engine import Engine, measure
from varifocal.errors import BadOption
from varifocal.evaluation.compare import judge
from varifocal.evaluation.entries import Entry, parse_drafters
from varifocal.evaluation.figures import (
    VERDICTS,
    BenchResult,
    Mean,
    Pair,
    Row,
    Timed,
    Verdict,
    mean_of,
    row_of,
    speedup_draws,
)
from varifocal.evaluation.machine import git_commit, machine_info
from varifocal.evaluation.ngram import Walk, demo_answers, ngram_walks
from varifocal.evaluation.peers import Peer
from varifocal.evaluation.suites import Case
from varifocal.fast import fast_drafter, fast_target, is_packed
from varifocal.request import Request
from varifocal.sampling import Sampling
from varifocal.targets._hf import HFTarget

Progress = Callable[[int, int], None]  # requests done, requests in all


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What to measure, and how often."""

    drafters: str = "plain,lookup"  # entries, see `parse_drafters`
    suite: str = "demo"  # where the cases come from; the n-gram table learns accordingly
    repeats: int = 3  # runs of each request; the median counts
    warm_up: int = 1  # requests that every entry decodes before
    clock: Literal["cpu", "wall"] = "cpu"  # CPU time of this process, or elapsed time
    threads: int = 1  # of torch
    sampling: Sampling = Sampling()
    seed: int = 0  # of the sampled texts and of the bootstrap
    max_new_tokens: int = 0  # 0: what each case says
    draws: int = 2000  # of the bootstrap
    assistant: str = ""  # checkpoint for hf-assistant

    def __post_init__(self) -> None:
        for name, least in (("repeats", 1), ("warm_up", 0), ("threads", 1), ("draws", 1)):
            if getattr(self, name) < least:
                raise BadOption(f"{name} must be at least {least}, got {getattr(self, name)}")
        if self.max_new_tokens < 0:
            raise BadOption(f"max_new_tokens must be positive, got {self.max_new_tokens}")
        if self.clock not in ("cpu", "wall"):
            raise BadOption(f'the clock is "cpu" or "wall", got {self.clock!r}')
        if self.clock == "cpu" and self.threads > 1:
            raise BadOption(
                f"CPU time adds up the work of {self.threads} threads and shows no speed-up from "
                "them; take --threads 1, or --clock wall"
            )


def run_bench(
    config: BenchConfig,
    cases: Sequence[Case],
    target: HFTarget,
    *,
    clock: Clock | None = None,
    progress: Progress = lambda done, total: None,
) -> BenchResult:
    """Decode every case with every entry, `repeats` times, in rotating order.

    `clock` takes the place of the one that the settings name, for tests.
    """
    if not cases:
        raise BadOption("the suite has no requests")
    if config.clock == "cpu" and target.device.type != "cpu":
        raise BadOption(f"CPU time does not see the work of {target.device}; take --clock wall")
    entries = parse_drafters(config.drafters)
    requests = [_request(case, config) for case in cases]
    with _threads(config.threads):
        machine = machine_info(target.device)
        contestants = _contestants(config, entries, target, clock or config_clock(config))
        runs = _race(config, contestants, requests, progress)
    rows, means, ngram_tau = _figures(config, cases, requests, contestants, runs)
    return BenchResult(
        machine=machine,
        commit=git_commit(),
        seed=config.seed,
        clock=config.clock,
        dtype=str(target.dtype).removeprefix("torch."),
        target=target.name,
        suite=config.suite,
        sampling=asdict(requests[0].sampling),
        repeats=config.repeats,
        rows=tuple(rows),
        means=means,
        ngram_tau=ngram_tau,
    )


def config_clock(config: BenchConfig) -> Clock:
    """CPU time of the process, or elapsed time."""
    return time.process_time if config.clock == "cpu" else time.perf_counter


@dataclass(frozen=True)
class _Contestant:
    """An entry, loaded."""

    entry: Entry
    target: HFTarget
    runner: Engine | Peer
    clock: Clock
    memory_bytes: int

    def run(self, request: Request) -> Timed:
        """Decode a request, from its pictures to its last token."""
        now = synchronised(self.clock, self.target.device)
        begin = now()
        if isinstance(self.runner, Peer):
            result = self.runner.run(request, self.clock)
        else:
            generation = self.runner.stream(request, clock=self.clock)
            for _ in generation:
                pass
            result = generation.result()
        return Timed(result=result, total=now() - begin)


def _contestants(
    config: BenchConfig, entries: Sequence[Entry], target: HFTarget, clock: Clock
) -> list[_Contestant]:
    """Everything loaded and measured; the packed target is made once, if an entry asks for it."""
    packed = fast_target(target) if any(e.is_fast for e in entries) else target
    if any(e.is_fast for e in entries) and not is_packed(packed.model):
        raise BadOption(
            "fast=true has no effect: none of the target's layers can be packed here, or would "
            "gain from it (the log says why); leave it out"
        )
    made = []
    for entry in entries:
        model = packed if entry.is_fast else target
        runner: Engine | Peer
        if entry.is_outside:
            runner = Peer(model, entry.name, entry.options, config.assistant)
            memory = runner.memory_bytes
        else:
            drafter = load_drafter(entry.name, model, **entry.options)
            if entry.is_fast:
                fast_drafter(drafter)
            runner = Engine(model, drafter, measure(model, drafter))
            memory = drafter.memory_bytes
        made.append(_Contestant(entry, model, runner, clock, memory))
    return made


def _race(
    config: BenchConfig,
    contestants: Sequence[_Contestant],
    requests: Sequence[Request],
    progress: Progress,
) -> dict[tuple[str, int], list[Timed]]:
    """All runs by entry and request. Neighbours in time decode the same request."""
    for request in requests[: config.warm_up]:
        for contestant in contestants:
            contestant.run(request)
    runs: dict[tuple[str, int], list[Timed]] = {}
    for number, request in enumerate(requests):
        for repeat in range(config.repeats):
            first = (number + repeat) % len(contestants)
            for contestant in [*contestants[first:], *contestants[:first]]:
                key = (contestant.entry.text, number)
                runs.setdefault(key, []).append(contestant.run(request))
        progress(number + 1, len(requests))
    return runs


def _figures(
    config: BenchConfig,
    cases: Sequence[Case],
    requests: Sequence[Request],
    contestants: Sequence[_Contestant],
    runs: dict[tuple[str, int], list[Timed]],
) -> tuple[list[Row], dict[str, Mean], float]:
    """Rows by entry and family, means by entry, and the n-gram table's mean tau."""
    entries = [c.entry for c in contestants]
    families = list(dict.fromkeys(case.family for case in cases))
    stock = next(e.text for e in entries if e.is_baseline and not e.is_fast)
    answers = [runs[stock, n][0].result.token_ids for n in range(len(cases))]
    training = demo_answers() if config.suite == "demo" else ()
    walks = ngram_walks(contestants[0].target, cases, answers, training)
    members = {f: [n for n, c in enumerate(cases) if c.family == f] for f in families}
    ngram = {f: sum((walks[n] for n in members[f]), Walk(0, 0)).tau for f in families}
    rows: list[Row] = []
    means = {}
    for contestant in contestants:
        entry = contestant.entry
        baseline = entry.baseline_of(entries)
        own, draws = [], []
        for place, family in enumerate(families):
            pairs = [
                _pair(contestant, requests[n], runs[entry.text, n], runs[baseline.text, n])
                for n in members[family]
            ]
            draws.append(speedup_draws(pairs, config.seed + place, config.draws))
            own.append(
                row_of(
                    pairs,
                    drafter=entry.text,
                    family=family,
                    baseline=baseline.text,
                    ngram_tau=ngram[family],
                    memory_bytes=contestant.memory_bytes,
                    draws=draws[-1],
                )
            )
        rows += own
        means[entry.text] = mean_of(own, draws)
    return rows, means, sum(ngram.values()) / len(ngram)


def _pair(
    contestant: _Contestant, request: Request, runs: Sequence[Timed], plain: Sequence[Timed]
) -> Pair:
    """Runs of one request with the worst verdict of the repeats."""
    if contestant.entry.is_outside and request.sampling.temperature > 0:
        return Pair(runs=runs, plain=plain, verdict=None)
    verdicts = []
    for n, run in enumerate(runs):
        if all(run.result.token_ids != other.result.token_ids for other in runs[:n]):
            verdicts.append(_verdict(contestant.target, request, plain[0], run))
    worst = max(verdicts, key=VERDICTS.index)
    return Pair(runs=runs, plain=plain, verdict=worst)


def _verdict(target: HFTarget, request: Request, plain: Timed, run: Timed) -> Verdict:
    mismatch = judge(target, request, plain.result, run.result)
    if mismatch is None:
        return "identical"
    return "near_tie" if mismatch.near_tie else "different"


def _request(case: Case, config: BenchConfig) -> Request:
    """The case's request with the benchmark's sampling and length."""
    return replace(
        case.request,
        sampling=replace(config.sampling, seed=config.seed),
        max_new_tokens=config.max_new_tokens or case.request.max_new_tokens,
        id=case.id,
    )


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
