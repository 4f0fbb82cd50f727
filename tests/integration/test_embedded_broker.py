"""Test the embedded broker of the demo with both clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from streameval.errors import InputError, SourceError
from streameval.ingest.kafka.client import Client
from streameval.ingest.kafka.mock_broker import EmbeddedBroker
from streameval.ingest.kafka.producer import produce
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource, connect
from support.factories import wait_until
from support.integration.faulty_cluster import StoppableBroker

VALUES = [b"%d" % number for number in range(600)]


@pytest.fixture(params=["kafka-python", "confluent"])
def broker(request: pytest.FixtureRequest) -> Iterator[StoppableBroker]:
    """Run a broker with a topic of three partitions."""
    with StoppableBroker({"clicks": 3}) as broker:
        broker.client = request.param
        yield broker


def test_messages_are_read_from_all_partitions_and_a_new_assignment_forgets_the_end_of_the_log(
    broker: StoppableBroker,
) -> None:
    """Assign again, as after a truncation of the log. The end from before would count messages that are gone."""
    produce(VALUES, "clicks", broker.connection)
    clients: list[Client] = []

    def recorded(*arguments: Any) -> Client:
        clients.append(connect(*arguments))
        return clients[-1]

    settings = KafkaSettings.model_validate(broker.connection.model_dump() | {"topic": "clicks"})
    with closing(KafkaSource(settings, connect=recorded)) as source:
        seen: list[bytes | None] = []

        def is_read() -> bool:
            seen.extend(value for batch in source.poll(0.1) for value in batch.values)
            return source.status().lag == 0

        wait_until(is_read)
        assert sorted(map(bytes, filter(None, seen))) == sorted(VALUES)
        assert [partition.position for partition in source.status().partitions] == [200, 200, 200]
        (client,) = clients
        assert [client.highwater(partition) for partition in range(3)] == [200] * 3
        client.assign({0: 5, 1: 200, 2: 200}, {})
        assert [client.highwater(partition) for partition in range(3)] == [None] * 3


def test_odd_uses_are_harmless_or_refused_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = EmbeddedBroker()
    with pytest.raises(InputError, match="0 partitions"):
        broker.create_topic("odd", 0)
    monkeypatch.setattr("streameval.ingest.kafka.producer.CONNECT_TIMEOUT", 1.0)
    with pytest.raises(SourceError, match=r'set api_version to "2\.3"'):
        produce(VALUES, "clicks", broker.connection.model_copy(update={"api_version": None}))
    broker.close()
    broker.close()


def test_without_confluent_kafka_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka.cimpl", None)
    with pytest.raises(InputError) as raised:
        EmbeddedBroker()
    assert raised.value.hint == "pip install 'streameval[demo]'"
