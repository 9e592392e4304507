"""Measure gates and samplers against full decoding: answers, forwards and seconds."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Literal

from varifocal.diffusion import samplers, tasks
from varifocal.diffusion.evaluation.cells import Cells
from varifocal.diffusion.evaluation.contest import Contest, hold, num_pieces
from varifocal.diffusion.evaluation.figures import DEFINITIONS, Row, rows_of
from varifocal.diffusion.evaluation.frozen import frozen
from varifocal.diffusion.evaluation.items import draw
from varifocal.diffusion.evaluation.measure import Setup
from varifocal.diffusion.evaluation.methods import DEFAULT, Method, parse_methods
from varifocal.diffusion.evaluation.summary import Summary, summaries_of
from varifocal.diffusion.masked import MaskedDenoiser
from varifocal.diffusion.row import Clock
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.schedule import Caching, Plan
from varifocal.diffusion.tasks import Split
from varifocal.errors import BadOption
from varifocal.evaluation.machine import git_commit, machine_info, threads

OWN = "own"  # as a sampler's name: the one that the model was published with
Progress = Callable[[int, int, str], None]  # pieces done, pieces in all, what was done last


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured, and on how much."""

    tasks: tuple[str, ...] = ()  # none: all of them
    gates: str = DEFAULT  # see `parse_methods`
    samplers: str = "own,threshold"  # separated by commas; the first makes the baseline
    canvases: tuple[int, ...] = ()  # none: what each task is meant for
    blocks: tuple[int, ...] = (8,)
    caching: Caching = "none"
    limit: int = 20  # questions a task
    skip: int = 0  # questions before the first of them
    rivals: int | None = None  # of these for methods that are no main ones, as `Method` has it; all
    timed: int = 5  # of these, questions that are timed
    batch: int = 16
    split: Split = "test"
    clock: Literal["cpu", "wall"] = "cpu"
    threads: int = 1
    seed: int = 0  # of the intervals
    draws: int = 2000

    def __post_init__(self) -> None:
        least = {"limit": 1, "skip": 0, "timed": 0, "batch": 1, "threads": 1, "draws": 1}
        for name, count in least.items():
            if getattr(self, name) < count:
                raise BadOption(f"{name} must be at least {count}, got {getattr(self, name)}")
        for name in ("canvases", "blocks"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise BadOption(f"{name} has a number twice: {getattr(self, name)}")
        if not self.blocks:
            raise BadOption("no length of the blocks was given")
        if self.rivals is not None and self.rivals < 1:
            raise BadOption(f"rivals must be at least 1, got {self.rivals}")
        if self.timed > self.limit:
            raise BadOption(
                f"of {self.limit} questions {self.timed} cannot be timed; give a smaller "
                "timed_items, or a larger limit"
            )
        if self.clock not in ("cpu", "wall"):
            raise BadOption(f'the clock is "cpu" or "wall", got {self.clock!r}')
        if self.clock == "cpu" and self.threads > 1:
            raise BadOption(
                f"CPU time adds up the work of {self.threads} threads; take threads=1, or the "
                "clock wall"
            )


@dataclass(frozen=True, kw_only=True)
class BenchResult:
    """All rows, with where and how they were measured."""

    machine: dict[str, Any]
    commit: str
    seed: int
    clock: str
    models: list[dict[str, Any]]  # name, number type, baseline's sampler
    config: dict[str, Any]
    frozen: str  # which settings were chosen, and on what
    rows: tuple[Row, ...]
    summaries: tuple[Summary, ...]
    skipped: list[dict[str, str]]  # what could not run with what, and why
    definitions: dict[str, str] = field(default_factory=lambda: dict(DEFINITIONS))

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `varifocal diffusion bench --json`."""
        return asdict(self)

    @property
    def is_good(self) -> bool:
        """Whether every row is whole, and runs alone were what replay and batches had said.

        The latter of models whose batches are exact.
        """
        exact = {model["name"] for model in self.models if model["exact_rows"]}
        return not any(
            r.broken_rows or (r.model in exact and r.rechecked_equal < r.rechecked)
            for r in self.rows
        )


def run_bench(
    config: BenchConfig,
    denoisers: Sequence[MaskedDenoiser],
    *,
    cells: Cells | None = None,
    progress: Progress = lambda done, total, label: None,
    clock: Clock | None = None,
) -> BenchResult:
    """Every method and sampler on every task, canvas and model.

    What `cells` hold is not measured again. `clock` takes the place of the one that the settings
    name, for tests. Raises BadOption for names that are unknown and canvases that do not fit.
    """
    methods = parse_methods(config.gates)
    contests = list(_contests(config, denoisers, methods))
    total, finished = sum(map(num_pieces, contests)), 0
    kept = cells or Cells()
    ticking = clock or (time.process_time if config.clock == "cpu" else time.perf_counter)
    rows: list[Row] = []
    skipped: list[dict[str, str]] = []

    def done(label: str) -> None:
        nonlocal finished
        finished += 1
        progress(finished, total, label)

    with threads(config.threads):
        for contest in contests:
            found = hold(contest, kept, ticking, config.clock, done)
            rows += rows_of(contest, found, config.seed, config.draws)
            skipped += [
                {
                    "model": contest.denoiser.name,
                    "task": contest.drawn.task.name,
                    "sampler": sampler,
                    "gate": label,
                    "reason": reason,
                }
                for (sampler, label), reason in found.skipped.items()
            ]
        machine = machine_info(denoisers[0].device)
    return BenchResult(
        machine=machine,
        commit=git_commit(),
        seed=config.seed,
        clock=config.clock,
        models=[_about(denoiser, config) for denoiser in denoisers],
        config=asdict(config),
        frozen=frozen().told(),
        rows=tuple(rows),
        summaries=tuple(summaries_of(rows)),
        skipped=skipped,
    )


def find_samplers(text: str, denoiser: MaskedDenoiser) -> tuple[Sampler[Any], ...]:
    """Samplers separated by commas; "own" is the published order of the model's family."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise BadOption("no sampler was named; own is the one that a model was published with")
    if with_options := [name for name in names if name.startswith(f"{OWN}:")]:
        raise BadOption(
            f"{with_options[0]}: own takes no options; name the sampler itself, here "
            f"{own_sampler(denoiser)}:option=value"
        )
    found = [samplers.find(own_sampler(denoiser) if name == OWN else name) for name in names]
    texts = [sampler.text for sampler in found]
    if twice := sorted({one for one in texts if texts.count(one) > 1}):
        raise BadOption(f"the sampler {twice[0]} is given twice; give it once")
    return tuple(found)


def find_sampler(text: str, denoiser: MaskedDenoiser) -> Sampler[Any]:
    """One sampler, as `find_samplers` reads it."""
    found = find_samplers(text, denoiser)
    if len(found) > 1:
        raise BadOption(
            f"wanted one sampler, got {len(found)}: {text}; only bench and tune take several"
        )
    return found[0]


def own_sampler(denoiser: MaskedDenoiser) -> str:
    """LLaDA's order, or Dream's where logits are shifted as in Dream."""
    return "entropy" if denoiser.model.config.shift else "low_confidence"


def _about(denoiser: MaskedDenoiser, config: BenchConfig) -> dict[str, Any]:
    return {
        "name": denoiser.name,
        "dtype": str(denoiser.dtype).removeprefix("torch."),
        "exact_rows": denoiser.exact_rows,
        "baseline_sampler": find_samplers(config.samplers, denoiser)[0].text,
    }


def _contests(
    config: BenchConfig, denoisers: Sequence[MaskedDenoiser], methods: tuple[Method, ...]
) -> Iterator[Contest]:
    """All of them, before the first begins: what is mistyped or does not fit is found at once."""
    if not denoisers:
        raise BadOption("there is no model to measure")
    for denoiser in denoisers:
        if config.clock == "cpu" and denoiser.device.type != "cpu":
            raise BadOption(
                f"CPU time does not see the work of {denoiser.device}; take the clock wall"
            )
        own = find_samplers(config.samplers, denoiser)
        for name in config.tasks or tasks.names():
            task = tasks.find(name)
            for canvas, block in product(config.canvases or (task.canvas,), config.blocks):
                plan = Plan(canvas=canvas, block=block, caching=config.caching)
                drawn = draw(
                    denoiser.tokenizer, name, config.limit, canvas, config.split, skip=config.skip
                )
                setup = Setup(denoiser=denoiser, task=task, plan=plan, batch=config.batch)
                setup.decoding(drawn.items, own[0], setup.full)  # refuses what does not fit
                yield Contest(
                    denoiser=denoiser,
                    drawn=drawn,
                    setup=setup,
                    samplers=own,
                    methods=methods,
                    num_rivals=config.rivals or config.limit,
                    num_timed=config.timed,
                )
