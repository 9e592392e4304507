"""One text decoded in all ways in turn, a token at a time: dense, plain sparse, PRR in three.

Taking turns at every token, all of them meet the same disturbances of the machine. Each has its
own cache, branched off one prefill for all.
"""

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from random import Random

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor
from transformers import DynamicCache

from varifocal.errors import BadRequest
from varifocal.sparse.accounting import HitRate
from varifocal.sparse.cases import equal_bits
from varifocal.sparse.decoding import Decoder
from varifocal.sparse.huggingface import SparseCache
from varifocal.sparse.indexer import Indexer
from varifocal.sparse.queues import Queues
from varifocal.sparse.runtime import SparseAttention
from varifocal.sparse.selection import Reach
from varifocal.sparse.selectors import find_selector
from varifocal.sparse.speculation import FixedSpeculation
from varifocal.sparse.timeline import Timeline
from varifocal.targets._hf import HFTarget

DENSE, PLAIN = "dense", "plain"
# PRR with a fixed share of guesses on one queue, the same on two, and as many as pay on two.
SERIAL, PARALLEL, GUARDED = "prr_serial", "prr_two_threads", "prr_guarded"


OWN = 3  # tokens of the prompt that each way reads: two together, then one


@dataclass(frozen=True)
class Sample:
    """A text to decode: what is read first, and what follows in it."""

    name: str
    prompt: Int64[Tensor, " N"]
    given: Int64[Tensor, " T"]
    is_answer: Bool[Tensor, " T"] | None = None  # which given tokens a model could know


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How all of them decode."""

    reach: Reach
    block_size: int
    kernel: str
    share: float  # of guesses, where it is fixed
    warm_up: int  # tokens before any is timed
    tokens: int
    follows: bool  # read the text's own next token rather than the predicted one
    indexer: Indexer | None = None  # for the selectors that read one

    def indexer_for(self, selector: str) -> Indexer | None:
        """The indexer, if this selector reads it."""
        return self.indexer if find_selector(selector).reads_index else None


@dataclass
class Track:
    """What one way of decoding one text said and took."""

    way: str
    predictor: str  # "" without
    seconds: list[float] = field(default_factory=list)  # of each token after the warm-up
    cpu_seconds: list[float] = field(default_factory=list)  # likewise, of all threads together
    windows: list[Timeline] = field(default_factory=list)  # likewise, all layers together
    said: list[int] = field(default_factory=list)  # warm-up included, as below
    unlike_plain: int = 0  # tokens whose logits have other bits
    contention: float | None = None  # measured, where guesses are guarded
    rates: list[HitRate] = field(default_factory=list)


@dataclass
class _Run:
    """A way of decoding while it goes on."""

    track: Track
    decoder: Decoder
    token: int  # to be read next

    @property
    def attention(self) -> SparseAttention | None:
        cache = self.decoder.cache
        return cache.attention if isinstance(cache, SparseCache) else None

    def step(self, *, is_timed: bool) -> Float[Tensor, " V"]:
        """Read a token; what is learned from it is waited for and counts."""
        tokens = torch.tensor([self.token], device=self.decoder.device)
        attention, track = self.attention, self.track
        before = Timeline.sum(attention.times()) if attention else Timeline()
        start, worked = time.perf_counter(), time.process_time()
        logits = self.decoder.read(tokens)
        if attention:
            attention.settle()
        seconds, worked = time.perf_counter() - start, time.process_time() - worked
        if is_timed:
            track.seconds.append(seconds)
            track.cpu_seconds.append(worked)
            if attention:
                track.windows.append(Timeline.sum(attention.times()) - before)
        track.said.append(int(logits.argmax()))
        return logits

    def finished(self) -> Track:
        """The track, once there is nothing to come."""
        if self.attention:
            self.track.rates = self.attention.rates()
        return self.track


@dataclass(frozen=True)
class Contest:
    """All ways of one text with one selector."""

    selector: str
    sample: Sample
    tracks: list[Track]

    def track(self, way: str, predictor: str = "") -> Track:
        """The one of this way."""
        (found,) = (t for t in self.tracks if (t.way, t.predictor) == (way, predictor))
        return found


def prefilled(dense: HFTarget, sample: Sample) -> Decoder:
    """The prompt read densely, but for its end, which each way reads for itself."""
    if len(sample.prompt) <= OWN:
        raise BadRequest(f"wanted a context of more than {OWN} tokens, got {len(sample.prompt)}")
    decoder = Decoder(dense, DynamicCache())
    decoder.read(sample.prompt[:-OWN])
    return decoder


def compete(
    target: HFTarget,
    full: Decoder,
    sample: Sample,
    selector: str,
    predictors: Sequence[str],
    setting: Setting,
    queues: Queues,
) -> Contest:
    """Go on from a prefilled prompt in all ways in turn."""
    needed = setting.warm_up + setting.tokens
    if len(sample.given) < needed:
        raise BadRequest(
            f"the text {sample.name} goes on for {len(sample.given)} tokens, wanted {needed}"
        )
    runs = _runs(target, full, sample, selector, predictors, setting, queues)
    for turn in range(needed):
        logits = {}
        # In another order each time: whoever follows dense attention finds the processor's caches
        # full of its keys.
        for run in Random(turn).sample(runs, len(runs)):
            logits[id(run)] = run.step(is_timed=turn >= setting.warm_up)
        (plain,) = (logits[id(run)].float() for run in runs if run.track.way == PLAIN)
        for run in runs:
            run.track.unlike_plain += not equal_bits(logits[id(run)].float(), plain)
            run.token = int(sample.given[turn]) if setting.follows else run.track.said[-1]
    return Contest(selector, sample, [run.finished() for run in runs])


def _runs(
    target: HFTarget,
    full: Decoder,
    sample: Sample,
    selector: str,
    predictors: Sequence[str],
    setting: Setting,
    queues: Queues,
) -> list[_Run]:
    """Every way, behind the prompt but for its last token."""
    last = int(sample.prompt[-1])
    dense = full.branch(deepcopy(full.cache))
    cache = SparseCache(
        target.model,
        setting.reach,
        block_size=setting.block_size,
        selector=selector,
        kernel=setting.kernel,
        indexer=setting.indexer_for(selector),
        is_plain=True,
    )
    if cache.can_take:
        cache.take(full.cache)
        sparse = Decoder(target, cache, full.length)
    else:  # an indexer reads hidden states, which the other cache has not kept
        sparse = Decoder(target, cache)
        sparse.read(sample.prompt[:-OWN])
    for decoder in (dense, sparse):
        decoder.read(sample.prompt[-OWN:-1])  # which primes the predictors
    runs = [_Run(Track(DENSE, ""), dense, last), _Run(Track(PLAIN, ""), sparse, last)]
    for predictor in predictors:
        for way, shared in ((SERIAL, None), (PARALLEL, queues), (GUARDED, queues)):
            branch = cache.branch(
                predictor=predictor, speculation=FixedSpeculation(setting.share), queues=shared
            )
            track = Track(way, predictor)
            if way == GUARDED and (times := branch.calibrate()) is not None:
                track.contention = times.contention
            runs.append(_Run(track, sparse.branch(branch), last))
    return runs
