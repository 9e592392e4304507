"""Measure entries against plain decoding on the same requests, in turn, and compare their texts."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from varifocal.decode import Clock
from varifocal.errors import BadOption
from varifocal.evaluation.compare import judge
from varifocal.evaluation.contestants import Contestant, load_contestants
from varifocal.evaluation.entries import parse_drafters
from varifocal.evaluation.figures import (
    VERDICTS,
    BenchResult,
    Pair,
    Row,
    Timed,
    Verdict,
    mean_of,
    row_of,
    speedup_draws,
)
from varifocal.evaluation.identity import Facts, cases_of, code_digest
from varifocal.evaluation.journal import Journal, Record, Sitting, open_journal
from varifocal.evaluation.kinds import Labels, Source, break_down, labels_of, pooled
from varifocal.evaluation.lead import find_lead
from varifocal.evaluation.machine import git_commit, machine_info, threads
from varifocal.evaluation.ngram import Walk, demo_answers, ngram_walks
from varifocal.evaluation.suites import Case
from varifocal.evaluation.turns import answered
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
    warm_up: int = 1  # requests that every entry decodes before, in each sitting
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
    journal: Path | None = None,
    is_fresh: bool = False,
) -> BenchResult:
    """Decode every case with every entry, `repeats` times, in rotating order.

    What the target answers before a later turn of a conversation is decoded first, untimed.
    With a `journal` the runs are kept in that file request by request, and those that it has are
    not made again; `is_fresh` forgets them. Raises BadOption if it holds another benchmark.
    `clock` takes the place of the one that the settings name, for tests.
    """
    if not cases:
        raise BadOption("the suite has no requests")
    if config.clock == "cpu" and target.device.type != "cpu":
        raise BadOption(f"CPU time does not see the work of {target.device}; take --clock wall")
    entries = parse_drafters(config.drafters)
    with threads(config.threads):
        cases = answered(cases, target, config.max_new_tokens)
        requests = [_request(case, config) for case in cases]
        contestants = load_contestants(
            entries, target, clock or config_clock(config), config.assistant
        )
        facts = _facts(config, cases, requests, contestants)
        with open_journal(journal, facts, is_fresh=is_fresh) as kept:
            _race(config, contestants, requests, kept, progress)
    return _result(config, cases, requests, contestants, kept)


def config_clock(config: BenchConfig) -> Clock:
    """CPU time of the process, or elapsed time."""
    return time.process_time if config.clock == "cpu" else time.perf_counter


def _facts(
    config: BenchConfig,
    cases: Sequence[Case],
    requests: Sequence[Request],
    contestants: Sequence[Contestant],
) -> Facts:
    """What the runs depend on: who differs in any of it makes other runs."""
    target = contestants[0].target
    machine = machine_info(target.device)
    return {
        "target": target.name,
        "fingerprint": target.fingerprint,
        "dtype": str(target.dtype),
        "exact_rows": target.exact_rows,
        "suite": config.suite,
        "repeats": config.repeats,
        "warm_up": config.warm_up,
        "clock": config.clock,
        "threads": config.threads,
        "seed": config.seed,
        "sampling": asdict(requests[0].sampling),
        "commit": git_commit(),
        "code": code_digest(),
        **{name: machine[name] for name in ("varifocal", "torch", "transformers")},
        "entries": [contestant.facts() for contestant in contestants],
        "cases": cases_of(cases, requests),
    }


def _race(
    config: BenchConfig,
    contestants: Sequence[Contestant],
    requests: Sequence[Request],
    journal: Journal,
    progress: Progress,
) -> None:
    """All runs that the journal does not have. Neighbours in time decode the same request."""
    missing = [number for number in range(len(requests)) if number not in journal.records]
    progress(len(journal.records), len(requests))
    if not missing:
        return
    costs = journal.sittings[0].costs if journal.sittings else None
    ready = [contestant.measured(costs) for contestant in contestants]
    machine = machine_info(contestants[0].target.device)
    journal.begin(Sitting(machine, {c.entry.text: c.cost for c in ready}))
    for request in requests[: config.warm_up]:
        for contestant in ready:
            contestant.run(request)
    for number in missing:
        runs = []
        for repeat in range(config.repeats):
            first = (number + repeat) % len(ready)
            for contestant in [*ready[first:], *ready[:first]]:
                runs.append((contestant.entry.text, repeat, contestant.run(requests[number])))
        sitting = len(journal.sittings) - 1
        record = Record(number=number, sitting=sitting, runs=tuple(runs), verdicts={})
        journal.add(replace(record, verdicts=_verdicts(ready, requests[number], record)))
        progress(len(journal.records), len(requests))


def _verdicts(
    contestants: Sequence[Contestant], request: Request, record: Record
) -> dict[str, Verdict | None]:
    """Of each entry the worst verdict of its repeats against the plain loop with its weights."""
    entries = [contestant.entry for contestant in contestants]
    made: dict[str, Verdict | None] = {}
    for contestant in contestants:
        entry = contestant.entry
        if entry.is_outside and request.sampling.temperature > 0:
            made[entry.text] = None  # other random numbers
            continue
        plain = record.of(entry.baseline_of(entries).text)[0]
        runs = record.of(entry.text)
        texts = {tuple(run.result.token_ids): run for run in reversed(runs)}
        verdicts = [_verdict(contestant.target, request, plain, run) for run in texts.values()]
        made[entry.text] = max(verdicts, key=VERDICTS.index)
    return made


def _verdict(target: HFTarget, request: Request, plain: Timed, run: Timed) -> Verdict:
    mismatch = judge(target, request, plain.result, run.result)
    if mismatch is None:
        return "identical"
    return "near_tie" if mismatch.near_tie else "different"


def _result(
    config: BenchConfig,
    cases: Sequence[Case],
    requests: Sequence[Request],
    contestants: Sequence[Contestant],
    journal: Journal,
) -> BenchResult:
    """Rows by entry and family, and means by entry, from the journal's runs alone."""
    target = contestants[0].target
    entries = [c.entry for c in contestants]
    families = list(dict.fromkeys(case.family for case in cases))
    members = {f: [n for n, c in enumerate(cases) if c.family == f] for f in families}
    labels = _Labelled(target, cases, requests)
    ngram = _ngram(config, cases, contestants, journal, members)
    rows: list[Row] = []
    means, mean_draws = {}, {}
    for contestant in contestants:
        entry, baseline = contestant.entry, contestant.entry.baseline_of(entries)
        own, draws = [], []
        for place, family in enumerate(families):
            records = [journal.records[n] for n in members[family]]
            pairs = [_pair(record, entry.text, baseline.text) for record in records]
            draws.append(speedup_draws(pairs, config.seed + place, config.draws))
            tokens = [
                break_down(pair.run.result, labels.of(record.number, pair.run.result.token_ids))
                for record, pair in zip(records, pairs, strict=True)
            ]
            own.append(
                row_of(
                    pairs,
                    drafter=entry.text,
                    family=family,
                    baseline=baseline.text,
                    ngram_tau=ngram[family],
                    weights_bytes=contestant.weights_bytes,
                    breakdown=pooled(tokens),
                    draws=draws[-1],
                )
            )
        rows += own
        means[entry.text] = mean_of(own, draws)
        mean_draws[entry.text] = np.mean(draws, axis=0)
    return BenchResult(
        machine=journal.sittings[0].machine,
        commit=journal.bench["commit"],
        seed=config.seed,
        clock=config.clock,
        dtype=str(target.dtype).removeprefix("torch."),
        target=target.name,
        suite=config.suite,
        sampling=asdict(requests[0].sampling),
        repeats=config.repeats,
        rows=tuple(rows),
        means=means,
        ngram_tau=sum(ngram.values()) / len(ngram),
        lead=find_lead(
            means,
            mean_draws,
            {row.drafter: row.baseline for row in rows},
            min(len(own) for own in members.values()),
        ),
        sittings=len(journal.sittings),
        entries={entry.text: entry.given for entry in entries if entry.given},
    )


