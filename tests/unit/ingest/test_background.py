"""Test calls in the background, and groups of connections."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from streameval.ingest import background
from streameval.ingest.background import Background, ConnectionGroup, RetryError, Worker
from support.factories import wait_until


class Connection:
    """Count how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1


def test_a_closed_group_closes_connections_that_come_later() -> None:
    connections, one, other, late = ConnectionGroup(), Connection(), Connection(), Connection()
    connections.add(one)
    connections.add(other)
    assert (one.closed, other.closed) == (0, 0)
    connections.close()
    connections.add(late)
    assert (one.closed, other.closed, late.closed) == (1, 1, 1)


def test_a_group_keeps_no_connection_alive() -> None:
    connections, references = ConnectionGroup(), []
    for _ in range(100):
        connection = Connection()
        connections.add(connection)
        references.append(weakref.ref(connection))
    del connection
    assert not any(reference() for reference in references)


def test_a_call_that_ends_when_the_wait_expires_has_not_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    wait, due = Future.result, threading.Event()

    def ends_late(future: Future[Any], timeout: float | None = None) -> Any:
        try:
            return wait(future, timeout)
        except TimeoutError:
            due.set()
            wait(future)
            raise

    monkeypatch.setattr(Future, "result", ends_late)
    call = Background(due.wait)
    assert call.result(timeout=0.0) in (None, True)
    due.set()
    assert call.result(timeout=60.0) is True


def test_a_timeout_inside_a_call_is_raised_by_result() -> None:
    def expires() -> None:
        raise TimeoutError("of the call")

    with pytest.raises(TimeoutError, match="of the call"):
        Background(expires).result(timeout=60.0)


def test_a_worker_pauses_no_longer_while_each_attempt_makes_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "PAUSE_FIRST", 0.001)
    monkeypatch.setattr(background, "PAUSE_MAX", 3600.0)

    class Slow:
        written = 0

        def write(self, items: Sequence[int]) -> int:
            self.written += 1
            if len(items) > 1:
                raise RetryError("full", items[1:])
            return 1

        def abort(self) -> None:
            """Wait for nothing."""

        def close(self) -> None:
            """Hold nothing open."""

    worker = Worker[int](Slow(), name="slow", event="not_written", batch=100)
    worker.put(range(60))
    wait_until(lambda: worker.status().done == 60)
    worker.close(10.0)
