"""Slow work outside the loop, in threads that end with the program; connections that any thread can close."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import structlog

T = TypeVar("T")

PAUSE_FIRST, PAUSE_MAX = 0.5, 30.0  # seconds between two attempts of a `Worker`; each pause is twice the last

log = structlog.get_logger(__name__)


class Background(Generic[T]):
    """One call in its own thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(call,), name="streameval-background", daemon=True).start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._future.set_result(call())
        except Exception as error:  # noqa: BLE001 - not swallowed: `result` raises it
            self._future.set_exception(error)

    def result(self, timeout: float) -> T | None:
        """The value, or None when there is none after `timeout` seconds; what the call raised is raised here."""
        done, _ = wait([self._future], timeout)
        return self._future.result() if done else None


class RetryError(Exception):
    """A failure that may pass; `items` are to be handled again, the others of the batch were handled or dropped."""

    def __init__(self, reason: str, items: Sequence[Any], dropped: int = 0) -> None:
        super().__init__(reason)
        self.items, self.dropped = list(items), dropped


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Items handled, dropped and queued in the life of a worker, and why the last attempt failed, if it did."""

    done: int = 0
    dropped: int = 0
    waiting: int = 0
    trouble: str = ""


Item = TypeVar("Item", contravariant=True)


class Sink(Protocol[Item]):
    """Destination of the items of a worker.

    `write` returns how many items it took; the others can never be written there. It raises `RetryError` for a failure
    that may pass.
    """

    def write(self, items: Sequence[Item], /) -> int: ...

    def abort(self) -> None:
        """Let a `write` that waits fail soon, and all later ones; called from another thread."""

    def close(self) -> None: ...


class Worker(Generic[T]):
    """Handles items in order in its own thread; `put` neither waits nor fails.

    Args:
        handle: Takes up to `batch` items and returns how many it handled; the others are dropped. After `RetryError`
            the items of the error are handled again, after a pause that doubles up to half a minute. Any other
            exception drops the batch.
        name: Name of the thread.
        event: Name of the log event of a failed attempt.
        close: Called in the thread after the last item.
        abort: Called by another thread: lets a `handle` that waits fail soon, and all later ones.
        batch: Items that `handle` takes at once.
        max_items: Items queued at most; further ones are dropped.
        max_bytes: The same for their `size`.
        size: Bytes of an item.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[T]], int],
        *,
        name: str,
        event: str,
        close: Callable[[], None] = lambda: None,
        abort: Callable[[], None] = lambda: None,
        batch: int = 1,
        max_items: float = float("inf"),
        max_bytes: float = float("inf"),
        size: Callable[[T], int] = lambda _: 0,
    ) -> None:
        self._handle, self._close, self._abort, self._event = handle, close, abort, event
        self._batch, self._max_items, self._max_bytes, self._size = batch, max_items, max_bytes, size
        self._queue: deque[T] = deque()
        self._bytes = self._done = self._dropped = self._in_hand = 0
        self._trouble = ""
        self._changed, self._closing = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, items: Iterable[T], *, newest_only: bool = False, dropped: int = 0) -> None:
        """Queue items; `newest_only` discards those that are still queued. `dropped`: others that do not come."""
        with self._changed:
            self._dropped += dropped
            if newest_only:
                self._bytes -= sum(map(self._size, self._queue))
                self._queue.clear()
            for item in items:
                size = self._size(item)
                if len(self._queue) + self._in_hand < self._max_items and self._bytes + size <= self._max_bytes:
                    self._queue.append(item)
                    self._bytes += size
                else:
                    self._dropped += 1
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()

    def status(self) -> WorkerStatus:
        """Counts of items handled, dropped and queued."""
        with self._changed:
            return WorkerStatus(self._done, self._dropped, len(self._queue) + self._in_hand, self._trouble)

    def close(self, timeout: float, abort_timeout: float = 0.0) -> WorkerStatus:
        """Try once more to handle what is queued, for `timeout` seconds; then abort, and wait `abort_timeout`."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._abort()
                self._thread.join(abort_timeout)
        return self.status()

    def _run(self) -> None:
        pause = PAUSE_FIRST
        while items := self._next():
            is_last = self._closing.is_set()
            try:
                handled = self._handle(items)
                self._count(items, len(items) - handled)
                pause = PAUSE_FIRST
            except RetryError as error:
                self._count(items, error.dropped, str(error), error.items)
                if is_last:
                    break
                self._closing.wait(pause)
                pause = min(2.0 * pause, PAUSE_MAX)
            except Exception as error:  # noqa: BLE001 - drops these items, not all that follow
                self._count(items, len(items), repr(error))
        self._close()

    def _next(self) -> list[T]:
        """The oldest items; none when no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
            items = [self._queue.popleft() for _ in range(min(self._batch, len(self._queue)))]
            self._in_hand = len(items)
            return items

    def _count(self, items: Sequence[T], dropped: int, trouble: str = "", again: Sequence[T] = ()) -> None:
        with self._changed:
            self._done += len(items) - len(again) - dropped
            self._dropped += dropped
            self._in_hand = 0
            self._queue.extendleft(reversed(again))
            self._bytes -= sum(map(self._size, items)) - sum(map(self._size, again))
            self._trouble = trouble
        if trouble:
            status = self.status()
            log.warning(self._event, reason=trouble, waiting=status.waiting, dropped=status.dropped)


class ConnectionGroup:
    """Connections that any thread can close together, which wakes every call that is blocked on one of them."""

    def __init__(self) -> None:
        self._connections: WeakSet[Any] = WeakSet()
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, connection: Any) -> None:
        """Close this connection with the group, at once if the group is closed already; `close` may be called twice."""
        with self._lock:
            self._connections.add(connection)
            too_late = self._is_closed
        if too_late:
            connection.close()

    def close(self) -> None:
        """Close all connections, and those that are added later."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()
