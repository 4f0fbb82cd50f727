"""Test the embedded broker of the demo with both clients."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from streameval.errors import InputError, SourceError
from streameval.ingest.kafka.client import Client
from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from streameval.ingest.kafka.producer import produce
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource, connect
from support.integration.faulty_cluster import StoppableBroker

VALUES = [b"%d" % number for number in range(600)]


@pytest.fixture(params=["kafka-python", "confluent"])
def broker(request: pytest.FixtureRequest) -> Iterator[StoppableBroker]:
    """Run a broker with a topic of three partitions."""
    with StoppableBroker({"clicks": 3}) as broker:
        broker.client = request.param
        yield broker


def poll_until(source: KafkaSource, done: Callable[[], bool], timeout: float = 60.0) -> list[bytes | None]:
    seen: list[bytes | None] = []
    end = time.monotonic() + timeout
    while not done():
        assert time.monotonic() < end, source.status()
        seen += [value for part in source.poll(0.1) for value in part.values]
    return seen


def source_of(broker: StoppableBroker) -> closing[KafkaSource]:
    settings = KafkaSettings.model_validate(broker.connection.model_dump() | {"topic": "clicks"})
    return closing(KafkaSource(settings))


def test_produced_messages_are_read_from_all_partitions(broker: StoppableBroker) -> None:
    produce(VALUES, "clicks", broker.connection)
    with source_of(broker) as source:
        seen = poll_until(source, lambda: source.status().lag == 0)
        assert [part.position for part in source.status().partitions] == [200, 200, 200]
    assert sorted(map(bytes, filter(None, seen))) == sorted(VALUES)


def test_messages_outlast_an_outage_and_come_once(broker: StoppableBroker) -> None:
    produce(VALUES[:300], "clicks", broker.connection)
    with source_of(broker) as source:
        seen = poll_until(source, lambda: source.status().lag == 0)
        broker.stop()
        for _ in range(10):
            seen += [value for part in source.poll(0.1) for value in part.values]
        broker.start()
        produce(VALUES[300:], "clicks", broker.connection)
        seen += poll_until(source, lambda: sum(source.positions.values()) == 600)
    assert sorted(map(bytes, filter(None, seen))) == sorted(VALUES)


def test_a_new_assignment_forgets_the_end_of_the_log(broker: StoppableBroker) -> None:
    """A client moves because a log was truncated. The end from before would count messages that are gone."""
    produce(VALUES, "clicks", broker.connection)
    clients: list[Client] = []

    def recorded(*arguments: Any) -> Client:
        clients.append(connect(*arguments))
        return clients[-1]

    settings = KafkaSettings.model_validate(broker.connection.model_dump() | {"topic": "clicks"})
    with closing(KafkaSource(settings, connect=recorded)) as source:
        poll_until(source, lambda: sum(source.positions.values()) == 600)
        (client,) = clients
        assert [client.highwater(partition) for partition in range(3)] == [200] * 3
        client.assign({0: 5, 1: 200, 2: 200}, {})
        assert [client.highwater(partition) for partition in range(3)] == [None] * 3


def test_closing_twice_is_harmless(broker: StoppableBroker) -> None:
    broker.close()
    broker.close()


def test_a_topic_without_partitions_is_refused(broker: StoppableBroker) -> None:
    with pytest.raises(InputError, match="0 partitions"):
        broker.create_topic("odd", 0)


def test_without_its_protocol_version_the_error_names_the_option(
    broker: StoppableBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.producer.CONNECT_TIMEOUT", 1.0)
    with pytest.raises(SourceError, match=r'set api_version to "2\.3"'):
        produce(VALUES, "clicks", broker.connection.model_copy(update={"api_version": None}))


def test_without_confluent_kafka_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.cimpl", None)
    with pytest.raises(InputError) as raised:
        EmbeddedBroker()
    assert raised.value.hint == "pip install 'streameval[demo]'"
