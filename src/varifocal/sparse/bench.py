"""What sparse attention and PRR give on long texts: speed, hit rates, equal and like texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import torch

from varifocal.errors import BadOption
from varifocal.sparse.accounting import HitRate
from varifocal.sparse.contest import (
    DENSE,
    GUARDED,
    PARALLEL,
    PLAIN,
    SERIAL,
    Contest,
    Sample,
    Setting,
    Track,
    compete,
    prefilled,
)
from varifocal.sparse.decoding import dense_twin
from varifocal.sparse.huggingface import SparseCache
from varifocal.sparse.indexer import Indexer
from varifocal.sparse.predictors import split_name
from varifocal.sparse.queues import Queues, SingleQueue
from varifocal.sparse.selection import Reach
from varifocal.sparse.speculation import FixedSpeculation
from varifocal.sparse.timeline import Timeline
from varifocal.targets._hf import HFTarget

PRR = (SERIAL, PARALLEL, GUARDED)
_BASELINE = "last"  # no predictor's hit rate is shown without its

Draw = Callable[[int, int], Sequence[Sample]]  # samples of a context with so many tokens more
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """What is measured."""

    selectors: tuple[str, ...] = ("quest", "infllm")
    predictors: tuple[str, ...] = ("last", "ema")
    contexts: tuple[int, ...] = (2048, 4096, 8000)  # tokens of the prompt
    reach: Reach = field(default_factory=lambda: Reach(budget=512))
    block_size: int = 16
    kernel: str = "torch"
    indexer: Indexer | None = None  # for the selectors that read one
    share: float = 1.0  # guesses for each chosen block, where not guarded
    tokens: int = 32  # timed ones
    warm_up: int = 4
    follows: bool = True  # read the text's own tokens

    def __post_init__(self) -> None:
        if min(self.tokens, self.warm_up + 1, *self.contexts, 1) < 1 or not self.contexts:
            raise BadOption("contexts and tokens are at least 1, warm_up at least 0")
        FixedSpeculation(self.share)  # which checks it
        if self.tokens < 2:
            raise BadOption("a spread needs at least 2 timed tokens")
        for name in self.predictors:
            split_name(name)  # which checks it

    @property
    def all_predictors(self) -> tuple[str, ...]:
        """Those named, and `last` beside them."""
        return tuple(dict.fromkeys((_BASELINE, *self.predictors)))

    def setting(self) -> Setting:
        """For one contest."""
        return Setting(
            reach=self.reach,
            block_size=self.block_size,
            kernel=self.kernel,
            indexer=self.indexer,
            share=self.share,
            warm_up=self.warm_up,
            tokens=self.tokens,
            follows=self.follows,
        )


@dataclass(frozen=True)
class Row:
    """One selector, predictor and context length, over all samples."""

    selector: str
    predictor: str
    context: int
    contests: list[Contest]

    def tracks(self, way: str) -> list[Track]:
        """This way on every sample."""
        predictor = self.predictor if way in PRR else ""
        return [contest.track(way, predictor) for contest in self.contests]

    def speed(self, way: str) -> dict[str, float]:
        """Tokens a second: at the median token, and at the slow and the fast tenth."""
        seconds = [s for track in self.tracks(way) for s in track.seconds]
        tenths = quantiles(seconds, n=10, method="inclusive")
        return {
            "median": 1 / median(seconds),
            "p10": 1 / tenths[-1],
            "p90": 1 / tenths[0],
        }

    def work(self, way: str) -> float:
        """CPU seconds of a token, of both threads: what a guess in vain costs shows here.

        On one thread it is the time of a token on a machine that has nothing else to do.
        """
        return median(s for track in self.tracks(way) for s in track.cpu_seconds)

    def window(self, way: str) -> float:
        """Seconds of a token within the windows of all layers, from query to merged state."""
        return median(w.total for track in self.tracks(way) for w in track.windows)

    def saved(self, way: str) -> dict[str, float]:
        """Shares of plain sparse attention's window, and of its whole token; losses are below 0."""
        tokens = {w: 1 / self.speed(w)["median"] for w in (way, PLAIN)}
        return {
            "window": 1 - self.window(way) / self.window(PLAIN),
            "token": 1 - tokens[way] / tokens[PLAIN],
        }

    def timeline(self, way: str) -> dict[str, Any]:
        """Mean seconds of a token's phases, all layers together."""
        windows = [w for track in self.tracks(way) for w in track.windows]
        named = Timeline.sum(windows).to_dict()
        fraction = named.pop("overlap_fraction")
        return {k: v / len(windows) for k, v in named.items()} | {"overlap_fraction": fraction}

    def rates(self, predictor: str) -> list[HitRate]:
        """By layer, the total first; over all samples."""
        found = [
            [r for r in track.rates if r.predictor == predictor] for track in self.tracks(SERIAL)
        ]
        return [HitRate.sum(same) for same in zip(*found, strict=True)]

    @property
    def different(self) -> int:
        """Tokens whose logits differ from plain sparse attention's in a bit."""
        return sum(track.unlike_plain for way in PRR for track in self.tracks(way))

    @property
    def identical(self) -> int:
        """Tokens of PRR's runs whose logits do not."""
        return sum(len(track.said) for way in PRR for track in self.tracks(way)) - self.different

    @property
    def agreement(self) -> float:
        """Share of tokens that dense attention says as well, up to where texts part."""
        pairs = zip(self.tracks(PLAIN), self.tracks(DENSE), strict=True)
        same = [a == b for p, d in pairs for a, b in zip(p.said, d.said, strict=True)]
        return sum(same) / len(same)

    def accuracy(self, way: str) -> float | None:
        """Share of answer tokens that are said; None where the text has no answers."""
        right = asked = 0
        for track, contest in zip(self.tracks(way), self.contests, strict=True):
            sample = contest.sample
            if sample.is_answer is None:
                return None
            said = torch.tensor(track.said, device=sample.given.device)
            is_asked = sample.is_answer[: len(said)]
            right += int((said == sample.given[: len(said)])[is_asked].sum())
            asked += int(is_asked.sum())
        return right / asked if asked else None

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        total, *layers = self.rates(self.predictor)
        last, *last_layers = self.rates(_BASELINE)
        guarded = self.tracks(GUARDED)
        return {
            "selector": self.selector,
            "predictor": self.predictor,
            "context": self.context,
            "texts": [contest.sample.name for contest in self.contests],
            "tokens_per_second": {way: self.speed(way) for way in (DENSE, PLAIN, *PRR)},
            "cpu_seconds": {way: self.work(way) for way in (DENSE, PLAIN, *PRR)},
            "window_seconds": {way: self.window(way) for way in (PLAIN, *PRR)},
            "saved": {way: self.saved(way) for way in PRR},
            "hit_rate": total.hit_rate,
            "hit_rate_last": last.hit_rate,
            "waste_rate": total.waste_rate,
            "repaired_blocks": total.repaired_blocks,
            "layers": [
                {
                    "layer": own.layer,
                    "hit_rate": own.hit_rate,
                    "hit_rate_last": of_last.hit_rate,
                    "repaired_blocks": own.repaired_blocks,
                }
                for own, of_last in zip(layers, last_layers, strict=True)
            ],
            "identical": self.identical,
            "different": self.different,
            "agreement": self.agreement,
            "accuracy": self.accuracy(SERIAL),
            "accuracy_dense": self.accuracy(DENSE),
            "timeline": {way: self.timeline(way) for way in (PLAIN, *PRR)},
            "contention": median([r.contention for r in guarded if r.contention] or [0.0]) or None,
        }


