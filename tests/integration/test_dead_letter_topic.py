"""Dead letters in a topic of a broker, which may go away and come back."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from kafka import KafkaConsumer, TopicPartition

from streameval.config.model import DeadLetterTopic
from streameval.events import Rejected
from streameval.ingest.base import Records
from streameval.service.dead_letters import open_dead_letters
from support.factories import crowding, quickest, wait_until
from support.integration.broker import Broker, MockBroker

pytestmark = pytest.mark.kafka


def rejected(count: int) -> tuple[list[Records], list[Rejected]]:
    values = [b"bad %d" % number for number in range(count)]
    records = Records("clicks", 2, range(100, 100 + count), values, timestamps=[1574553634760] * count)
    return [records], [
        Rejected("malformed", "not JSON", value, origin=("clicks", 2, offset))
        for offset, value in enumerate(values, start=100)
    ]


def messages_in(broker: Broker, topic: str, count: int) -> list[Any]:
    """Return the messages of partition 0, this many at least."""
    options = {"bootstrap_servers": broker.bootstrap, "api_version": broker.connection.api_version}
    messages: list[Any] = []
    with closing(KafkaConsumer(**options, auto_offset_reset="earliest")) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        deadline = time.monotonic() + 60.0
        while len(messages) < count and time.monotonic() < deadline:
            messages += [message for batch in consumer.poll(timeout_ms=200).values() for message in batch]
    return messages


def test_a_dead_letter_is_the_unchanged_message_with_reason_and_origin(broker: Broker) -> None:
    topic = f"rejected-{uuid4().hex[:8]}"
    queue = open_dead_letters(DeadLetterTopic(kind="kafka", topic=topic), broker.connection)
    queue.put(*rejected(3))
    wait_until(lambda: queue.status().done == 3)
    queue.close()
    letters = messages_in(broker, topic, 3)
    assert [message.value for message in letters] == [b"bad 0", b"bad 1", b"bad 2"]
    assert dict(letters[1].headers) == {
        "streameval.reason": b"malformed",
        "streameval.detail": b"not JSON",
        "streameval.topic": b"clicks",
        "streameval.partition": b"2",
        "streameval.offset": b"101",
        "streameval.timestamp": b"1574553634760",
        "streameval.size": b"5",
    }


def test_a_dead_letter_without_a_message_is_written_like_the_next_ones(broker: Broker) -> None:
    """Write a tombstone, which has no message, and a late reward. The message of the reward is gone by then."""
    topic = f"rejected-{uuid4().hex[:8]}"
    queue = open_dead_letters(DeadLetterTopic(kind="kafka", topic=topic), broker.connection)
    queue.put([Records("clicks", 0, [7], [None])], [Rejected("malformed", "a tombstone", b"", origin=("clicks", 0, 7))])
    queue.put([], [Rejected("too_late", "reward: too late", b"", origin=("rewards", 1, 8))])
    queue.put(*rejected(1))
    wait_until(lambda: queue.status().done == 3)
    queue.close()
    letters = messages_in(broker, topic, 3)
    assert [message.value for message in letters] == [b"", b"", b"bad 0"]
    assert [dict(message.headers)["streameval.offset"] for message in letters] == [b"7", b"8", b"100"]


@pytest.mark.parametrize("client", ["kafka-python"], indirect=True)  # it writes with either client
def test_dead_letters_wait_while_the_broker_is_away(
    leaving_broker: MockBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streameval.ingest.kafka.producer.SENDER_TIMEOUT", 4.0)
    topic = f"rejected-{uuid4().hex[:8]}"
    leaving_broker.create_topic(topic, 1)
    queue = open_dead_letters(DeadLetterTopic(kind="kafka", topic=topic), leaving_broker.connection)
    queue.put(*rejected(1))
    wait_until(lambda: queue.status().done == 1)
    leaving_broker.stop()
    assert quickest(lambda: queue.put(*rejected(100)), times=10) < 0.05 * crowding()
    wait_until(lambda: queue.status().trouble != "")
    assert queue.status().waiting == 1000
    leaving_broker.start()
    wait_until(lambda: queue.status().waiting == 0, seconds=120.0)  # between two attempts it is up to thirty
    queue.close()
    assert (queue.status().done, queue.status().dropped) == (1001, 0)
    offsets = {dict(message.headers)["streameval.offset"] for message in messages_in(leaving_broker, topic, 1001)}
    assert len(offsets) == 100
