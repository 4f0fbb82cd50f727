"""Slow calls made beside the loop, so that a poll returns in time while a broker does not answer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

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
