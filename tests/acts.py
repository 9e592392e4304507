"""An act of the demo's show with a drawn picture, its true answer and made-up looks: no model."""

import re
from collections.abc import Sequence
from random import Random

from varifocal.demo.sample import Sample
from varifocal.demo.show import Act, Timing, Told
from varifocal.demo.world import draw
from varifocal.evaluation.suites import demo_case
from varifocal.result import GenerationResult, Round
from varifocal.target import Region


def act_of(family: str, *, looks: bool = True, answer: str | None = None) -> Act:
    """As if a drafter had done well."""
    rng = Random(family)
    sample = draw(family, 0, "test")
    text = sample.turns[0].answer if answer is None else answer
    pieces = [*re.findall(r" ?[A-Za-z]{1,5}| ?\d|\s?[^\sA-Za-z\d]", text), ""]
    drafted = _result(_rounds(pieces, rng), "fovea")
    tokens = _told(drafted, pieces, sample, rng, looks)
    return Act(
        sample=sample,
        request=demo_case(sample).request,
        plain=_result([[piece] for piece in pieces], "plain"),
        drafted=drafted,
        tokens=tuple(tokens),
        plain_texts=tuple(pieces),
        regions=tuple(_regions(sample)),
        mismatch=None,
        plain_timings=(_timing([[p] for p in pieces], 0.009),),
        drafted_timings=(_timing([r.tokens for r in drafted.rounds], 0.013),),
    )


def _rounds(pieces: Sequence[str], rng: Random) -> list[list[str]]:
    rounds, at = [[pieces[0]]], 1
    while at < len(pieces):
        size = rng.choice((1, 2, 3, 4, 5, 6))
        rounds.append(list(pieces[at : at + size]))
        at += size
    return rounds


def _result(rounds: Sequence[Sequence[str]], drafter: str) -> GenerationResult:
    made = [
        Round(
            tokens=[7] * len(pieces),
            text="".join(pieces),
            num_drafted=6 if drafter != "plain" and n else 0,
            num_accepted=len(pieces) - 1,
            is_prefill=not n,
        )
        for n, pieces in enumerate(rounds)
    ]
    return GenerationResult(
        text="".join(r.text for r in made),
        token_ids=[t for r in made for t in r.tokens],
        finish_reason="eos",
        prompt_tokens=300,
        image_tokens=280,
        prefill=made[0],
        rounds=made[1:],
        drafter=drafter,
        target="demo",
    )


def _told(
    result: GenerationResult, pieces: Sequence[str], sample: Sample, rng: Random, looks: bool
) -> list[Told]:
    told = []
    left = iter(pieces)
    regions = _regions(sample)
    for number, decided in enumerate([result.prefill, *result.rounds]):
        for k in range(len(decided.tokens)):
            is_drafted = k < decided.num_accepted
            look = []
            if is_drafted and looks:
                centre = rng.randrange(len(regions) - 6)
                look = [(centre + n, rng.random() / (1 + n)) for n in range(5)]
            told.append(Told(text=next(left), is_drafted=is_drafted, round=number, look=look))
    return told


def _regions(sample: Sample) -> list[Region]:
    columns, rows = sample.image.width // 12, sample.image.height // 12
    return [
        Region(0, (c / columns, r / rows, (c + 1) / columns, (r + 1) / rows))
        for r in range(rows)
        for c in range(columns)
    ]


def _timing(rounds: Sequence[Sequence[object]], seconds: float) -> Timing:
    arrivals = [0.0] * len(rounds[0])
    for n, pieces in enumerate(rounds[1:], start=1):
        arrivals += [n * seconds] * len(pieces)
    return Timing(arrivals=tuple(arrivals), wall_seconds=arrivals[-1], cpu_seconds=arrivals[-1])
