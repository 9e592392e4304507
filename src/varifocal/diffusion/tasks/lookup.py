"""Key-value lookup: which number stands behind a key?"""

from random import Random

from varifocal.diffusion.tasks._task import LABELS, Task


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    """`lookup: k204 q955 b170 ;q` asks for ` q955 <answer>955</answer>`."""
    keys = rng.sample(LABELS, size)
    values = [f"{rng.randrange(1000):03}" for _ in keys]
    chosen = rng.randrange(len(keys))
    pairs = " ".join(key + value for key, value in zip(keys, values, strict=True))
    key, value = keys[chosen], values[chosen]
    return f"lookup: {pairs} ;{key}\n", f" {key}{value} <answer>{value}</answer>", value


TASK = Task(name="lookup", format="tag", regime="short", canvas=128, sizes=(4, 9), write=_write)
