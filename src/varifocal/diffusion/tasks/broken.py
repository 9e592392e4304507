"""Outputs whose format is broken, so that no parser finds an answer: decoding runs to its end."""

from random import Random

from varifocal.diffusion.tasks._task import LABELS, Task


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    r"""`broken: a12 b47` asks for ` a12 b47 \boxed{12`: the brace is never closed."""
    values = [f"{rng.randrange(100):02}" for _ in range(size)]
    keys = rng.sample(LABELS, len(values))
    listed = " ".join(key + value for key, value in zip(keys, values, strict=True))
    return f"broken: {listed}\n", f" {listed} \\boxed{{{values[0]}", ""


TASK = Task(
    name="broken",
    format="boxed",
    regime="long",
    canvas=128,
    sizes=(5, 12),
    write=_write,
    is_scored=False,
)
