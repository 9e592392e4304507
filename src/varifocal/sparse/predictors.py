"""Which units the next query will choose: guesses from what earlier queries chose.

Letters: Q queries, H KV heads, U units. A guess costs time if wrong, and can never change a result.

Weights rank units: the greater, the likelier; zero means never. Kept units are no guess (they are
chosen for sure), so choices come here without them. A predictor holds the state of the rows decoded
together, and of nothing else.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from varifocal.errors import BadOption
from varifocal.sparse.blocks import CacheShape

_LEAST = 1e-6  # the weight of the worst unit that might be chosen; zero means never


class Predictor(ABC):
    """Ranks units for queries, learns from what was chosen."""

    name: str  # as it was asked for
    sees_the_choice: ClassVar[bool] = False  # observes before it is asked, as only an oracle can

    @abstractmethod
    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        """For the rows of a cache of this shape."""

    @abstractmethod
    def weights(self, layer: int, rows: Int64[Tensor, " Q"], units: int) -> Float[Tensor, "Q H U"]:
        """How likely each of the first `units` units is, for a query of each of these rows."""

    @abstractmethod
    def observe(
        self,
        layer: int,
        rows: Int64[Tensor, " Q"],
        chosen: Bool[Tensor, "Q H U"],
        scores: Float[Tensor, "Q H U"],
        is_free: Bool[Tensor, "Q U"],
    ) -> None:
        """What these queries chose among the units left to choose, and by which scores."""

    @abstractmethod
    def forget(self, row: int, units: int) -> None:
        """Rejected tokens: a row now has only so many units."""


class _Table:
    """A number for every layer, row, head and unit; grows with the units."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        sizes = (shape.num_layers, shape.num_rows, shape.kv_heads, 0)
        self._numbers = torch.zeros(sizes, device=device)
        # Units that were ever free to choose. One that becomes so was among the newest, which are
        # kept: it enters as the best.
        self._known = torch.zeros(*sizes[:2], 0, dtype=torch.bool, device=device)

    def layer(self, layer: int, units: int) -> Float[Tensor, "R H U"]:
        """A view of one layer's first `units` units."""
        lacking = units - self._numbers.shape[-1]
        if lacking > 0:
            more = max(lacking, self._numbers.shape[-1], 16)
            self._numbers = torch.nn.functional.pad(self._numbers, (0, more))
            self._known = torch.nn.functional.pad(self._known, (0, more))
        return self._numbers[layer, :, :, :units]

    def greet(self, layer: int, rows: Int64[Tensor, " Q"], is_free: Bool[Tensor, "Q U"]) -> None:
        """Give units that are free for the first time the greatest number of their row and head."""
        numbers = self.layer(layer, is_free.shape[-1])
        known = self._known[layer, :, : is_free.shape[-1]]
        here, is_new = numbers[rows], (is_free & ~known[rows])[:, None]
        numbers[rows] = torch.where(is_new, here.amax(-1, keepdim=True), here)
        known[rows] |= is_free

    def cut(self, row: int, units: int) -> None:
        """Zero for the units after so many, which are new when they come again."""
        self._numbers[:, row, :, units:] = 0
        self._known[:, row, units:] = False


class _Remembering(Predictor):
    """Predictors whose state is a table of numbers: nothing is known before the first choice."""

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        self._table = _Table(shape, device)

    def weights(self, layer: int, rows: Int64[Tensor, " Q"], units: int) -> Float[Tensor, "Q H U"]:
        """The row's numbers."""
        return self._table.layer(layer, units)[rows]

    def observe(
        self,
        layer: int,
        rows: Int64[Tensor, " Q"],
        chosen: Bool[Tensor, "Q H U"],
        scores: Float[Tensor, "Q H U"],
        is_free: Bool[Tensor, "Q U"],
    ) -> None:
        """Query after query, where several are of one row."""
        news = self._news(chosen, scores, is_free)
        numbers = self._table.layer(layer, chosen.shape[-1])
        for turn in _turns(rows.tolist()):
            at = rows[turn]
            self._table.greet(layer, at, is_free[turn])
            numbers[at] = self._blend(numbers[at], news[turn])

    def forget(self, row: int, units: int) -> None:
        """Its units after so many."""
        self._table.cut(row, units)

    def _news(self, chosen: Tensor, scores: Tensor, is_free: Tensor) -> Float[Tensor, "Q H U"]:
        """What a choice says about each unit: one if chosen."""
        return chosen.float()

    @abstractmethod
    def _blend(self, old: Tensor, new: Tensor) -> Tensor:
        """The numbers after the news."""


