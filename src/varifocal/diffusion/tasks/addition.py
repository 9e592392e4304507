"""Addition of long numbers, digit by digit from the right, with the carries written out."""

from random import Random

from varifocal.diffusion.tasks._task import LABELS, Task


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    """`add: a4+3 b8+9` (48 + 39) asks for ` b8+9=17 a4+3=08 The answer is 87.`

    A place's sum has the carry of the one before it in it; the number has no more digits than its
    summands.
    """
    while True:
        first = [rng.randrange(10) for _ in range(size)]
        second = [rng.randrange(10) for _ in range(size)]
        if first[0] + second[0] <= 8 and first[0] + second[0] > 0:
            break
    steps, digits, carry = "", "", 0
    for place in reversed(range(size)):
        total = first[place] + second[place] + carry
        steps += f" {LABELS[place]}{first[place]}+{second[place]}={total:02}"
        digits, carry = f"{total % 10}{digits}", total // 10
    places = zip(LABELS, first, second, strict=False)
    asked = " ".join(f"{label}{a}+{b}" for label, a, b in places)
    return f"add: {asked}\n", f"{steps} The answer is {digits}.", digits


TASK = Task(
    name="addition", format="number_phrase", regime="long", canvas=128, sizes=(4, 7), write=_write
)
