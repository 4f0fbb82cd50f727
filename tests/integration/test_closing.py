"""Test that what is closed while no broker answers ends soon, leaves no thread behind, and counts what is lost."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from streameval.config.model import DeadLetterTopic
from streameval.events import Rejected
from streameval.ingest.base import Offsets, Records
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import COMMIT_TIMEOUT, CONNECT_TIMEOUT, KafkaSource
from streameval.service import dead_letters as deadletter
from streameval.service.dead_letters import open_dead_letters
from support.factories import crowding, wait_until
from support.integration.faulty_cluster import StoppableBroker


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Take connections, and never send a byte."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture(params=["closed port", "silent server"])
def address(request: pytest.FixtureRequest, silent_server: str) -> str:
    return "127.0.0.1:1" if request.param == "closed port" else silent_server


def threads_since(before: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread not in before]


@pytest.mark.parametrize("polls", [1, 4])
def test_a_source_that_is_closed_while_it_connects_leaves_no_thread(address: str, polls: int) -> None:
    before = set(threading.enumerate())
    source = KafkaSource(KafkaSettings(bootstrap_servers=[address], topic="clicks"))
    for _ in range(polls):
        assert source.poll(0.02) == []
    assert threads_since(before) != []
    started_at = time.monotonic()
    source.close()
    wait_until(lambda: threads_since(before) == [])
    assert time.monotonic() - started_at < CONNECT_TIMEOUT / 2 * crowding()


def test_commits_without_a_broker_end_with_their_source(silent_server: str) -> None:
    before = set(threading.enumerate())
    source = KafkaSource(KafkaSettings(bootstrap_servers=[silent_server], topic="clicks", group_id="lag"))
    source.commit({"clicks": Offsets({0: 1})})
    started_at = time.monotonic()
    source.close()
    wait_until(lambda: threads_since(before) == [])
    assert time.monotonic() - started_at < (COMMIT_TIMEOUT + CONNECT_TIMEOUT / 2) * crowding()


REJECTED = [Rejected("malformed", "not JSON", b"x", origin=("clicks", 0, offset)) for offset in range(3)]


def test_dead_letters_without_a_broker_end_soon_and_are_counted(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deadletter, "CLOSE_TIMEOUT", 0.5)
    monkeypatch.setattr(deadletter, "ABORT_TIMEOUT", 60.0)
    before = set(threading.enumerate())
    connection = KafkaConnection(bootstrap_servers=[address])
    queue = open_dead_letters(DeadLetterTopic(kind="kafka", topic="rejected"), connection)
    queue.put([Records("clicks", 0, range(3), [b"x"] * 3)], REJECTED)
    wait_until(lambda: len(threads_since(before)) > 1)  # one of the library next to ours: it connects
    started_at = time.monotonic()
    queue.close()
    assert time.monotonic() - started_at < CONNECT_TIMEOUT * crowding()
    wait_until(lambda: threads_since(before) == [])
    assert (queue.status().done, queue.status().waiting) == (0, 3)
    assert "dead_letters_lost" in capsys.readouterr().out


def test_only_dead_letters_that_no_broker_took_are_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deadletter, "CLOSE_TIMEOUT", 0.5)
    monkeypatch.setattr(deadletter, "ABORT_TIMEOUT", 60.0)
    before = set(threading.enumerate())
    with StoppableBroker({"rejected": 1}) as broker:
        queue = open_dead_letters(DeadLetterTopic(kind="kafka", topic="rejected"), broker.connection)
        queue.put([Records("clicks", 0, range(3), [b"x"] * 3)], REJECTED)
        wait_until(lambda: queue.status().done == 3)
        broker.stop()
        queue.put([Records("clicks", 0, range(3, 6), [b"y"] * 3)], REJECTED[:2])
        started_at = time.monotonic()
        queue.close()
        assert time.monotonic() - started_at < CONNECT_TIMEOUT * crowding()
        wait_until(lambda: threads_since(before) == [])
    assert (queue.status().done, queue.status().waiting) == (3, 2)
    reported = capsys.readouterr().out
    assert "waiting=2" in reported
    assert "no answer in time" in reported
