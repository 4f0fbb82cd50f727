"""KafkaSource against a broker: every message once, whatever happens to the broker."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from uuid import uuid4

import pytest
from integration.broker import Broker, RealBroker
from kafka import KafkaAdminClient, TopicPartition

from streameval.errors import SourceError
from streameval.sinks.producer import TopicWriter, produce
from streameval.sources.kafka import KafkaSource
from streameval.sources.settings import KafkaSettings

pytestmark = pytest.mark.kafka


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of four partitions that no other test knows."""
    name = f"test-{uuid4().hex[:8]}"
    broker.create_topic(name, 4)
    return name


def numbers(count: int, begin: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(begin, begin + count)]


def settings_for(broker: Broker, topic: str, **changes: object) -> KafkaSettings:
    return KafkaSettings.model_validate(broker.connection.model_dump() | {"topic": topic} | changes)


@contextmanager
def reading(broker: Broker, topic: str, **changes: object) -> Iterator[Reading]:
    with closing(KafkaSource(settings_for(broker, topic, **changes))) as source:
        yield Reading(source)


class Reading:
    """Polls a source and counts how often each value came."""

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.seen: Counter[bytes | None] = Counter()

    def poll_until(self, done: Callable[[], bool], timeout: float = 20.0) -> float:
        """Polls until `done()`, and returns how long that took; fails with the source's status."""
        begin = time.monotonic()
        while not done():
            if time.monotonic() - begin > timeout:
                pytest.fail(f"after {timeout} s: {self.seen.total()} messages, {self.source.status()}")
            for records in self.source.poll(0.2):
                self.seen.update(records.values)
        return time.monotonic() - begin

    def poll_for(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        self.poll_until(lambda: time.monotonic() > end, seconds + 10.0)

    def poll_to_the_end(self, timeout: float = 20.0) -> float:
        return self.poll_until(lambda: self.source.status().lag == 0, timeout)


def test_fifty_thousand_messages_of_four_partitions_come_once_each_and_the_lag_goes_to_zero(
    broker: Broker, topic: str
) -> None:
    sent = numbers(50_000)
    assert produce(sent, topic, broker.connection) == 50_000
    with reading(broker, topic) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 50_000)
        reader.poll_for(0.5)
        status = reader.source.status()
    assert reader.seen == Counter(sent)
    assert status.reached
    assert status.lag == 0
    assert [(part.partition, part.position) for part in status.partitions] == [(n, 12_500) for n in range(4)]


def test_a_broker_that_goes_and_comes_back_costs_no_message_and_doubles_none(
    stoppable_broker: Broker, topic: str
) -> None:
    outage(stoppable_broker, topic, seconds=11.0)


@pytest.mark.slow
def test_a_broker_that_is_away_for_a_minute_costs_no_message_and_doubles_none(
    stoppable_broker: Broker, topic: str
) -> None:
    outage(stoppable_broker, topic, seconds=60.0)


def outage(broker: Broker, topic: str, seconds: float) -> None:
    produce(numbers(20_000), topic, broker.connection)
    with reading(broker, topic, max_poll_records=100) as reader:
        reader.poll_until(lambda: reader.seen.total() >= 5000)
        broker.stop()
        reader.poll_for(seconds)
        away = reader.source.status()
        broker.start()
        reader.poll_until(lambda: reader.source.status().reached, timeout=10.0)
        produce(numbers(5000, begin=20_000), topic, broker.connection)
        reader.poll_until(lambda: reader.seen.total() >= 25_000)
        reader.poll_for(1.0)
    assert not away.reached
    assert broker.bootstrap in away.detail
    assert reader.seen == Counter(numbers(25_000))
