"""Choose gates' thresholds: all settings of all gates on the same questions, by one rule.

Settings of gates that only stop watch recorded full runs. What bwec does changes the path: for the
best setting of cvc, those of bwec beside it run live, as latch.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, product
from typing import Any

from varifocal.diffusion import gates, samplers, tasks
from varifocal.diffusion.evaluation.cells import Cells, Facts
from varifocal.diffusion.evaluation.contest import CHUNK, code_digest, weights_of
from varifocal.diffusion.evaluation.items import Drawn, draw
from varifocal.diffusion.evaluation.measure import Setup, live, record
from varifocal.diffusion.evaluation.outcome import is_right
from varifocal.diffusion.evaluation.panel import Panel, Seat
from varifocal.diffusion.masked import MaskedDenoiser
from varifocal.diffusion.replay import replay
from varifocal.diffusion.request import text_decoder
from varifocal.diffusion.sampler import Sampler
from varifocal.diffusion.schedule import Plan
from varifocal.diffusion.tasks import Item, Split
from varifocal.errors import BadOption
from varifocal.evaluation.machine import git_commit

Done = Callable[[int, int], None]  # questions done, questions in all


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """On what settings are tried, and what they may cost."""

    tasks: tuple[str, ...]
    samplers: tuple[str, ...] = ("low_confidence",)
    split: Split = "valid"
    limit: int = 400  # questions of each task
    canvases: tuple[int, ...] = ()  # one for each task; none: what it is meant for
    block: int = 8
    batch: int = 16
    loss: float = 0.5  # points of answers that may be hurt, on each task with each sampler

    def __post_init__(self) -> None:
        if not self.tasks:
            raise BadOption("settings are chosen on tasks: name two")
        if self.canvases and len(self.canvases) != len(self.tasks):
            raise BadOption(
                f"give one canvas for each of {len(self.tasks)} tasks, got {len(self.canvases)}"
            )
        if not 0 <= self.loss <= 100:
            raise BadOption(f"loss is in points, from 0 to 100, got {self.loss:g}")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A setting: what it hurts and what it costs, by task."""

    gate: str  # which gate it is a setting of
    setting: str  # as typed
    # Of each task with each sampler: share of the questions that full decoding answers and it does
    # not, and mean NFE / that of full decoding. A live one that hurts too much goes no further.
    hurt: tuple[float, ...]
    nfe_share: tuple[float, ...]

    @property
    def worst(self) -> float:
        """The largest loss."""
        return max(self.hurt)

    @property
    def cost(self) -> float:
        """Mean over the tasks."""
        return sum(self.nfe_share) / len(self.nfe_share)


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What was chosen, with all that was tried."""

    chosen: dict[str, Trial]  # by gate
    published: dict[str, Trial]  # the gates' settings as published
    trials: tuple[Trial, ...]
    provenance: dict[str, Any]

    def frozen(self) -> dict[str, Any]:
        """The content of frozen.json."""
        settings = {gate: trial.setting for gate, trial in self.chosen.items()}
        return {"chosen": settings, "provenance": self.provenance}


def grids() -> dict[str, list[str]]:
    """Every setting that is tried, by gate: the published one, then the strictest first."""
    cvc = [
        f"cvc:tau={tau}:w={w}:agg={agg}:unit={unit}:{context}"
        for context, tau, w, agg, unit in product(
            (
                "context=prefix_committed",
                "context=prefix_frac:rho=0.5",
                "context=prefix_frac:rho=0.25",
                "context=none",
            ),
            (0.98, 0.95, 0.9, 0.8, 0.7, 0.5),
            (8, 6, 4, 3, 2),  # 1 would be confidence alone
            ("min", "geo"),
            ("tokens", "steps"),
        )
    ]
    sched = [
        f"sched:shape={shape}:high={high}:low={low}:unchanged={unchanged}"
        for shape, high, low, unchanged in product(
            ("linear", "cosine", "exp"),
            (25.0, 20.0, 15.0, 12.5, 10.0, 7.5, 5.0),
            (20.0, 15.0, 12.5, 10.0, 7.5, 5.0, 2.5, 0.0),
            ("true", "false"),
        )
        if low <= high
    ]
    prophet = [
        f"prophet:suffix=:early={7.5 * scale}:middle={5 * scale}:late={2.5 * scale}"
        for scale in (6, 5, 4, 3, 2.5, 2, 1.75, 1.5, 1.25, 1, 0.75, 0.5)
    ]
    rest = [
        f"stable_and_confident:stability={steps}:entropy={entropy}"
        for steps, entropy in product(
            (8, 5, 3, 2, 1, 0), (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
        )
    ]
    return {
        "cvc": ["cvc", *cvc],
        "sched": ["sched", *sched],
        "prophet": ["prophet:suffix=", *prophet],
        "stable_and_confident": ["stable_and_confident", *rest],
    }


def local_grid() -> list[str]:
    """Every setting of bwec that is tried, the published one first: options of latch."""
    rest = [
        f"tau_b={max(least, 0.95)}:tau_lo={least}:w_b={repeats}"
        for least, repeats in product((0.995, 0.99, 0.98, 0.95), (2, 1))
    ]
    return ["tau_b=0.95:tau_lo=0.9:w_b=1", *rest]


def tune(
    config: TuneConfig,
    denoiser: MaskedDenoiser,
    *,
    settings: Mapping[str, Sequence[str]] | None = None,
    local: Sequence[str] | None = None,
    done: Done = lambda now, total: None,
    cells: Cells | None = None,
) -> Tuning:
    """One full run of every question, which all settings watch; then latch with `local` ones.

    What `cells` hold is not run again.

    Of a gate's settings that hurt no more than `loss` points on any task the one with the fewest
    forwards is chosen; of none, the one that hurts least.
    """
    drawn = [
        draw(denoiser.tokenizer, name, config.limit, canvas, config.split)
        for name, canvas in _places(config)
    ]
    tried = {gate: list(texts) for gate, texts in (settings or grids()).items()}
    texts = [text for own in tried.values() for text in own]
    panel = Panel([gates.find(text) for text in texts])
    orders = [samplers.find(name) for name in config.samplers]
    places = [Place.of(config, denoiser, one, order) for one, order in product(drawn, orders)]
    ways = local_grid() if local is None else list(local)
    ticks = count(1)
    total = len(places) * config.limit + len(places) * len(ways)

    def tick() -> None:
        done(next(ticks), total)

    kept = cells or Cells()
    sums = [_counts(place, panel, kept, tick) for place in places]
    whose = [gate for gate, own in tried.items() for _ in own]
    trials = [
        Trial(
            gate=gate,
            setting=panel.members[n].text,
            hurt=tuple(one.hurt[n] / config.limit for one in sums),
            nfe_share=tuple(one.cost[n] / config.limit for one in sums),
        )
        for n, gate in enumerate(whose)
    ]
    by_gate = {gate: [t for t in trials if t.gate == gate] for gate in tried}
    loss = config.loss / 100
    # Of what may be hurt half is left to bwec.
    chosen = {
        gate: choose(own, loss / 2 if gate == "cvc" else loss) for gate, own in by_gate.items()
    }
    cvc = chosen["cvc"].setting.removeprefix("cvc")
    texts = [f"latch{cvc}:{way}" for way in ways]
    by_gate["latch"] = [_live(places, sums, text, loss, kept, tick) for text in texts]
    return Tuning(
        chosen=chosen | {"latch": choose(by_gate["latch"], loss)},
        published={gate: own[0] for gate, own in by_gate.items()},
        trials=(*trials, *by_gate["latch"]),
        provenance=_provenance(config, denoiser, orders, drawn, {**tried, "latch": texts}),
    )


def choose(trials: Sequence[Trial], loss: float) -> Trial:
    """The rule; of equals the first, which is the strictest but for the published one."""
    within = [trial for trial in trials if trial.worst <= loss]
    if within:
        return min(within, key=lambda trial: (round(trial.cost, 3), trial.worst))
    return min(trials, key=lambda trial: (trial.worst, trial.cost))


def _places(config: TuneConfig) -> Iterator[tuple[str, int]]:
    for number, name in enumerate(config.tasks):
        task = tasks.find(name)
        if not task.is_scored:
            raise BadOption(f"{name} has no right answers to choose settings by")
        yield name, config.canvases[number] if config.canvases else task.canvas


@dataclass(frozen=True, kw_only=True)
class Place:
    """Questions of a task, and in which order their canvases are filled."""

    setup: Setup
    items: Sequence[Item]
    sampler: Sampler[Any]
    facts: Facts  # what its pieces depend on, beside their settings

    @classmethod
    def of(
        cls, config: TuneConfig, denoiser: MaskedDenoiser, drawn: Drawn, sampler: Sampler[Any]
    ) -> "Place":
        """With one of a config's samplers."""
        plan = Plan(canvas=drawn.canvas, block=config.block)
        setup = Setup(denoiser=denoiser, task=drawn.task, plan=plan, batch=config.batch)
        facts: Facts = {
            "model": denoiser.name,
            "weights": weights_of(denoiser),
            "dtype": str(denoiser.dtype),
            "device": denoiser.device.type,
            "batch": None if denoiser.exact_rows else config.batch,
            "code": code_digest(),
            "task": drawn.task.name,
            "split": drawn.split,
            "plan": asdict(plan),
            "sampler": sampler.text,
        }
        return cls(setup=setup, items=drawn.items, sampler=sampler, facts=facts)


