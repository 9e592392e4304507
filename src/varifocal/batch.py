"""Several requests decoded together: each joins as soon as there is room, and leaves at its end."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from varifocal.decode import Generation, advance
from varifocal.errors import BadOption, BatchFailed
from varifocal.result import GenerationResult, Round

A = TypeVar("A")


class Batch(Generic[A]):
    """Requests in a queue, of which `max_batch` at a time share every forward of the target.

    Iterate to decode them all: (number, round) as rounds are decided, numbers counting from 0 in
    the order of the requests. A server calls `add`, `step`, `cancel` and `take` instead, all from
    one thread. The failure of one request leaves the others as they are.

    What is asked is a generation, or anything that `begin` makes one of when its turn comes.
    """

    def __init__(
        self,
        begin: Callable[[A], Generation],
        asked: Iterable[A | Generation] = (),
        *,
        max_batch: int = 8,
    ) -> None:
        if not isinstance(max_batch, int) or isinstance(max_batch, bool) or max_batch < 1:
            raise BadOption(f"max_batch must be a count of requests from 1, got {max_batch!r}")
        self._begin, self._max_batch, self._num_asked = begin, max_batch, 0
        self._waiting: dict[int, A | Generation] = {}
        self._live: dict[int, Generation] = {}
        self._done: dict[int, GenerationResult | Exception] = {}
        for one in asked:
            self.add(one)

    def add(self, asked: A | Generation) -> int:
        """Let it wait for its turn; its number."""
        number = self._num_asked
        self._waiting[number] = asked
        self._num_asked += 1
        return number

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left to decode."""
        return not self._waiting and not self._live

    def step(self) -> list[tuple[int, Round | Exception]]:
        """Let requests join, then decode a round of each: what it decided, or why it failed.

        The first round of a request reads its prompt while the others wait.
        """
        outcomes = self._join()
        numbers = list(self._live)
        outcomes += zip(numbers, advance(list(self._live.values())), strict=True)
        for number, outcome in outcomes:
            if isinstance(outcome, Exception):
                self._live.pop(number, None)
                self._done[number] = outcome
            elif self._live[number].is_done:
                self._done[number] = self._live.pop(number).result()
        return outcomes

    def _join(self) -> list[tuple[int, Round | Exception]]:
        """The requests that could not even begin."""
        failed: list[tuple[int, Round | Exception]] = []
        while self._waiting and len(self._live) < self._max_batch:
            number = next(iter(self._waiting))
            asked = self._waiting.pop(number)
            try:
                self._live[number] = self._begun(asked)
            except Exception as error:  # kept as the outcome of this one
                failed.append((number, error))
        return failed

    def _begun(self, asked: A | Generation) -> Generation:
        return asked if isinstance(asked, Generation) else self._begin(asked)

    def cancel(self, number: int) -> None:
        """Decode no further round of it; its result has what was delivered. No effect at its end.

        One that waits is still encoded, as its result counts the tokens of the prompt. Raises
        LookupError for a number that `add` never gave.
        """
        self._check_known(number)
        if number in self._waiting:
            try:
                self._live[number] = self._begun(self._waiting.pop(number))
            except Exception as error:  # kept as the outcome of this one
                self._done[number] = error
        if number in self._live:
            generation = self._live.pop(number)
            generation.cancel()
            self._done[number] = generation.result()

    def take(self, number: int) -> GenerationResult:
        """The result of a request at its end, which is then forgotten; raises what it raised."""
        self._check_known(number)
        if number not in self._done:
            raise LookupError(f"request {number} is not at its end, or its result was taken")
        outcome = self._done.pop(number)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _check_known(self, number: int) -> None:
        if number not in range(self._num_asked):
            raise LookupError(
                f"there is no request {number!r}: {self._num_asked} were added, numbered from 0; "
                "give a number that add returned"
            )

    def __iter__(self) -> Iterator[tuple[int, Round]]:
        """All rounds to come. Raises BatchFailed at the end, if requests failed."""
        while not self.is_idle:
            for number, outcome in self.step():
                if isinstance(outcome, Round):
                    yield number, outcome
        self._raise_failed()

    def results(self) -> list[GenerationResult]:
        """Of all requests in their order; decodes what is left. Raises BatchFailed."""
        for _ in self:
            pass
        return [one for _, one in sorted(self._done.items()) if isinstance(one, GenerationResult)]

    def _raise_failed(self) -> None:
        outcomes = dict(sorted(self._done.items()))
        errors = {n: one for n, one in outcomes.items() if isinstance(one, Exception)}
        if errors:
            raise BatchFailed(errors, list(outcomes.values())) from next(iter(errors.values()))
