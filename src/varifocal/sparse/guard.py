"""Guesses only as long as steps with them are measured to be no slower than plain ones.

A profile is measured once, and what else the machine has to do changes. So some steps with guesses
are held against some without, now and then; where they lose, steps are plain ones for a while, and
for longer each time.
"""

from statistics import median

from jaxtyping import Bool, Float
from torch import Tensor

from varifocal.sparse.speculation import Speculation


class GuardedSpeculation(Speculation):
    """Another's number of guesses, or none after a lost trial.

    A trial is TRIED steps with guesses and as many without, of every layer; the medians decide for
    all layers, which are alike. One is held at the beginning and every PERIOD steps, and behind
    each pause. Pauses are PERIOD steps, twice as long after each loss up to LONGEST.
    """

    TRIED, PERIOD, LONGEST = 4, 128, 2048

    def __init__(self, inner: Speculation, num_layers: int) -> None:
        self._inner = inner
        self._steps = [0] * num_layers  # that the other would guess in
        self._begin = 0  # the step before the trial that is held or comes next
        self._is_paused = False  # until then
        self._pause = self.PERIOD
        self._with: list[float] = []  # seconds of the trial's steps
        self._without: list[float] = []

    def guesses(self, layer: int, units: int, kept: int, chosen: int) -> int | None:
        """The other's answer, but in the second half of a trial and in pauses."""
        answer = self._inner.guesses(layer, units, kept, chosen)
        if answer is None:
            return None
        self._steps[layer] += 1
        if self._steps[layer] - self._begin > 2 * self.TRIED:
            self._decide(self._steps[layer])
        turn = self._steps[layer] - self._begin
        is_plain = turn > self.TRIED if turn >= 1 else self._is_paused
        return None if is_plain else answer

    def _decide(self, step: int) -> None:
        """Hold the halves of a trial against each other, and say when the next one begins."""
        has_both = bool(self._with and self._without)
        self._is_paused = has_both and median(self._with) > median(self._without)
        if self._is_paused:
            self._begin = step - 1 + self._pause
            self._pause = min(2 * self._pause, self.LONGEST)
        else:
            self._begin, self._pause = step - 1 + self.PERIOD, self.PERIOD
        self._with, self._without = [], []

    def took(self, layer: int, seconds: float, *, is_guessing: bool) -> None:
        """Counts while a trial is held."""
        self._inner.took(layer, seconds, is_guessing=is_guessing)
        if 1 <= self._steps[layer] - self._begin <= 2 * self.TRIED:
            (self._with if is_guessing else self._without).append(seconds)

    def is_watching(self, layer: int) -> bool:
        """As the other; in pauses there is nothing to learn for."""
        return self._inner.is_watching(layer)

    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """The other learns."""
        self._inner.learn(layer, ranking, chosen)