@dataclass(frozen=True, kw_only=True)
class _Sums:
    """Of one place: what each member of the panel hurt and cost, and what full decoding did."""

    hurt: list[int]  # answers
    cost: list[float]  # NFE in parts of full decoding's
    full: list[tuple[bool, int]]  # of each question: whether it is right, NFE


def _counts(place: Place, panel: Panel, cells: Cells, done: Callable[[], None]) -> _Sums:
    size = len(panel.members)
    sums = _Sums(hurt=[0] * size, cost=[0.0] * size, full=[])
    settings = [member.text for member in panel.members]
    for first in range(0, len(place.items), CHUNK):
        some = place.items[first : first + CHUNK]
        piece = {"items": [first, first + len(some)], "settings": settings}
        key = place.facts | {"what": "watched"} | piece
        content = cells.find(key)
        if content is None:
            content = asdict(_watched(place, some, panel, done))
            cells.keep(key, content)
        else:
            for _ in some:
                done()
        sums.hurt[:] = map(sum, zip(sums.hurt, content["hurt"], strict=True))
        sums.cost[:] = map(sum, zip(sums.cost, content["cost"], strict=True))
        sums.full.extend((right, nfe) for right, nfe in content["full"])
    return sums


def _watched(place: Place, items: Sequence[Item], panel: Panel, done: Callable[[], None]) -> _Sums:
    setup, size = place.setup, len(panel.members)
    sums = _Sums(hurt=[0] * size, cost=[0.0] * size, full=[])
    for item, full, recording in record(setup, items, place.sampler):
        tokenizer = setup.denoiser.tokenizer
        watched = replay(recording, panel, tokenizer, format=setup.format)
        seats: dict[int, Seat] = watched.steps[-1].told["seats"]
        was_right = is_right(full.text, item, setup.format)
        sums.full.append((was_right, full.nfe))
        judge = _Judge(setup, item)
        for member in range(size):
            seat = seats.get(member)
            sums.cost[member] += 1.0 if seat is None else seat.step / full.nfe
            if was_right and seat is not None and not judge.is_right(seat):
                sums.hurt[member] += 1
        done()
    return sums


