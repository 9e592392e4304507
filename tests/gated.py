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


def steady(gate: str | Gate) -> str | Gate:
    """With the thresholds that these scripts are written for, whatever is chosen as the default."""
    if not isinstance(gate, str) or gate.partition(":")[0] not in ("cvc", "bwec", "latch"):
        return gate
    name, *options = gate.split(":")
    given = {option.partition("=")[0] for option in options}
    fixed = {"tau": "0.9", "unit": "steps", "tau_b": "0.95", "tau_lo": "0.9", "w_b": "1"}
    rules = {"cvc": ("tau", "unit"), "bwec": ("tau_b", "tau_lo", "w_b")}
    own = {key: fixed[key] for key in rules.get(name, tuple(fixed))}
    return ":".join(
        [name, *options, *(f"{k}={value}" for k, value in own.items() if k not in given)]
    )


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
        gate=steady(gate),
    )
    for _ in decoding:
        pass
    (result,) = decoding.results()
    assert MASK not in result.token_ids
    return result


def exit_of(texts: Sequence[str], gate: str) -> int | None:
    return run(scripted(*(told(text) for text in texts)), gate).exit_step