@dataclass(frozen=True)
class BenchResult:
    """All rows of one run."""

    config: BenchConfig
    rows: list[Row]

    @property
    def is_good(self) -> bool:
        """Whether PRR's logits were those of plain sparse attention to the bit."""
        return not any(row.different for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; `means` over the contexts of each selector and predictor."""
        names = dict.fromkeys((row.selector, row.predictor) for row in self.rows)
        config = self.config
        return {
            "settings": {
                "budget": config.reach.budget,
                "first": config.reach.first,
                "recent": config.reach.recent,
                "dense_layers": config.reach.dense_layers,
                "block_size": config.block_size,
                "kernel": config.kernel,
                "guesses": config.share,
                "tokens": config.tokens,
                "warm_up": config.warm_up,
                "follows_text": config.follows,
            },
            "rows": [row.to_dict() for row in self.rows],
            "means": {f"{s}/{p}": self._mean(s, p) for s, p in names},
        }

    def _mean(self, selector: str, predictor: str) -> dict[str, Any]:
        rows = [r for r in self.rows if (r.selector, r.predictor) == (selector, predictor)]
        rates = [r.rates(predictor)[0].hit_rate for r in rows]
        known = [rate for rate in rates if rate is not None]
        return {
            "hit_rate": sum(known) / len(known) if known else None,
            "agreement": sum(r.agreement for r in rows) / len(rows),
            "identical": sum(r.identical for r in rows),
            "different": sum(r.different for r in rows),
            "saved": {
                way: {
                    key: sum(r.saved(way)[key] for r in rows) / len(rows)
                    for key in ("window", "token")
                }
                for way in PRR
            },
        }


def run_bench(
    config: BenchConfig,
    target: HFTarget,
    draw: Draw,
    *,
    queues: Queues | None = None,
    progress: Progress = lambda _: None,
) -> BenchResult:
    """Every context, selector and sample in turn; `progress` is told what is being done.

    Contexts that the target does not hold are refused before anything is read.
    """
    most = max(config.contexts) + config.warm_up + config.tokens
    if most > target.context_length:
        room = target.context_length - config.warm_up - config.tokens
        raise BadOption(
            f"{target.name} holds {target.context_length} tokens, but a context of "
            f"{max(config.contexts)} with {most - max(config.contexts)} more is asked for: "
            f"contexts up to {room} fit"
        )
    setting = config.setting()
    for selector in config.selectors:  # what does not fit is found before anything is read
        SparseCache(
            target.model,
            config.reach,
            block_size=config.block_size,
            selector=selector,
            kernel=config.kernel,
            indexer=setting.indexer_for(selector),
        )
    queues = queues or SingleQueue()
    twin = dense_twin(target)
    rows = []
    for context in config.contexts:
        contests: dict[str, list[Contest]] = {selector: [] for selector in config.selectors}
        for sample in draw(context, config.warm_up + config.tokens):
            progress(f"{context} tokens: reading")
            full = prefilled(twin, sample)
            for selector, done in contests.items():
                progress(f"{context} tokens: {selector}")
                done.append(
                    compete(target, full, sample, selector, config.all_predictors, setting, queues)
                )
        rows += [
            Row(selector, predictor, context, done)
            for selector, done in contests.items()
            for predictor in config.all_predictors
        ]
    return BenchResult(config, rows)