def _pair(record: Record, entry: str, baseline: str) -> Pair:
    return Pair(runs=record.of(entry), plain=record.of(baseline), verdict=record.verdicts[entry])


def _ngram(
    config: BenchConfig,
    cases: Sequence[Case],
    contestants: Sequence[Contestant],
    journal: Journal,
    members: dict[str, list[int]],
) -> dict[str, float]:
    """By family, what a table of word pieces reaches on the plain texts."""
    stock = next(c.entry.text for c in contestants if c.entry.is_baseline and not c.entry.is_fast)
    plain = [journal.records[n].of(stock)[0] for n in range(len(cases))]
    training = demo_answers() if config.suite == "demo" else ()
    answers = [run.result.token_ids for run in plain]
    walks = ngram_walks(contestants[0].target, cases, answers, training)
    return {f: sum((walks[n] for n in own), Walk(0, 0)).tau for f, own in members.items()}


class _Labelled:
    """What the tokens of answers are; most entries give the same ones."""

    def __init__(
        self, target: HFTarget, cases: Sequence[Case], requests: Sequence[Request]
    ) -> None:
        self._target, self._requests = target, requests
        self._known: dict[tuple[int, tuple[int, ...]], Labels] = {}
        self._sources = [
            Source.known(case, [other for other in cases if other.family == case.family])
            for case in cases
        ]

    def of(self, number: int, tokens: Sequence[int]) -> Labels:
        """Of an answer to a request."""
        key = (number, tuple(tokens))
        if key not in self._known:
            self._known[key] = labels_of(
                self._requests[number],
                tokens,
                self._target.decode,
                self._target.eos_ids,
                self._sources[number],
            )
        return self._known[key]


def _request(case: Case, config: BenchConfig) -> Request:
    """The case's request with the benchmark's sampling and length."""
    return replace(
        case.request,
        sampling=replace(config.sampling, seed=config.seed),
        max_new_tokens=config.max_new_tokens or case.request.max_new_tokens,
        id=case.id,
    )
