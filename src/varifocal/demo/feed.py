"""Draw training batches in a process of their own, ahead of the training that uses them."""

import multiprocessing
import queue as queues
from collections.abc import Callable, Iterator
from multiprocessing.queues import Queue
from typing import Generic, TypeVar

T = TypeVar("T")
AHEAD = 6  # batches drawn in advance


def _draw_forever(make: Callable[[int], tuple[T, int]], index: int, queue: "Queue[object]") -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    while True:
        item: object
        try:
            item = made = make(index)
            index = made[1]
        except Exception as error:  # the parent must learn of it, or it would wait for ever
            item = error
        while True:
            try:
                queue.put(item, timeout=5)
                break
            except queues.Full:
                if not parent.is_alive():  # training was killed, nobody will ever take it
                    queue.cancel_join_thread()
                    return
        if isinstance(item, Exception):
            return


class Feed(Generic[T]):
    """Batches of `make(index) -> (batch, next index)`, in order, drawn in the background.

    `make` is pickled into the process once, so it may keep state of its own there.
    """

    def __init__(self, make: Callable[[int], tuple[T, int]], index: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.index = index  # of the first picture not used yet: what a checkpoint must hold
        self._queue: Queue[object] = context.Queue(AHEAD)
        self._process = context.Process(
            target=_draw_forever, args=(make, index, self._queue), daemon=True
        )
        self._process.start()

    def __iter__(self) -> Iterator[T]:
        while True:
            item = self._queue.get()
            if isinstance(item, Exception):
                raise item
            assert isinstance(item, tuple)
            self.index = item[1]
            yield item[0]

    def close(self) -> None:
        """End the process. Batches drawn ahead are dropped."""
        self._process.terminate()
        self._process.join()
