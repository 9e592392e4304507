"""Where the two halves of a step run: one after the other, or on two threads of the CPU. [PRR]

Selection reads keys' summaries, speculation reads keys and values, and neither writes. So they may
run side by side, and what comes out is the same. Learning from a choice may run behind the step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from varifocal.errors import BadRequest

Side = TypeVar("Side")
Here = TypeVar("Here")
Settle = Callable[[], None]  # waits for the work behind a step, and raises what it raised


class Queues(ABC):
    """Runs the parts of a step; holds nothing of a request, so several may share one."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(is_failing=error is not None)

    def close(self, *, is_failing: bool = False) -> None:
        """Nothing runs from here on. Unless something else failed, raises what nobody has seen."""
        return

    @abstractmethod
    def beside(self, side: Callable[[], Side], here: Callable[[], Here]) -> tuple[Side, Here]:
        """Both results. Neither part still runs when this returns or raises."""

    @abstractmethod
    def afterwards(self, work: Callable[[], None]) -> Settle:
        """Work that nobody waits for yet."""


class SingleQueue(Queues):
    """Everything in the caller's thread, one after the other."""

    def beside(self, side: Callable[[], Side], here: Callable[[], Here]) -> tuple[Side, Here]:
        """First what the caller would do, then the rest."""
        found = here()
        return side(), found

    def afterwards(self, work: Callable[[], None]) -> Settle:
        """At once."""
        work()
        return lambda: None


class TwoThreads(Queues):
    """The caller's thread and one more, for as long as it is open.

        with TwoThreads() as queues:
            cache = SparseCache(model, reach, queues=queues)
            model.generate(**inputs, cache=cache)

    torch lets go of Python's lock while it computes. Give each thread one of torch's with
    `torch.set_num_threads(1)`: with more, the two get in each other's way, though not in the way
    of the result.
    """

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, "varifocal-selection")
        self._unsettled: set[Future[None]] = set()

    def close(self, *, is_failing: bool = False) -> None:
        """End the second thread; raises what work behind a step raised, if nobody has seen it."""
        self._worker.shutdown()
        while self._unsettled and not is_failing:  # one failure is enough to tell
            self._unsettled.pop().result()

    def beside(self, side: Callable[[], Side], here: Callable[[], Here]) -> tuple[Side, Here]:
        """Side on the second thread. If both fail, its exception is the cause of the caller's."""
        future = self._submit(side)
        try:
            found = here()
            return future.result(), found
        except BaseException as error:
            other = future.exception()  # waits: from here on nobody reads the cache
            if other is not None and other is not error:
                raise error from other
            raise

    def afterwards(self, work: Callable[[], None]) -> Settle:
        """On the second thread, behind what it has to do already."""
        future = self._submit(work)
        self._unsettled.add(future)

        def settle() -> None:
            self._unsettled.discard(future)
            future.result()

        return settle

    def _submit(self, work: Callable[[], Any]) -> Future[Any]:
        """Whether gradients are recorded is a matter of each thread: there as here."""
        is_inference, has_gradients = torch.is_inference_mode_enabled(), torch.is_grad_enabled()

        def run() -> Any:
            with torch.inference_mode(is_inference), torch.set_grad_enabled(has_gradients):
                return work()

        try:
            return self._worker.submit(run)
        except RuntimeError as error:
            raise BadRequest(
                "the second thread of TwoThreads has ended: decode inside its `with`, or make a "
                "new one"
            ) from error
