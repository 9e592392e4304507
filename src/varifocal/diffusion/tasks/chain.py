"""A running sum of random length: the answer and its place come out of the steps before it."""

from random import Random

from varifocal.diffusion.tasks._task import LABELS, Task


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    """`chain: a3 b1 c9` asks for ` a3=03 b1=04 c9=13 #### 13`.

    Every sum needs the one before it, so that no partial canvas gives the answer away.
    """
    while True:
        summands = [rng.randrange(10) for _ in range(size)]
        if sum(summands) < 100:
            break
    steps, so_far = "", 0
    for label, summand in zip(LABELS, summands, strict=False):
        so_far += summand
        steps += f" {label}{summand}={so_far:02}"
    asked = " ".join(f"{label}{n}" for label, n in zip(LABELS, summands, strict=False))
    return f"chain: {asked}\n", f"{steps} #### {so_far:02}", f"{so_far:02}"


TASK = Task(
    name="chain", format="number_hash", regime="long", canvas=128, sizes=(6, 16), write=_write
)
