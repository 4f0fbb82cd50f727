"""Signals of the daemon: SIGTERM and SIGINT stop it, SIGHUP reloads its configuration.

Only the main thread can handle signals; in other threads nothing changes.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM or SIGINT calls `stop`, a second one ends the process at once."""
    asked = False

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop()

    with _handling((signal.SIGTERM, signal.SIGINT), handle):
        yield


@contextmanager
def on_hangup(call: Callable[[], None] | None) -> Iterator[None]:
    """SIGHUP calls `call`; with None it ends the process, as by default."""
    with _handling(() if call is None else (signal.SIGHUP,), lambda *_: call and call()):
        yield


@contextmanager
def early_hangups() -> Iterator[EarlyHangups]:
    """Remember each SIGHUP that arrives before the loop runs; without this, it ends the process."""
    early = EarlyHangups()
    with on_hangup(early.note):
        yield early


class EarlyHangups:
    """SIGHUPs that arrive while the daemon starts."""

    def __init__(self) -> None:
        self._came = False
        self._call: Callable[[], None] | None = None

    def note(self) -> None:
        """One has arrived."""
        self._came = True
        if self._call is not None:
            self._call()

    def hand_to(self, call: Callable[[], None]) -> None:
        """Call this for each SIGHUP from now on, and at once if one has arrived."""
        self._call = call
        if self._came:
            call()


@contextmanager
def _handling(numbers: tuple[signal.Signals, ...], handle: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
