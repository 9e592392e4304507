"""A running maximum whose lines hold answers that do not count: only the last one does."""

from random import Random

from varifocal.diffusion.tasks._task import LABELS, Task


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    """`largest: a12 b47 c30` asks for a guess, a line `b47 # 47` a number, and the true answer.

    The guess has the very form of the answer, and `# 47` that of another format's.
    """
    # No two share their first digit, which tells the larger one then.
    values = [10 * tens + rng.randrange(10) for tens in rng.sample(range(10), size)]
    pairs = list(zip(LABELS, values, strict=False))
    asked = " ".join(f"{label}{value:02}" for label, value in pairs)
    lines, largest = f" \\boxed{{{values[0]:02}}} ?\n", values[0]
    for label, value in pairs:
        largest = max(largest, value)
        lines += f" {label}{value:02} # {largest:02}\n"
    return f"largest: {asked}\n", f"{lines} \\boxed{{{largest:02}}}", f"{largest:02}"


TASK = Task(
    name="distractor", format="boxed", regime="long", canvas=128, sizes=(4, 9), write=_write
)
