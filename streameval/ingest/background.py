"""Do slow work outside the loop, in threads that end with the program, and close connections from any thread.

A `ThreadPoolExecutor` waits for its threads when Python exits: a broker that does not answer would hold up the end.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

import structlog

T = TypeVar("T")

PAUSE_FIRST, PAUSE_MAX = 0.5, 30.0  # seconds between two attempts of a `Worker`; a pause is twice the last one
GATHER_SECONDS = 0.02  # between two looks at the number of items that gather
CLOSING_PAUSE = 0.1  # seconds between two attempts of a `Worker` that is closing
MIN_BACKOFF, MAX_BACKOFF, JITTER = 0.25, 5.0, 0.5  # seconds between two attempts to read, and the random share of them

log = structlog.get_logger(__name__)


def backoff(failures: int, chance: Callable[[], float] = random.random) -> float:
    """Return the seconds until the next attempt to read, which about double with each failure.

    Args:
        failures: how many attempts in a row failed before the last one
        chance: returns numbers in [0, 1) that spread the attempts of many daemons

    >>> [backoff(failures, lambda: 0.0) for failures in range(6)]
    [0.25, 0.5, 1.0, 2.0, 4.0, 5.0]
    """
    return float(min(MIN_BACKOFF * 2.0 ** min(failures, 10), MAX_BACKOFF) * (1.0 - JITTER * chance()))


class Background(Generic[T]):
    """Run one call in its own thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._future: Future[T] = Future()
        threading.Thread(target=self._run, args=(call,), name="streameval-background", daemon=True).start()

    def _run(self, call: Callable[[], T]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - not swallowed: `result` raises it; without it, none would come
            self._future.set_exception(error)

    def result(self, timeout: float) -> T | None:
        """Return the value of the call, or None if there is none after `timeout` seconds.

        Raises:
            Exception: The call raised it.
        """
        done, _ = wait([self._future], timeout)
        return self._future.result() if done else None


class RetryError(Exception):
    """Report a failure that may pass.

    Args:
        reason: what went wrong
        items: the items of the batch to handle again. The others were handled or dropped
        dropped: how many were dropped
    """

    def __init__(self, reason: str, items: Sequence[Any], dropped: int = 0) -> None:
        super().__init__(reason)
        self.items, self.dropped = list(items), dropped


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """Count the items handled, dropped and queued in the life of a worker, and tell why the last attempt failed."""

    done: int = 0
    dropped: int = 0
    waiting: int = 0
    trouble: str = ""


Item = TypeVar("Item", contravariant=True)


class Sink(Protocol[Item]):
    """Write the items of a worker."""

    def write(self, items: Sequence[Item], /) -> int:
        """Write items, and return how many were taken. The others can never be written here.

        Raises:
            RetryError: A failure that may pass.
        """

    def abort(self) -> None:
        """Let this and all later calls of `write` fail soon. Another thread calls it."""

    def close(self) -> None:
        """Release what is open."""


class Worker(Generic[T]):
    """Write items to a sink in order, in a thread. `put` neither waits nor fails.

    After `RetryError` the items of the error are written again, after a pause that doubles up to half a minute. Any
    other exception drops the batch.

    Args:
        sink: where the items go. It is closed in the thread after the last item
        name: the name of the thread
        event: the log event of a failed attempt
        batch: how many items are written at once
        gathered: the number of items that are worth a write. More are written in multiples of it
        linger: seconds that an item waits for `gathered` items, unless the worker hurries
        max_bytes: memory for queued items, by `size`. Further ones are dropped
        size: returns the memory of an item in bytes
        written: called in the thread with items that the sink has written or refused for good
    """

    def __init__(
        self,
        sink: Sink[T],
        *,
        name: str,
        event: str,
        batch: int = 1,
        gathered: int = 1,
        linger: float = 0.0,
        max_bytes: float = float("inf"),
        size: Callable[[T], int] = lambda _: 0,
        written: Callable[[Sequence[T]], None] = lambda _: None,
    ) -> None:
        self._sink, self._event, self._batch, self._written = sink, event, batch, written
        self._max_bytes, self._size = max_bytes, size
        self._gathered, self._linger = gathered, linger
        self._oldest_since, self._hurried = 0.0, threading.Event()
        self._queue: deque[T] = deque()  # items stay until they are written or dropped
        self._bytes = self._done = self._dropped = 0
        self._trouble = ""
        self._changed, self._closing = threading.Condition(), threading.Event()
        self._retries_until = -float("inf")
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def put(self, items: Iterable[T], *, dropped: int = 0) -> None:
        """Queue items.

        Args:
            items: the items to write
            dropped: how many items the caller has dropped, to count them
        """
        with self._changed:
            self._dropped += dropped
            if not self._queue:
                self._oldest_since = time.monotonic()
            for item in items:
                size = self._size(item)
                if self._bytes + size <= self._max_bytes:
                    self._queue.append(item)
                    self._bytes += size
                else:
                    self._dropped += 1
            if self._thread.ident is None:
                self._thread.start()
            self._changed.notify()

    def status(self) -> WorkerStatus:
        """Count the items written, dropped and queued."""
        with self._changed:
            return WorkerStatus(self._done, self._dropped, len(self._queue), self._trouble)

    def hurry(self) -> None:
        """Let what is queued wait for no further items."""
        self._hurried.set()

    def close(self, timeout: float, abort_timeout: float = 0.0, *, keeps_trying: bool = False) -> WorkerStatus:
        """Write what is queued, then end the thread.

        Args:
            timeout: seconds after which a call that still waits is aborted
            abort_timeout: seconds to wait for the thread after that
            keeps_trying: whether to write again after failures until the timeout, or only once more
        """
        with self._changed:
            if keeps_trying:
                self._retries_until = time.monotonic() + timeout
            self._closing.set()
            self._hurried.set()
            self._changed.notify()
        if self._thread.ident is None:
            self._sink.close()
        else:
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._sink.abort()
                self._thread.join(abort_timeout)
        return self.status()

    def _run(self) -> None:
        pause = PAUSE_FIRST
        while items := self._oldest():
            is_last = self._closing.is_set()
            try:
                count = self._sink.write(items)
                self._written(items)
                self._settle(items, len(items) - count)
                pause = PAUSE_FIRST
            except RetryError as error:
                self._settle(items, error.dropped, str(error), error.items)
                if is_last and time.monotonic() >= self._retries_until:
                    break
                if len(error.items) < len(items):
                    pause = PAUSE_FIRST
                if is_last:
                    time.sleep(CLOSING_PAUSE)
                self._closing.wait(pause)
                pause = min(2.0 * pause, PAUSE_MAX)
            except Exception as error:  # noqa: BLE001 - drops these items, not all that follow
                self._settle(items, len(items), repr(error))
        self._sink.close()

    def _oldest(self) -> list[T]:
        """Return the oldest items, or none if no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing.is_set())
        if self._linger:
            self._gather()
        with self._changed:
            count = min(len(self._queue), self._batch)
            return list(islice(self._queue, count - count % self._gathered or count))

    def _gather(self) -> None:
        """Wait until enough items are queued, or the oldest has waited for its time.

        Items are counted from time to time, as a thread that wakes up with each item costs more than the item.
        """
        until = self._oldest_since + self._linger
        while (wait := until - time.monotonic()) > 0 and not self._closing.is_set():
            is_enough = len(self._queue) >= self._gathered or 2 * self._bytes > self._max_bytes
            if is_enough or self._hurried.wait(min(wait, GATHER_SECONDS)):
                break
        if not self._closing.is_set():
            self._hurried.clear()
        self._oldest_since = time.monotonic()  # of what is left, or comes during the write

    def _settle(self, items: Sequence[T], dropped: int, trouble: str = "", again: Sequence[T] = ()) -> None:
        """Count the oldest items, and keep `again` of them in the queue."""
        with self._changed:
            for item in items:
                self._queue.popleft()
                self._bytes -= self._size(item)
            self._queue.extendleft(reversed(again))
            self._bytes += sum(map(self._size, again))
            self._done += len(items) - len(again) - dropped
            self._dropped += dropped
            self._trouble = trouble
        if trouble:
            log.warning(self._event, reason=trouble, waiting=len(self._queue), dropped=self._dropped)


class ConnectionGroup:
    """Close connections together, from any thread, which wakes every call that is blocked on one of them."""

    def __init__(self) -> None:
        self._connections: WeakSet[Any] = WeakSet()
        self._is_closed = False
        self._lock = threading.Lock()

    def add(self, connection: Any) -> None:
        """Close this connection with the group, at once if the group is closed. Its `close` may be called twice."""
        with self._lock:
            self._connections.add(connection)
            is_closed = self._is_closed
        if is_closed:
            connection.close()

    def close(self) -> None:
        """Close all connections, now and when they are added later."""
        with self._lock:
            self._is_closed = True
            connections = list(self._connections)
        for connection in connections:
            connection.close()
