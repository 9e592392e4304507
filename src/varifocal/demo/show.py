"""The demo's main act: ask about a drawn picture, plainly and with the drafter, and time both."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from varifocal.demo.sample import Sample
from varifocal.engine import Engine
from varifocal.evaluation.compare import Mismatch, judge
from varifocal.evaluation.suites import demo_case
from varifocal.request import Request
from varifocal.result import GenerationResult, Look, Round
from varifocal.target import Region

OnRound = Callable[[Round], None]


@dataclass(frozen=True, kw_only=True)
class Told:
    """One token of an answer, and how it came."""

    text: str  # empty for the end token, and inside a character of several tokens
    is_drafted: bool  # guessed by the drafter and confirmed; else the target's own
    round: int  # 0 is the prefill
    look: Look  # where the drafter looked for it; empty if it did not, or does not say


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One run without anything else going on."""

    arrivals: tuple[float, ...]  # seconds from the first token to each token
    wall_seconds: float  # after the first token
    cpu_seconds: float  # of this process, all threads


@dataclass(frozen=True, kw_only=True)
class Act:
    """A question, answered in both ways."""

    sample: Sample
    request: Request
    plain: GenerationResult
    drafted: GenerationResult
    tokens: tuple[Told, ...]  # of the drafted answer
    plain_texts: tuple[str, ...]  # of the plain one's tokens
    regions: tuple[Region, ...]  # what each visual token saw
    mismatch: Mismatch | None
    plain_timings: tuple[Timing, ...]
    drafted_timings: tuple[Timing, ...]

    @property
    def is_good(self) -> bool:
        """Whether the texts agree, or differ at a near-tie in lower precision."""
        return self.mismatch is None or self.mismatch.near_tie

    @property
    def has_looks(self) -> bool:
        """Whether the drafter says where it looked."""
        return any(token.look for token in self.tokens)

    def speed(self, *, drafted: bool, cpu: bool = False) -> float:
        """Tokens a second after the first one: the median run."""
        result = self.drafted if drafted else self.plain
        timings = self.drafted_timings if drafted else self.plain_timings
        seconds = median(t.cpu_seconds if cpu else t.wall_seconds for t in timings)
        return (len(result.token_ids) - 1) / seconds if seconds > 0 else 0.0

    def speedup(self, *, cpu: bool = False) -> float:
        """How many times faster the drafted run is."""
        plain = self.speed(drafted=False, cpu=cpu)
        return self.speed(drafted=True, cpu=cpu) / plain if plain else 1.0


def perform(
    engine: Engine,
    sample: Sample,
    *,
    repeats: int,
    plain_round: OnRound = lambda decided: None,
    drafted_round: OnRound = lambda decided: None,
    timing: Callable[[], None] = lambda: None,
) -> Act:
    """Answer twice for show, then `repeats` times each for the clock, in turn.

    The first two runs also warm everything up; they are not timed. `timing` is called when the
    clock starts.
    """
    request = demo_case(sample).request
    plain_engine = engine.plain()
    shown = plain_engine.stream(request)
    for decided in shown:
        plain_round(decided)
    looking = engine.stream(request, with_looks=True)
    for decided in looking:
        drafted_round(decided)
    plain, drafted = shown.result(), looking.result()
    timing()
    runs = [(_timed(plain_engine, request), _timed(engine, request)) for _ in range(repeats)]
    return Act(
        sample=sample,
        request=request,
        plain=plain,
        drafted=drafted,
        tokens=tuple(told(drafted, engine.target.decode)),
        plain_texts=tuple(token.text for token in told(plain, engine.target.decode)),
        regions=tuple(engine.target.regions(looking.prompt)),
        mismatch=judge(engine.target, request, plain, drafted),
        plain_timings=tuple(run[0] for run in runs),
        drafted_timings=tuple(run[1] for run in runs),
    )


def told(result: GenerationResult, decode: Callable[[list[int]], str]) -> Iterator[Told]:
    """The tokens of an answer; their texts join to the whole."""
    shown = ""
    for number, decided in enumerate([result.prefill, *result.rounds]):
        looks = decided.looks or [[] for _ in decided.tokens]
        for k, look in enumerate(looks[: len(decided.tokens)]):
            ids = result.token_ids[: _before(result, number) + k + 1]
            text = decode(ids)
            whole = not text.endswith("\ufffd")
            piece = text[len(shown) :] if whole else ""
            shown = text if whole else shown
            yield Told(text=piece, is_drafted=k < decided.num_accepted, round=number, look=look)


def _before(result: GenerationResult, number: int) -> int:
    """Tokens delivered before a round."""
    rounds = [result.prefill, *result.rounds]
    return sum(len(decided.tokens) for decided in rounds[:number])


def _timed(engine: Engine, request: Request) -> Timing:
    """One run. The clocks start when the first token is there."""
    rounds = iter(engine.stream(request))
    first = next(rounds)
    wall, cpu = time.perf_counter(), time.process_time()
    arrivals = [0.0] * len(first.tokens)
    for decided in rounds:
        arrivals += [time.perf_counter() - wall] * len(decided.tokens)
    return Timing(
        arrivals=tuple(arrivals),
        wall_seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
    )
