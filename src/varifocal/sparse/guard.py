"""Guesses only as long as steps with them are measured to be no slower than plain ones.

A profile is measured once, and what else the machine has to do changes. So some steps with guesses
are held against some without, now and then; where they lose, steps are plain ones for a while, and
for longer each time.
"""

from statistics import median

from jaxtyping import Bool, Float
from torch import Tensor

from varifocal.sparse.speculation import Sizes, Speculation


class GuardedSpeculation(Speculation):
    """Another's number of guesses, or none after a lost trial.

    A trial is TRIED steps without guesses, of which the last is learned from, and up to as many
    with, of every layer; the medians decide for all layers, which are alike. A trial that is
    clearly lost, by more than CLEARLY, ends with its first guesses: they are what trials cost. One
    is held at the beginning and every PERIOD steps, and behind each pause. Pauses are PERIOD steps,
    twice as long after each loss up to LONGEST.
    """

    TRIED, PERIOD, LONGEST, CLEARLY = 3, 128, 2048, 1.1

    def __init__(self, inner: Speculation, num_layers: int) -> None:
        self._inner = inner
        self._steps = [0] * num_layers  # that the other would guess in
        self._would_guess = [False] * num_layers  # whether it would in the last one
        self._begin = 0  # the step before the trial that is held or comes next
        self._is_paused = False  # until then
        self._pause = self.PERIOD
        self._with: list[float] = []  # seconds of the trial's steps
        self._without: list[float] = []

    def guesses(self, layer: int, sizes: Sizes) -> int | None:
        """The other's answer, but in the first half of a trial and in pauses."""
        answer = self._inner.guesses(layer, sizes)
        self._would_guess[layer] = answer is not None
        if answer is None:
            return None
        self._steps[layer] += 1
        turn = self._turn(layer)
        if turn > 2 * self.TRIED or (turn > self.TRIED + 1 and self._is_lost(self.CLEARLY)):
            self._decide(self._steps[layer])
            turn = self._turn(layer)
        is_plain = turn <= self.TRIED if turn >= 1 else self._is_paused
        return None if is_plain else answer

    def rest(self, layer: int) -> int:
        """The other's rest, or what is left of a pause."""
        if not self._would_guess[layer]:
            return self._inner.rest(layer)
        steps = max(0, -self._turn(layer)) if self._is_paused else 0
        self._steps[layer] += steps
        self._inner.skip(layer, steps)
        return steps

    def skip(self, layer: int, steps: int) -> None:
        """The other takes note; here only steps count in which it would guess."""
        self._inner.skip(layer, steps)

    def _turn(self, layer: int) -> int:
        """Which step of a trial this is, from 1; 0 and less before it."""
        return self._steps[layer] - self._begin

    def _is_lost(self, margin: float = 1.0) -> bool:
        has_both = bool(self._with and self._without)
        return has_both and median(self._with) > margin * median(self._without)

    def _decide(self, step: int) -> None:
        """Hold the halves of a trial against each other, and say when the next one begins."""
        self._is_paused = self._is_lost()
        if self._is_paused:
            self._begin = step - 1 + self._pause
            self._pause = min(2 * self._pause, self.LONGEST)
        else:
            self._begin, self._pause = step - 1 + self.PERIOD, self.PERIOD
        self._with, self._without = [], []

    def took(self, layer: int, seconds: float, *, is_guessing: bool) -> None:
        """Counts while a trial is held."""
        self._inner.took(layer, seconds, is_guessing=is_guessing)
        if 1 <= self._turn(layer) <= 2 * self.TRIED and self._turn(layer) != self.TRIED:
            (self._with if is_guessing else self._without).append(seconds)

    def is_watching(self, layer: int) -> bool:
        """As the other, and before guesses are tried; in pauses there is nothing to learn for."""
        return self._inner.is_watching(layer) or self._turn(layer) == self.TRIED

    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """The other learns."""
        self._inner.learn(layer, ranking, chosen)
