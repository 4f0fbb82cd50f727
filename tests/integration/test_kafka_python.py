"""Test reading through kafka-python when the library fails or changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError
from structlog.testing import capture_logs

from streameval.ingest.kafka import kafka_python_internals
from streameval.ingest.kafka.producer import produce
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource
from support.factories import wait_until
from support.integration.faulty_cluster import StoppableBroker

VALUES = [b"%d" % number for number in range(60)]


@pytest.fixture
def settings() -> Iterator[KafkaSettings]:
    """Return the settings of a topic with 20 messages in each of three partitions."""
    with StoppableBroker({"clicks": 3}) as broker:
        produce(VALUES, "clicks", broker.connection)
        yield KafkaSettings.model_validate(broker.connection.model_dump() | {"topic": "clicks"})


def read(settings: KafkaSettings, **options: Any) -> list[tuple[int, int, bytes | None]]:
    """Return the partition, offset and value of all messages."""
    seen: list[tuple[int, int, bytes | None]] = []

    def is_read(source: KafkaSource) -> bool:
        for records in source.poll(0.1):
            seen.extend((records.partition, *pair) for pair in zip(records.offsets, records.values, strict=True))
        return len(seen) >= len(VALUES)

    with closing(KafkaSource(settings, **options)) as source:
        wait_until(lambda: is_read(source))
        assert source.status().rebuilds == 0
    return seen


def test_a_batch_that_can_be_read_the_second_time_is_read(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, errors = KafkaConsumer.poll, [CorruptRecordError("failed crc check"), ValueError("not gzip")]

    def poll_or_fail(consumer: Any, **options: Any) -> Any:
        polled = poll(consumer, **options)
        if polled and errors:
            raise errors.pop()
        return polled

    monkeypatch.setattr(KafkaConsumer, "poll", poll_or_fail)
    seen = read(settings)
    assert Counter(value for _, _, value in seen) == Counter(VALUES)
    assert errors == []


def test_messages_that_cannot_be_unpacked_are_skipped_alone(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    poll, damaged = KafkaConsumer.poll, {0: range(1), 1: range(3, 7), 2: range(18, 20)}

    def poll_or_fail(consumer: Any, **options: Any) -> Any:
        for key in consumer.assignment():
            if consumer.position(key) in damaged[key.partition]:
                raise ValueError("not gzip")
            if consumer.position(key) < damaged[key.partition].start:
                options["max_records"] = 1
        return poll(consumer, **options)

    monkeypatch.setattr(KafkaConsumer, "poll", poll_or_fail)
    with capture_logs() as logs:
        seen = read(settings)
    assert sorted((number, offset) for number, offset, _ in seen) == [
        (n, index) for n in range(3) for index in range(20)
    ]
    lost = {(number, offset) for number, offsets in damaged.items() for offset in offsets}
    assert {(number, offset) for number, offset, value in seen if value is None} == lost
    skipped = [(entry["partition"], entry["offset"], entry["lost"]) for entry in logs if "lost" in entry]
    assert sorted(skipped) == [(0, 0, 1), (1, 3, 4), (2, 18, 2)]


def test_a_failure_of_the_library_skips_nothing(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crash its network thread. Polls fail as for a damaged batch, and every other request fails too."""

    def crashed(*_: Any, **__: Any) -> Any:
        raise ValueError("I/O operation on closed epoll object")

    with closing(KafkaSource(settings)) as source, monkeypatch.context() as patch:
        wait_until(lambda: bool(source.poll(0.1) or source.status().reached))
        before = dict(source.positions)
        patch.setattr(KafkaConsumer, "poll", crashed)
        patch.setattr(KafkaConsumer, "end_offsets", crashed)
        for _ in range(3):
            assert source.poll(0.1) == []
        assert source.positions == before
        assert source.status().rebuilds == 1


def test_a_library_without_the_internals_reads_and_the_log_says_what_is_lost(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Renamed:
        """Lack every attribute."""

    monkeypatch.setattr(kafka_python_internals, "reported", set())
    for function in (kafka_python_internals.keep_epochs, kafka_python_internals.give_up):
        with capture_logs() as logs:
            function(Renamed())
            function(Renamed())
        (entry,) = logs
        assert entry["event"] == "kafka_python_lacks_internals"
        assert entry["lost"]
    assert kafka_python_internals.topic_id(Renamed(), "clicks") is None
    kafka_python_internals.seek(Renamed(), TopicPartition("clicks", 0), 5, 1)
    monkeypatch.setattr(kafka_python_internals, "keep_epochs", lambda consumer: None)
    monkeypatch.setattr(kafka_python_internals, "seek", lambda *_: None)
    monkeypatch.setattr(kafka_python_internals, "topic_id", lambda *_: None)
    assert Counter(value for _, _, value in read(settings)) == Counter(VALUES)