class Nothing(Predictor):
    """No guess: everything is computed after selection, as without PRR."""

    name = "none"

    def __init__(self, shape: CacheShape, device: torch.device) -> None:
        self._heads, self._device = shape.kv_heads, device

    def weights(self, layer: int, rows: Int64[Tensor, " Q"], units: int) -> Float[Tensor, "Q H U"]:
        """Zeros."""
        return torch.zeros(len(rows), self._heads, units, device=self._device)

    def observe(
        self,
        layer: int,
        rows: Int64[Tensor, " Q"],
        chosen: Bool[Tensor, "Q H U"],
        scores: Float[Tensor, "Q H U"],
        is_free: Bool[Tensor, "Q U"],
    ) -> None:
        """Nothing to learn."""

    def forget(self, row: int, units: int) -> None:
        """Nothing to forget."""


class Last(_Remembering):
    """What the row's last query chose: the baseline of every predictor."""

    name = "last"

    def _blend(self, old: Tensor, new: Tensor) -> Tensor:
        return new


class Oracle(Last):
    """What this query chooses: no predictor can be better. For bounds, not for speed."""

    name = "oracle"
    sees_the_choice = True


class Average(_Remembering):
    """e <- beta e + (1 - beta) z, where z is one for chosen units. [PRR: the EMA predictor]

    At beta <= 1/2 the last choice outweighs all earlier ones together: as many guesses as were
    chosen are then those of `last`, and only further guesses differ. The paper's beta is not known;
    this one was the best of several on real text (benchmarks/README.md).
    """

    name = "ema"
    BETA: ClassVar[float] = 0.7

    def __init__(
        self, shape: CacheShape, device: torch.device, *, beta: float | None = None
    ) -> None:
        super().__init__(shape, device)
        self._beta = self.BETA if beta is None else beta
        if not 0 <= self._beta < 1:
            raise BadOption(f"beta must lie in [0, 1), got {beta}; 0 forgets all but the last")

    def _blend(self, old: Tensor, new: Tensor) -> Tensor:
        return self._beta * old + (1 - self._beta) * new


class ScoreAverage(Average):
    """The same with z the score, scaled to lie between 0 and 1: it knows the runners-up.

    A softmax would ask for a temperature: Quest's bounds are logits in the hundreds, InfLLM's
    scores are probabilities already.
    """

    name = "ema_score"
    BETA = 0.5

    def _news(self, chosen: Tensor, scores: Tensor, is_free: Tensor) -> Float[Tensor, "Q H U"]:
        limits = torch.finfo(torch.float32)
        logits = scores.float().nan_to_num(nan=limits.min, neginf=limits.min)
        is_free = is_free[:, None].expand_as(logits) & (logits > limits.min)
        lowest = logits.masked_fill(~is_free, torch.inf).amin(-1, keepdim=True)
        highest = logits.masked_fill(~is_free, -torch.inf).amax(-1, keepdim=True)
        extent = (highest - lowest).clamp(min=limits.tiny)
        return (_LEAST + (logits - lowest) / extent).masked_fill(~is_free, 0)


class Static(_Remembering):
    """What was chosen most often so far."""

    name = "static"

    def _blend(self, old: Tensor, new: Tensor) -> Tensor:
        return old + new


class CrossLayer(Last):
    """What the layer below chose in this step; in the first layer, what it chose last."""

    name = "cross_layer"

    def weights(self, layer: int, rows: Int64[Tensor, " Q"], units: int) -> Float[Tensor, "Q H U"]:
        """The numbers of the layer below."""
        return super().weights(max(layer - 1, 0), rows, units)


PREDICTORS: dict[str, type[Predictor]] = {
    cls.name: cls for cls in (Nothing, Last, Average, ScoreAverage, CrossLayer, Static, Oracle)
}


def load_predictor(name: str, shape: CacheShape, device: torch.device) -> Predictor:
    """A predictor by name, with no memory yet; averages take a beta, as in `ema:beta=0.8`."""
    kind, beta = split_name(name)
    made = PREDICTORS[kind]
    predictor = made(shape, device)
    if beta is not None:
        assert issubclass(made, Average)
        predictor = made(shape, device, beta=beta)
        predictor.name = name
    return predictor


def split_name(name: str) -> tuple[str, float | None]:
    """The predictor that is meant, and the beta that was given. Raises BadOption."""
    kind, colon, option = name.partition(":")
    if kind not in PREDICTORS:
        raise BadOption(f"no predictor {kind!r}; there are {', '.join(PREDICTORS)}")
    if not colon:
        return kind, None
    key, _, value = option.partition("=")
    try:
        beta = float(value)
    except ValueError:
        beta = -1.0
    if key != "beta" or not issubclass(PREDICTORS[kind], Average) or not 0 <= beta < 1:
        takes = [n for n, cls in PREDICTORS.items() if issubclass(cls, Average)]
        raise BadOption(
            f"the predictor {name!r} is not understood: {' and '.join(takes)} take "
            "beta=NUMBER in [0, 1), as in ema:beta=0.8; others take nothing"
        )
    return kind, beta


def _turns(rows: Sequence[int]) -> list[list[int]]:
    """Indices of queries such that no turn has two of one row, each row's in their order."""
    turns: list[list[int]] = []
    seen: dict[int, int] = {}
    for query, row in enumerate(rows):
        turn = seen[row] = seen.get(row, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(query)
    return turns
