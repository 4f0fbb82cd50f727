"""What connections hang on: cut it from any thread, and nobody waits for them any more."""

from __future__ import annotations

import threading
from typing import Protocol
from weakref import WeakSet


class Closable(Protocol):
    """A connection; closing it a second time does no harm."""

    def close(self) -> None: ...


class Lifeline:
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
