"""Hit rates of all predictors at once, and what sparse attention says, on long texts.

Each text is read densely once, in one pass through all its contexts. At each, it goes on with
plain sparse attention, one run for each selector and budget, along the text's own tokens; the
choices of that run judge every predictor (`panel`). Nothing is timed, so a busy machine gives the
same figures.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from transformers import DynamicCache

from varifocal.errors import BadOption
from varifocal.sparse.contest import OWN, Sample
from varifocal.sparse.decoding import Decoder, dense_twin
from varifocal.sparse.huggingface import SparseCache
from varifocal.sparse.indexer import Indexer
from varifocal.sparse.panel import TRIED, Panel, Tally
from varifocal.sparse.predictors import PREDICTORS, split_name
from varifocal.sparse.selection import Reach
from varifocal.sparse.selectors import find_selector
from varifocal.sparse.speculation import OnlyWatching
from varifocal.targets._hf import HFTarget

BASELINE = "last"
BY_LAYER = (0.5, 1.0, 1.5, 2.0)  # guesses for each chosen unit, of TRIED, that JSON has by layer
Draw = Callable[[Sequence[int], int], Sequence[Sequence[Sample]]]
"""Texts, each as samples of rising context; each goes on from the one before where it can."""


@dataclass(frozen=True, kw_only=True)
class RatesConfig:
    """What is measured."""

    selectors: tuple[str, ...] = ("quest", "infllm")
    predictors: tuple[str, ...] = tuple(PREDICTORS)
    contexts: tuple[int, ...] = (2000, 4000, 8000)  # tokens of the prompt
    budgets: tuple[int, ...] = (512,)
    reach: Reach = field(default_factory=Reach)  # its budget is replaced by each of `budgets`
    block_size: int = 16
    tokens: int = 64  # decoded at each place
    indexer: Indexer | None = None  # for the selectors that read one

    def __post_init__(self) -> None:
        if not self.contexts or not self.budgets or not self.selectors:
            raise BadOption("contexts, budgets and selectors: at least one of each is needed")
        for name in ("contexts", "budgets", "selectors"):
            given = getattr(self, name)
            if len(set(given)) < len(given):
                raise BadOption(f"{name} has one twice: {', '.join(map(str, given))}")
        if min(self.contexts) <= OWN or self.tokens < 1:
            raise BadOption(
                f"contexts are more than {OWN} tokens and tokens at least 1, got "
                f"{min(self.contexts)} and {self.tokens}"
            )
        for name in self.predictors:
            split_name(name)  # which checks it

    @property
    def all_predictors(self) -> tuple[str, ...]:
        """`last`, and those named."""
        return tuple(dict.fromkeys((BASELINE, *self.predictors)))


@dataclass(frozen=True)
class Place:
    """One text at one context, with one selector and budget."""

    sample: Sample
    said: list[int]  # by sparse attention
    said_densely: list[int]
    tallies: list[Tally]


@dataclass(frozen=True)
class Row:
    """One selector, budget and context, over all texts."""

    selector: str
    budget: int
    context: int
    places: list[Place]

    def tallies(self, predictor: str) -> list[Tally]:
        """The total, then by layer; over all texts."""
        found = [[t for t in p.tallies if t.predictor == predictor] for p in self.places]
        return [Tally.sum(same, same[0].layer) for same in zip(*found, strict=True)]

    def by_place(self, predictor: str) -> list[Tally]:
        """The totals of each text."""
        return [
            next(t for t in p.tallies if t.predictor == predictor and t.layer is None)
            for p in self.places
        ]

    @property
    def agreement(self) -> float:
        """Share of tokens that dense attention says as well."""
        pairs = [
            (one, other)
            for place in self.places
            for one, other in zip(place.said, place.said_densely, strict=True)
        ]
        return sum(one == other for one, other in pairs) / len(pairs)

    def accuracy(self) -> dict[str, dict[str, float | int]]:
        """By kind of text, where texts have answers: how many words, and shares that are said."""
        kinds = dict.fromkeys(p.sample.name for p in self.places if p.sample.is_answer is not None)
        return {
            kind: _accuracy([p for p in self.places if p.sample.name == kind]) for kind in kinds
        }

    def to_dict(self, predictors: Sequence[str]) -> dict[str, Any]:
        """As JSON; lists of rates are for each of TRIED, of layers for each of BY_LAYER."""
        total = self.tallies(predictors[0])[0]
        return {
            "selector": self.selector,
            "budget": self.budget,
            "context": self.context,
            "texts": [place.sample.name for place in self.places],
            "chosen": total.chosen,
            "chance": _rounded(total.chance),
            "agreement": self.agreement,
            "accuracy": self.accuracy() or None,
            "predictors": {name: self._judged(name) for name in predictors},
        }

    def _judged(self, predictor: str) -> dict[str, Any]:
        total, *layers = self.tallies(predictor)
        return {
            "hit_rates": [_rounded(rate) for rate in total.hit_rates],
            "waste_rates": [_rounded(rate) for rate in total.waste_rates],
            "by_text": [[_rounded(r) for r in t.hit_rates] for t in self.by_place(predictor)],
            "layers": [[_rounded(t.hit_rates[TRIED.index(s)]) for s in BY_LAYER] for t in layers],
        }


def _accuracy(places: Sequence[Place]) -> dict[str, float | int]:
    asked = right = densely = 0
    for place in places:
        is_answer = place.sample.is_answer
        assert is_answer is not None
        words = len(place.said)
        given, is_asked = place.sample.given[:words].cpu(), is_answer[:words].cpu()
        asked += int(is_asked.sum())
        right += int((torch.tensor(place.said) == given)[is_asked].sum())
        densely += int((torch.tensor(place.said_densely) == given)[is_asked].sum())
    share = max(asked, 1)
    return {"words": asked, "sparse": right / share, "dense": densely / share}


def _rounded(share: float) -> float:
    return round(share, 4)


@dataclass(frozen=True)
class RatesResult:
    """All rows of one run."""

    config: RatesConfig
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        config = self.config
        return {
            "settings": {
                "first": config.reach.first,
                "recent": config.reach.recent,
                "dense_layers": config.reach.dense_layers,
                "block_size": config.block_size,
                "tokens": config.tokens,
                "guesses": [*TRIED],
                "guesses_by_layer": [*BY_LAYER],
            },
            "rows": [row.to_dict(config.all_predictors) for row in self.rows],
        }


def run_rates(
    config: RatesConfig,
    target: HFTarget,
    draw: Draw,
    progress: Callable[[str], None] = lambda _: None,
) -> RatesResult:
    """Read every text, and go on at every context with each selector and budget.

    Contexts that the target does not hold are refused before anything is read.
    """
    room = target.context_length - config.tokens
    if room <= OWN:
        raise BadOption(
            f"{target.name} holds {target.context_length} tokens, so {config.tokens} cannot be "
            "decoded behind a context: ask for fewer tokens"
        )
    if max(config.contexts) > room:
        raise BadOption(
            f"{target.name} holds {target.context_length} tokens, but a context of "
            f"{max(config.contexts)} with {config.tokens} more is asked for: contexts up to {room} "
            "fit"
        )
    for selector, budget in _settings(config):
        _cache(target, config, selector, budget)  # what does not fit is found now
    found: dict[tuple[str, int, int], list[Place]] = {
        (selector, budget, context): []
        for context in config.contexts
        for selector, budget in _settings(config)
    }
    twin = dense_twin(target)
    for samples in draw(sorted(config.contexts), config.tokens):
        full, seen = Decoder(twin, DynamicCache()), samples[0].prompt[:0]
        for sample in samples:
            context = len(sample.prompt)
            progress(f"{sample.name}: reading {context} tokens")
            if not _goes_on(sample, seen):
                full = Decoder(twin, DynamicCache())
            full.read(sample.prompt[full.length : -OWN])
            caches = [_cache(target, config, *setting) for setting in _settings(config)]
            decoders = [_behind(target, cache, full, sample) for cache in caches]
            own = torch.cat([sample.prompt[-OWN:], sample.given[: config.tokens - 1]])
            densely = _said(full.read_all(own, config.tokens))
            seen = torch.cat([sample.prompt[:-OWN], own])
            turns = zip(_settings(config), caches, decoders, strict=True)
            for (selector, budget), cache, decoder in turns:
                progress(f"{sample.name}: {context} tokens, {selector}, budget {budget}")
                said, tallies = _watched(decoder, cache, own, config.all_predictors)
                place = Place(sample, said, densely, tallies)
                found[selector, budget, context].append(place)
    return RatesResult(config, [Row(*key, places) for key, places in found.items()])


def _settings(config: RatesConfig) -> Iterator[tuple[str, int]]:
    for selector in config.selectors:
        for budget in config.budgets:
            yield selector, budget


def _cache(target: HFTarget, config: RatesConfig, selector: str, budget: int) -> SparseCache:
    return SparseCache(
        target.model,
        replace(config.reach, budget=budget),
        block_size=config.block_size,
        selector=selector,
        indexer=config.indexer if find_selector(selector).reads_index else None,
        predictor="none",
        speculation=OnlyWatching(),
    )


def _behind(target: HFTarget, cache: SparseCache, full: Decoder, sample: Sample) -> Decoder:
    """Behind the prompt but for its end: what was read densely is taken over, if it serves.

    An indexer reads hidden states, which the dense cache has not kept: it reads for itself.
    """
    if cache.can_take:
        cache.take(full.cache)
        return Decoder(target, cache, full.length)
    decoder = Decoder(target, cache)
    decoder.read(sample.prompt[:-OWN])
    return decoder


def _goes_on(sample: Sample, seen: Int64[Tensor, " N"]) -> bool:
    """Whether what was read is the beginning of what is to be read next, its own end left out."""
    rest = sample.prompt[:-OWN]
    return len(seen) <= len(rest) and torch.equal(seen, rest[: len(seen)])


def _said(logits: Tensor) -> list[int]:
    return [int(token) for token in logits.argmax(-1)]


def _watched(
    decoder: Decoder, cache: SparseCache, own: Int64[Tensor, " N"], predictors: Sequence[str]
) -> tuple[list[int], list[Tally]]:
    """What sparse attention says from the prompt's last token on, and how guesses did."""
    attention = cache.attention
    panel = Panel(attention.cache.shape, attention.cache.device, predictors)
    attention.predict_by(panel)
    decoder.read(own[: OWN - 1])  # which primes the predictors
    panel.begin()
    said = [int(decoder.read(token[None]).argmax()) for token in own[OWN - 1 :]]
    attention.settle()
    return said, panel.tallies()
