"""Yes or no: is the first number larger?"""

from random import Random

from varifocal.diffusion.tasks._task import Task


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    """`compare: 471 > 439 ?` asks for `yes`."""
    while True:
        first, second = rng.randrange(10**size), rng.randrange(10**size)
        if rng.random() < 0.3:  # close enough that the first digits do not decide
            leading = 10 ** (size - 1)
            second = first // leading * leading + second % leading
        if first != second:
            break
    word = "yes" if first > second else "no"
    return f"compare: {first:0{size}} > {second:0{size}} ?\n", word, word


TASK = Task(name="compare", format="yes_no", regime="short", canvas=64, sizes=(3, 3), write=_write)
