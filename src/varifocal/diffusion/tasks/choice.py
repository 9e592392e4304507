"""Multiple choice: the commonest of three symbols, or whether a number is even; one letter."""

from random import Random

from varifocal.diffusion.tasks._task import Task

_SYMBOLS = "xyz"
_LEAD = 2  # by how much the commonest symbol leads


def _write(rng: Random, size: int) -> tuple[str, str, str]:
    return _majority(rng, size) if rng.random() < 0.6 else _parity(rng)


def _majority(rng: Random, size: int) -> tuple[str, str, str]:
    """`choice: y x y y z most ? A z B y C x` asks for `B`."""
    while True:
        drawn = rng.choices(_SYMBOLS, k=max(size, _LEAD))
        counts = sorted(map(drawn.count, _SYMBOLS))
        if counts[2] - counts[1] >= _LEAD:
            break
    options = rng.sample(_SYMBOLS, 3)
    letter = "ABC"[options.index(max(_SYMBOLS, key=drawn.count))]
    listed = " ".join(f"{name} {symbol}" for name, symbol in zip("ABC", options, strict=True))
    return f"choice: {' '.join(drawn)} most ? {listed}\n", letter, letter


def _parity(rng: Random) -> tuple[str, str, str]:
    """`choice: 4073 is ? A odd B even` asks for `A`."""
    number = rng.randrange(100_000)
    options = rng.sample(("even", "odd"), 2)
    letter = "AB"[options.index(("even", "odd")[number % 2])]
    return f"choice: {number:05} is ? A {options[0]} B {options[1]}\n", letter, letter


TASK = Task(
    name="choice", format="mc_letter", regime="short", canvas=128, sizes=(7, 15), write=_write
)
