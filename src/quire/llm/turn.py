"""One iteration of the engine: no other thread runs it at the same time, and Ctrl-C does not interrupt it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def whole_turn(lock: threading.Lock) -> Iterator[None]:
    """Holds the lock. Ctrl-C in the middle would leave the engine's state inconsistent, so it is raised at the end.
    Only the main thread gets signals, and a handler that is not Python's is left alone."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is None:
        with lock:
            yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        with lock:
            yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)
