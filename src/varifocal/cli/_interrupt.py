"""Ctrl-C and its like, answered where the work can be put down whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Interrupt:
    """What a user or the system asked for; the work looks at `is_asked` where it can stop."""

    is_asked: bool = False
    can_wait: bool = False  # False: the work does not look yet, so the first one stops it too
    number: int = signal.SIGINT  # which signal it was

    @property
    def exit_code(self) -> int:
        """What a shell expects of a program that this signal ended."""
        return 128 + self.number

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """The signal's handler. A second signal does not wait."""
        is_second, self.is_asked, self.number = self.is_asked, True, number
        if is_second or not self.can_wait:
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(self.exit_code)


@contextmanager
def interruptible(*numbers: signal.Signals, can_wait: bool = False) -> Iterator[Interrupt]:
    """Take over these signals for a while (SIGINT if none is named).

    Only the main thread can; a signal that is ignored stays so, as nohup wants it.
    """
    interrupt = Interrupt(can_wait=can_wait)
    before = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in numbers or (signal.SIGINT,):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):
                    before[number] = signal.signal(number, interrupt)
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