def _live(
    places: Sequence[Place],
    sums: Sequence[_Sums],
    text: str,
    loss: float,
    cells: Cells,
    done: Callable[[], None],
) -> Trial:
    """A setting of latch, place by place until it hurts more than it may."""
    gate = gates.find(text)
    hurt, cost = list[float](), list[float]()
    for place, known in zip(places, sums, strict=True):
        if not hurt or hurt[-1] <= loss:
            key = place.facts | {"what": "live", "items": [0, len(place.items)], "gate": gate.text}
            content = cells.find(key)
            if content is None:
                outcomes = live(place.setup, place.items, place.sampler, gate)
                content = [[outcome.is_right, outcome.nfe] for outcome in outcomes]
                cells.keep(key, content)
            pairs = list(zip(content, known.full, strict=True))
            hurt.append(
                sum(right and not is_right for (is_right, _), (right, _) in pairs) / len(pairs)
            )
            cost.append(sum(nfe / full for (_, nfe), (_, full) in pairs) / len(pairs))
        done()
    return Trial(gate="latch", setting=gate.text, hurt=tuple(hurt), nfe_share=tuple(cost))


class _Judge:
    """Whether exits of one question are right: many settings leave in the same step."""

    def __init__(self, setup: Setup, item: Item) -> None:
        self._stops = setup.denoiser.vocabulary.stops
        self._decode = text_decoder(setup.denoiser.tokenizer)
        self._format, self._item = setup.format, item
        self._known: dict[int, bool] = {}

    def is_right(self, seat: Seat) -> bool:
        """Judged once a step."""
        if seat.step not in self._known:
            ids = seat.tokens.tolist()
            end = next((n for n, token in enumerate(ids) if token in self._stops), len(ids))
            self._known[seat.step] = is_right(self._decode(ids[:end]), self._item, self._format)
        return self._known[seat.step]


def _provenance(
    config: TuneConfig,
    denoiser: MaskedDenoiser,
    orders: Sequence[Sampler[Any]],
    drawn: Sequence[Drawn],
    tried: Mapping[str, Sequence[str]],
) -> dict[str, Any]:
    return {
        "model": denoiser.name,
        "weights": weights_of(denoiser),
        "tasks": list(config.tasks),
        "canvases": [one.canvas for one in drawn],
        "split": config.split,
        "items": config.limit,
        "block": config.block,
        "samplers": [order.text for order in orders],
        "rule": f"fewest forwards among settings that hurt at most {config.loss:g} points of the "
        "answers on each, cvc half of that",
        "settings_tried": {gate: len(own) for gate, own in tried.items()},
        "commit": git_commit(),
    }
