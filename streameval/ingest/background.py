"""Slow calls made beside the loop, so that a poll returns in time while a broker does not answer.

What connections hang on: cut it from any thread, and nobody waits for them any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class Background(Generic[T]):
    """One call in a thread of its own; the thread does not keep the program alive.

    >>> Background(lambda: 6 * 7).result(timeout=60.0)
    42
    """

    def __init__(self, call: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(call,), name="streameval-background", daemon=True).start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._future.set_result(call())
        except Exception as error:  # noqa: BLE001 - not swallowed: whoever asks for the result gets it
            self._future.set_exception(error)

    def result(self, timeout: float) -> T | None:
        """The value, or None when there is none after `timeout` seconds; what the call raised is raised here."""
        try:
            return self._future.result(timeout)
        except TimeoutError:
            if self._future.done():
                raise
            return None


class Closable(Protocol):
    """A connection; closing it a second time does no harm."""

    def close(self) -> None: ...


class ConnectionGroup:
    """Holds connections until it is cut, which closes them, and those that come later at once.

    Whoever waits for an answer of one of them, in another thread, then gets an error instead of it.
    """

    def __init__(self) -> None:
        self._held: WeakSet[Closable] = WeakSet()
        self._is_cut = False
        self._lock = threading.Lock()

    def hold(self, connection: Closable) -> None:
        """Close this one when the line is cut, unless it is gone by then."""
        with self._lock:
            self._held.add(connection)
            too_late = self._is_cut
        if too_late:
            connection.close()

    def cut(self) -> None:
        """Close all connections."""
        with self._lock:
            self._is_cut = True
            held = list(self._held)
        for connection in held:
            connection.close()
