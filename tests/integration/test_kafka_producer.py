"""Test writing events to Kafka, which kafka-python does with either client."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, TopicPartition

from streameval.errors import SourceError
from streameval.ingest.kafka.connection import KafkaConnection
from streameval.ingest.kafka.producer import create_topic, produce
from support.factories import wait_until
from support.integration.broker import Broker, MockBroker
from support.integration.ci import skip_unless_ci
from support.ports import free_port

pytestmark = pytest.mark.kafka


@pytest.fixture
def name() -> str:
    """Return the name of a topic that does not exist."""
    return f"written-{uuid4().hex[:8]}"


def read_all(broker: Broker, topic: str, partitions: int) -> list[list[bytes]]:
    """Return the values of each partition, as another client sees them."""
    keys = [TopicPartition(topic, partition) for partition in range(partitions)]
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, api_version=broker.connection.api_version)
    try:
        consumer.assign(keys)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(keys)
        values: list[list[bytes]] = [[] for _ in keys]
        while any(len(values[key.partition]) < ends[key] for key in keys):
            for key, messages in consumer.poll(500).items():
                values[key.partition] += [message.value for message in messages]
        return values
    finally:
        consumer.close()


def test_values_go_to_the_partitions_in_turn_and_in_order(broker: Broker, name: str) -> None:
    broker.create_topic(name, 3)
    values = [b"%d" % number for number in range(3000)]
    assert produce(values, name, broker.connection) == 3000
    assert read_all(broker, name, 3) == [values[0::3], values[1::3], values[2::3]]


def test_a_missing_topic_is_created_once_with_the_partitions_asked_for(broker: Broker, name: str) -> None:
    if isinstance(broker, MockBroker):
        skip_unless_ci("the mock cluster has no administration")
    produce([b"a", b"b"], name, broker.connection, partitions=2)
    produce([b"c"], name, broker.connection, partitions=5)
    create_topic(name, 7, broker.connection)
    assert read_all(broker, name, 2) == [[b"a", b"c"], [b"b"]]


def test_a_value_that_is_too_large_is_an_error_with_a_hint(broker: Broker, name: str) -> None:
    broker.create_topic(name, 1)
    with pytest.raises(SourceError, match="cannot write to Kafka") as raised:
        produce([b"x" * 3_000_000], name, broker.connection)
    assert raised.value.hint


def test_a_broker_that_cannot_be_reached_is_an_error_with_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.producer.CONNECT_TIMEOUT", 0.5)
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(SourceError, match=address):
        produce([b"x"], "any", KafkaConnection(bootstrap_servers=[address]))


def test_closing_the_producer_does_not_hide_an_error(broker: Broker, name: str) -> None:
    broker.create_topic(name, 1)

    def torn() -> Iterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        produce(torn(), name, broker.connection)


@pytest.mark.parametrize("client", ["kafka-python"], indirect=True)  # it writes with either client
def test_a_producer_that_loses_its_broker_fails_and_leaves_no_thread(
    leaving_broker: MockBroker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.producer.DELIVERY_TIMEOUT", 1.0)
    monkeypatch.setattr("streameval.ingest.kafka.producer.CONNECT_TIMEOUT", 1.0)
    leaving_broker.create_topic(name, 1)
    before = set(threading.enumerate())

    def interrupted() -> Iterator[bytes]:
        yield b"x"
        leaving_broker.stop()
        yield b"y"

    with pytest.raises(SourceError, match="cannot write to Kafka"):
        produce(interrupted(), name, leaving_broker.connection)
    wait_until(lambda: set(threading.enumerate()) <= before)
