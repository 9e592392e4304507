"""How much to speculate: never more than fits under the measured time of selection. [PRR]"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.errors import BadOption
from varifocal.sparse.phases import SHARES, PhaseTimes

NOWHERE = 1 << 30  # the place of a unit that is not ranked


class Sizes:
    """Units that a step has to do with; counted when somebody asks, which in pauses nobody does."""

    def __init__(self, count: Callable[[], tuple[int, int, int]]) -> None:
        self._count = count

    @cached_property
    def all(self) -> tuple[int, int, int]:
        """In the cache; kept; and chosen beside these."""
        return self._count()


class Speculation(ABC):
    """Chooses how many units to guess in a step."""

    @abstractmethod
    def guesses(self, layer: int, sizes: Sizes) -> int | None:
        """How many; None: not even the kept ones are attended early."""

    @abstractmethod
    def is_watching(self, layer: int) -> bool:
        """Whether a step without guesses should be learned from as well."""

    def rest(self, layer: int) -> int:
        """How many steps from here on are plain ones, come what may: nobody asks about them."""
        return 0

    def skip(self, layer: int, steps: int) -> None:
        """Take note of so many steps that are not asked about."""
        return

    @abstractmethod
    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """Take note of what was chosen and how the predictor had ranked it (zero: not at all)."""

    @abstractmethod
    def took(self, layer: int, seconds: float, *, is_guessing: bool) -> None:
        """Take note of what a step took, with guesses or without."""


class NoSpeculation(Speculation):
    """None at all: the steps are plain ones, and nothing is learned."""

    def guesses(self, layer: int, sizes: Sizes) -> int | None:
        """Not even what is kept."""
        return None

    def is_watching(self, layer: int) -> bool:
        """Never."""
        return False

    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """Nothing to learn."""

    def took(self, layer: int, seconds: float, *, is_guessing: bool) -> None:
        """Nothing changes."""


class OnlyWatching(NoSpeculation):
    """None at all, but every step is learned from: to see how often guesses would be right."""

    def is_watching(self, layer: int) -> bool:
        """Always."""
        return True


class FixedSpeculation(Speculation):
    """A fixed multiple of the units that selection chooses."""

    def __init__(self, share: float = 1.0) -> None:
        if share < 0:
            raise BadOption(f"the share of guesses cannot be negative, got {share}")
        if not math.isfinite(share):
            raise BadOption(f"the share of guesses must be a number such as 1.5, got {share}")
        self._share = share

    def guesses(self, layer: int, sizes: Sizes) -> int | None:
        """The share of the chosen ones, rounded down."""
        _, _, chosen = sizes.all
        return int(self._share * chosen)

    def is_watching(self, layer: int) -> bool:
        """There are no steps without guesses."""
        return True

    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """Nothing to learn."""

    def took(self, layer: int, seconds: float, *, is_guessing: bool) -> None:
        """Nothing changes."""


class ProfiledSpeculation(Speculation):
    """The fastest number by the measured times and the running hit rates; none where none pays.

    Hit rates are counted for every share at once. Where nothing pays, steps are plain ones but for
    the first WATCHED of every PERIOD, which are learned from: so a text whose choices become
    predictable is noticed, and the others pay for it less than the promised 2 %.
    """

    GAIN = 0.02  # of the plain step: less is not worth the risk
    MEMORY = 0.98  # how a step's weight in the running rates decays with each later step
    PERIOD, WATCHED = 128, 2
    OFTEN = 16  # steps between two choices, once there is some experience

    def __init__(self, times: PhaseTimes, num_layers: int) -> None:
        self._times = times
        self._hits = [[0.0] * len(SHARES) for _ in range(num_layers)]
        self._chosen = [0.0] * num_layers
        self._steps = [0] * num_layers  # asked about so far
        self._idle = [0] * num_layers  # the last of them, without guesses
        self._learned = [0] * num_layers  # the number of steps when one was last learned from
        self._asked: list[tuple[int, int, int] | None] = [None] * num_layers
        self._answer: list[int | None] = [None] * num_layers  # to what was asked last

    def guesses(self, layer: int, sizes: Sizes) -> int | None:
        """The fastest number that ends before selection does."""
        self._steps[layer] += 1
        if self._is_due(layer, sizes):
            found = self._times.fastest(*sizes.all, self.rates(layer), gain=self.GAIN)
            self._answer[layer] = found[0] if found else None
            self._asked[layer] = sizes.all
        answer = self._answer[layer]
        self._idle[layer] = 0 if answer is not None else self._idle[layer] + 1
        return answer

    def _is_due(self, layer: int, sizes: Sizes) -> bool:
        """Weighing takes a while, so it is done where something may have changed."""
        if self._idle[layer]:
            return self._idle[layer] % self.PERIOD <= self.WATCHED
        step = self._steps[layer]
        is_often = step <= self.OFTEN or step % self.OFTEN == 0
        return is_often or sizes.all != self._asked[layer]

    def is_watching(self, layer: int) -> bool:
        """At the beginning of every period."""
        return 1 <= self._idle[layer] % self.PERIOD <= self.WATCHED

    def rest(self, layer: int) -> int:
        """Up to the end of the period, once nothing paid and all that is watched was."""
        within = self._idle[layer] % self.PERIOD
        steps = self.PERIOD - within if within > self.WATCHED else 0
        self._idle[layer] += steps
        self.skip(layer, steps)
        return steps

    def skip(self, layer: int, steps: int) -> None:
        """They were steps as well."""
        self._steps[layer] += steps

    def learn(
        self, layer: int, ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]
    ) -> None:
        """Count the hits that each share of guesses would have had.

        A predictor that did not see the step before this one is not judged by this one.
        """
        missed = self._steps[layer] - self._learned[layer]
        self._learned[layer] = self._steps[layer]
        decay = self.MEMORY ** max(1, missed)
        hits, wanted = [0] * len(SHARES), 0
        if missed <= 1:
            hits, wanted = _hits(ranking, chosen), int(chosen.sum())
        old = self._hits[layer]
        self._hits[layer] = [decay * o + n for o, n in zip(old, hits, strict=True)]
        self._chosen[layer] = decay * self._chosen[layer] + wanted

    def took(self, layer: int, seconds: float, *, is_guessing: bool) -> None:
        """The profile stands; `GuardedSpeculation` doubts it."""

    def rates(self, layer: int) -> list[float]:
        """Running hit rate for each of SHARES; zero before anything was chosen."""
        return [hits / max(self._chosen[layer], 1.0) for hits in self._hits[layer]]


def places(ranking: Float[Tensor, "Q H U"]) -> Int64[Tensor, "Q H U"]:
    """Which place each unit has in a ranking, from 0; those of weight zero come behind all."""
    order = ranking.sort(dim=-1, descending=True, stable=True).indices
    numbers = torch.arange(ranking.shape[-1], device=ranking.device).expand_as(order)
    place = torch.empty_like(order).scatter(-1, order, numbers)
    return place.masked_fill(ranking <= 0, NOWHERE)


def _hits(ranking: Float[Tensor, "Q H U"], chosen: Bool[Tensor, "Q H U"]) -> list[int]:
    """How many of the chosen units were among the best ranked, for each of SHARES."""
    wanted = int(chosen.sum(-1).max()) if chosen.numel() else 0
    limits = torch.tensor([int(share * wanted) for share in SHARES], device=ranking.device)
    return (places(ranking)[chosen][:, None] < limits).sum(0).tolist()
