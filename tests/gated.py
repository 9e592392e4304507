"""One scripted row on a canvas of twenty, and where a gate stops it."""

from collections.abc import Sequence

from tabled import MASK, Law, Tabled, ids_of, scripted

from varifocal.diffusion.decode import Decoding
from varifocal.diffusion.gate import Gate
from varifocal.diffusion.result import DiffusionResult
from varifocal.diffusion.schedule import Plan

CANVAS = 20
# The tail is surer than the answer, so that commits stay away from it for a dozen steps.
HIGH, TAIL = 0.95, 0.99
A, B, NONE, OPEN = "#### 7$", "#### 8$", "nothing", "#### 77"


def told(text: str, confidence: float = HIGH) -> tuple[str, list[float]]:
    """A provisional text, filled up with ends."""
    rest = CANVAS - len(text)
    return text + "$" * rest, [confidence] * len(text) + [TAIL] * rest


def run(
    law: Law,
    gate: str | Gate,
    *,
    format: str | None = "number_hash",
    **plan,
) -> DiffusionResult:
    decoding = Decoding(
        Tabled(law),
        [ids_of("?")],
        format=format,
        plan=Plan(**{"canvas": CANVAS, "block": CANVAS} | plan),
        gate=gate,
    )
    for _ in decoding:
        pass
    (result,) = decoding.results()
    assert MASK not in result.token_ids
    return result


def exit_of(texts: Sequence[str], gate: str) -> int | None:
    return run(scripted(*(told(text) for text in texts)), gate).exit_step
