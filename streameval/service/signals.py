"""Signals of the daemon: SIGTERM and SIGINT stop it, SIGHUP reloads its configuration.

Only the main thread can handle signals; in other threads nothing changes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM or SIGINT calls `stop`, a second one ends the process at once."""
    asked = False

    def handle(number: int) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop()

    with _handling(handle, signal.SIGTERM, signal.SIGINT):
        yield


@contextmanager
def on_hangup(call: Callable[[], None]) -> Iterator[None]:
    """SIGHUP calls `call`; without this, it ends the process."""
    with _handling(lambda _: call(), signal.SIGHUP):
        yield


@contextmanager
def _handling(handle: Callable[[int], None], *numbers: signal.Signals) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    previous = {number: signal.signal(number, lambda number, _: handle(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
