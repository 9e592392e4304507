"""One comparison: all methods and samplers on the same questions of a task, on one canvas."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from varifocal.diffusion.evaluation.cells import Cells, Facts
from varifocal.diffusion.evaluation.items import Drawn
from varifocal.diffusion.evaluation.measure import Setup, Timed, live, replayed, timed
from varifocal.diffusion.evaluation.methods import (
    LATCH,
    REDUCED,
    Method,
    how_to_run,
    reduced_to,
    why_not,
)
from varifocal.diffusion.evaluation.outcome import Outcome
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.masked import MaskedDenoiser
from varifocal.diffusion.row import Clock
from varifocal.diffusion.sampler import Sampler
from varifocal.evaluation.identity import weights_digest
from varifocal.evaluation.machine import machine_info

CHUNK, TIMED_CHUNK = 50, 5  # questions of a piece
_PASSING = ("load",)  # facts of a machine that change from minute to minute
Named = tuple[str, str]  # sampler and method, as typed
Done = Callable[[str], None]  # a piece is finished: of what


@dataclass(frozen=True, kw_only=True)
class Contest:
    """Who takes part, on which questions."""

    denoiser: MaskedDenoiser
    drawn: Drawn
    setup: Setup
    samplers: tuple[Sampler[Any], ...]  # the first with `full` is the baseline
    methods: tuple[Method, ...]
    num_rivals: int  # questions for methods that are no main ones
    num_timed: int

    @property
    def items(self) -> int:
        """Questions."""
        return len(self.drawn.items)


@dataclass(kw_only=True)
class Found:
    """What a contest brought."""

    gates: dict[Named, Gate[Any]] = field(default_factory=dict)  # as they ran
    outcomes: dict[Named, list[Outcome]] = field(default_factory=dict)
    times: dict[Named, list[Timed]] = field(default_factory=dict)
    skipped: dict[Named, str] = field(default_factory=dict)  # and why
    replayed: set[Named] = field(default_factory=set)


def hold(contest: Contest, cells: Cells, clock: Clock, clock_name: str, done: Done) -> Found:
    """Run it, or take from the cells what is there."""
    found = Found()
    for sampler in contest.samplers:
        _compare(contest, sampler, cells, done, found)
    _time(contest, cells, clock, clock_name, done, found)
    return found


def num_pieces(contest: Contest) -> int:
    """How often `hold` says that it is done with something."""
    count = 0
    for sampler in contest.samplers:
        together = False
        for method in contest.methods:
            if why_not(method, sampler, contest.setup.plan, contest.denoiser.tokenizer):
                continue
            if _is_replayed(contest, method):
                together = True
            else:
                count += len(_chunks(_num_items(contest, method), CHUNK))
        count += len(_panels(contest, {})) if together else 0
    return count + len(_chunks(contest.num_timed, TIMED_CHUNK))


# -- what becomes of the answers ---------------------------------------------------------------


def _compare(
    contest: Contest, sampler: Sampler[Any], cells: Cells, done: Done, found: Found
) -> None:
    tokenizer, plan = contest.denoiser.tokenizer, contest.setup.plan
    able = []
    for method in contest.methods:
        name = (sampler.text, method.label)
        if reason := why_not(method, sampler, plan, tokenizer):
            found.skipped[name] = reason
        else:
            able.append(method)
    together = {m.label: m.gate for m in able if m.gate is not None and _is_replayed(contest, m)}
    for label, outcomes in _replay(contest, sampler, together, cells, done).items():
        name = (sampler.text, label)
        found.gates[name], found.outcomes[name] = together[label], outcomes
        found.replayed.add(name)
    for method in sorted(able, key=lambda m: m.gate is None):  # reduced steps come after latch
        name = (sampler.text, method.label)
        if method.label in together:
            continue
        if method.gate is None:
            found.gates[name], found.outcomes[name] = _equal(contest, sampler, cells, done, found)
        else:
            found.gates[name] = method.gate
            found.outcomes[name] = _live(contest, sampler, method, method.gate, cells, done)


def _replay(
    contest: Contest,
    sampler: Sampler[Any],
    gates: dict[str, Gate[Any]],
    cells: Cells,
    done: Done,
) -> dict[str, list[Outcome]]:
    """All that can be replayed on one recording."""
    made: dict[str, list[Outcome]] = {label: [] for label in gates}
    for chunk, present in _panels(contest, gates):
        texts = {label: gate.text for label, gate in present.items()}
        key = _key(contest, "replayed", chunk) | {"sampler": sampler.text, "gates": texts}
        content = cells.find(key)
        if content is None:
            some = replayed(contest.setup, contest.drawn.items[chunk], sampler, present)
            content = {label: [o.packed() for o in outcomes] for label, outcomes in some.items()}
            cells.keep(key, content)
        for label, rows in content.items():
            made[label] += map(Outcome.unpacked, rows)
        done(f"{_title(contest)}: {sampler.text}, full and what is replayed on it")
    return made


def _panels(
    contest: Contest, gates: dict[str, Gate[Any]]
) -> list[tuple[slice, dict[str, Gate[Any]]]]:
    """Pieces of the questions, and who is replayed on each: rivals on the first ones only."""
    main = {method.label for method in contest.methods if method.is_main}
    few = {label: gate for label, gate in gates.items() if label in main}
    first = min(contest.num_rivals, contest.items)
    rest = _chunks(contest.items - first, CHUNK)
    return [
        *((chunk, gates) for chunk in _chunks(first, CHUNK)),
        *((slice(chunk.start + first, chunk.stop + first), few) for chunk in rest),
    ]


def _live(
    contest: Contest,
    sampler: Sampler[Any],
    method: Method,
    gate: Gate[Any],
    cells: Cells,
    done: Done,
) -> list[Outcome]:
    made: list[Outcome] = []
    for chunk in _chunks(_num_items(contest, method), CHUNK):
        key = _key(contest, "live", chunk) | {"sampler": sampler.text, "gate": gate.text}
        content = cells.find(key)
        if content is None:
            some = live(contest.setup, contest.drawn.items[chunk], sampler, gate)
            content = [outcome.packed() for outcome in some]
            cells.keep(key, content)
        made += map(Outcome.unpacked, content)
        done(f"{_title(contest)}: {sampler.text}, {method.label}")
    return made


def _equal(
    contest: Contest, sampler: Sampler[Any], cells: Cells, done: Done, found: Found
) -> tuple[Gate[Any], list[Outcome]]:
    """Reduced steps at no fewer forwards than latch has on average: never to its disadvantage."""
    latch = found.outcomes[sampler.text, LATCH]
    wanted = sum(outcome.nfe for outcome in latch) / len(latch)
    steps = math.ceil(wanted)
    while True:
        gate = reduced_to(steps, contest.setup.plan)
        method = Method(label=REDUCED, gate=gate)
        outcomes = _live(contest, sampler, method, gate, cells, done)
        mean = sum(outcome.nfe for outcome in outcomes) / len(outcomes)
        if mean >= wanted or steps >= contest.setup.plan.total:
            return gate, outcomes
        steps, done = steps + 1, _silent  # a schedule may end a step before it was planned to


def _silent(label: str) -> None:
    """A piece beyond those that were announced."""


def _is_replayed(contest: Contest, method: Method) -> bool:
    if method.gate is None:
        return False
    return how_to_run(method.gate, contest.setup.plan, contest.denoiser.tokenizer) == "replayed"


def _num_items(contest: Contest, method: Method) -> int:
    return contest.items if method.is_main else min(contest.num_rivals, contest.items)


# -- how long they take ------------------------------------------------------------------------


def _time(
    contest: Contest, cells: Cells, clock: Clock, clock_name: str, done: Done, found: Found
) -> None:
    """Every method on the same questions, one by one, in turn: neighbours in time are compared."""
    samplers = {sampler.text: sampler for sampler in contest.samplers}
    racing = [name for name, gate in found.gates.items() if not gate.needs_future]
    machine = machine_info(contest.denoiser.device)
    facts = {
        "clock": clock_name,
        "machine": {name: value for name, value in machine.items() if name not in _PASSING},
        "racing": [[*name, found.gates[name].text] for name in racing],
    }
    is_warm = False
    for chunk in _chunks(contest.num_timed, TIMED_CHUNK):
        key = _key(contest, "timed", chunk) | facts
        content = cells.find(key)
        if content is None:
            content = []
            for number in range(chunk.start, chunk.stop):
                item = contest.drawn.items[number]
                first = number % len(racing)
                turns = [*racing[first:], *racing[:first]]
                for name in turns if is_warm else [racing[0], *turns]:
                    run = timed(contest.setup, item, samplers[name[0]], found.gates[name], clock)
                    if is_warm:
                        content.append([number, *name, run.packed()])
                    is_warm = True
            cells.keep(key, content)
        for _, sampler, label, row in content:
            found.times.setdefault((sampler, label), []).append(Timed.unpacked(row))
        done(f"{_title(contest)}: seconds")


# -- pieces ------------------------------------------------------------------------------------


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(first, min(first + size, count)) for first in range(0, count, size)]


def _title(contest: Contest) -> str:
    return f"{contest.denoiser.name}, {contest.drawn.task.name}, {contest.drawn.canvas}"


def _key(contest: Contest, what: str, chunk: slice) -> Facts:
    """What a piece depends on; another code, model or plan makes other pieces."""
    denoiser, drawn = contest.denoiser, contest.drawn
    return {
        "what": what,
        "model": denoiser.name,
        "weights": weights_of(denoiser),
        "dtype": str(denoiser.dtype),
        "device": denoiser.device.type,
        "batch": None if denoiser.exact_rows else contest.setup.batch,
        "code": code_digest(),
        "task": drawn.task.name,
        "split": drawn.split,
        "items": [drawn.skipped + chunk.start, drawn.skipped + chunk.stop],
        "plan": asdict(contest.setup.plan),
    }


@cache
def weights_of(denoiser: MaskedDenoiser) -> str:
    """What tells a model from another of the same name."""
    return weights_digest(denoiser.model)


@cache
def code_digest() -> str:
    """Of everything that decides what a gate does: this package but for how it is evaluated."""
    top = Path(__file__).resolve().parent.parent
    digest = sha256()
    for path in _sources(top):
        digest.update(f"{path.relative_to(top)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


def _sources(top: Path) -> Iterator[Path]:
    for path in sorted(top.rglob("*.py")):
        if "evaluation" not in path.relative_to(top).parts[:1]:
            yield path
