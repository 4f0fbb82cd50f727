"""Read one topic through librdkafka, in a small part of the processor time of kafka-python."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, TopicPartition

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import ClientError, with_schema_id
from streameval.ingest.kafka.connection import KafkaConnection, KafkaTopic, shared_options
from streameval.ingest.kafka.kafka_python import RECONNECT_BACKOFF_MAX_MS, KafkaPythonClient
from streameval.ingest.kafka.oauth import provider_of

UNKNOWN_EPOCH = -1
REQUEST_TIMEOUT_SECONDS = 5.0
CHECK_SECONDS = 1.0
"""Time after which the id of the topic is requested again before messages are returned. The library reads on in a topic
that was recreated, without an error, if it has grown beyond the position."""
UNPACKED_BYTES = 64 * 2**20
RESPONSE_OVERHEAD_BYTES = 512  # the library demands these beyond `fetch.max.bytes`
POSITION_ERRORS = {
    KafkaError._AUTO_OFFSET_RESET,
    KafkaError._LOG_TRUNCATION,
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError._NOT_IMPLEMENTED,
    KafkaError.INVALID_MSG,
}
"""Errors that do not say at which offset to continue."""


def connection_options(connection: KafkaConnection) -> dict[str, Any]:
    """Translate the settings of a connection into options of librdkafka."""
    options = shared_options(connection, "confluent") | {
        "bootstrap.servers": connection.address,
        "client.id": "streameval",
        "socket.timeout.ms": 30_000,
        "allow.auto.create.topics": False,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
        "log.connection.close": False,
        "logger": logging.getLogger("confluent_kafka"),
    }
    if connection.sasl_oauth_url is not None:
        options["sasl.oauthbearer.method"] = "oidc"
        options["sasl.oauthbearer.token.endpoint.url"] = connection.sasl_oauth_url
        options["sasl.oauthbearer.client.id"] = options.pop("sasl.username")
        options["sasl.oauthbearer.client.secret"] = options.pop("sasl.password")
        if connection.sasl_oauth_scope is not None:
            options["sasl.oauthbearer.scope"] = connection.sasl_oauth_scope
    elif (provider := provider_of(connection)) is not None:
        options["oauth_cb"] = lambda _: provider.token_and_end()
    return options


def consumer_options(settings: KafkaTopic) -> dict[str, Any]:
    """Translate the settings of a source into options of `confluent_kafka.Consumer`."""
    max_bytes = settings.fetch_max_bytes
    options = connection_options(settings) | {
        "group.id": settings.group_id or "streameval",  # the library demands one; nothing joins or commits
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",  # other values skip messages silently after a truncation
        "isolation.level": "read_committed",
        "check.crcs": True,
        "enable.partition.eof": True,  # reports the position past markers of transactions
        "fetch.max.bytes": max_bytes,
        "max.partition.fetch.bytes": min(2**20, max_bytes),
        # with the default of one byte, a live stream takes a request for every few messages
        "fetch.min.bytes": min(2**16, max_bytes),
        "fetch.wait.max.ms": 100,
        "message.max.bytes": min(10**6, max_bytes),  # the library refuses more than fetch.max.bytes
        # also the limit of a batch that is unpacked from zstd; larger ones are left to kafka-python
        "receive.message.max.bytes": max(UNPACKED_BYTES, max_bytes + RESPONSE_OVERHEAD_BYTES),
        "queued.max.messages.kbytes": max(1, max_bytes // 1024),
        "fetch.queue.backoff.ms": 10,  # the default of 1 s stalls whenever the queue is full
    }
    return options | settings.client_options


class ConfluentClient(KafkaPythonClient):
    """Fetch messages through librdkafka.

    All other requests go through kafka-python, which also finds where a log was truncated, and skips batches that
    cannot be unpacked.
    """

    def __init__(self, settings: KafkaTopic, timeout: float, connections: ConnectionGroup) -> None:
        super().__init__(settings, timeout, connections)
        self._settings = settings
        self._fetcher: Consumer = None
        self._blocked: set[int] = set()
        self._errors: set[str] = set()
        self._checked_at, self._trouble = time.monotonic(), ""

    def _restart(self) -> None:
        """Make a new fetcher, because one compares epochs only when it gets to know the leaders."""
        self._assign_anew([])
        self._close_fetcher()
        epochs = self.epochs()
        keys = [
            self._topic_partition(number, at, epochs.get(number, UNKNOWN_EPOCH))
            for number, at in self._positions.items()
        ]
        with translated_errors():
            self._fetcher = Consumer(consumer_options(self._settings) | {"error_cb": self._note})
            self._fetcher.assign(keys)
        self.pause(self._paused)

    def pause(self, partitions: Collection[int]) -> None:
        before, self._paused = self._paused, frozenset(partitions)
        if self._fetcher is not None:
            assigned = self._positions.keys()
            with translated_errors():
                self._fetcher.pause([self._topic_partition(number) for number in assigned & self._paused])
                self._fetcher.resume([self._topic_partition(number) for number in assigned & (before - self._paused)])

    def poll(self, timeout: float) -> list[Records]:
        if self._errors:
            raise ClientError("; ".join(sorted(self._errors)))
        if self._blocked:
            return self._read_blocked(self._blocked)
        with translated_errors():
            messages = self._fetcher.consume(self._most, 0) or self._fetcher.consume(1, timeout)
        if messages and time.monotonic() > self._checked_at + CHECK_SECONDS:
            self.partitions(REQUEST_TIMEOUT_SECONDS)
            self._checked_at = time.monotonic()
        by_partition: dict[int, list[Message]] = {}
        for number, run in groupby(messages, Message.partition):
            by_partition.setdefault(number, []).extend(run)
        return [
            self._unpacked(number, some) for number, some in by_partition.items() if self._without_errors(number, some)
        ]

    def _without_errors(self, number: int, messages: list[Message]) -> list[Message]:
        """Remove errors from the messages of a partition. The next poll handles them unless they are its end."""
        if any(map(Message.error, messages)):
            for message in filter(Message.error, messages):
                error = message.error()
                if error.code() == KafkaError._PARTITION_EOF:
                    epoch, _ = self._epochs.get(number, (None, 0))
                    self._move(number, message.offset(), epoch)
                elif error.code() in POSITION_ERRORS:
                    self._blocked.add(number)
                else:
                    self._errors.add(error.str())
            messages[:] = [message for message in messages if not message.error()]
        return messages

    def _unpacked(self, number: int, messages: Sequence[Message]) -> Records:
        offsets = [*map(Message.offset, messages)]
        position = max(self._positions[number], offsets[-1] + 1)
        self._move(number, position, messages[-1].leader_epoch())
        timestamps = [written_at for _, written_at in map(Message.timestamp, messages)]
        values = [*map(Message.value, messages)]
        if self._settings.reads_schema_ids:
            values = [*map(with_schema_id, values, map(Message.headers, messages))]
        return Records(self._topic, number, offsets, self._cut(values), timestamps)

    def unblock(self, partitions: Collection[int]) -> None:
        if self._trouble:
            raise ClientError(self._trouble)
        self._blocked |= set(partitions)

    def _read_blocked(self, partitions: Collection[int]) -> list[Records]:
        """Let kafka-python read some messages of each partition, then continue here.

        Raises:
            OffsetsGoneError: The log no longer has the next messages.
            ClientError: No message comes.
        """
        before, records = dict(self._positions), list[Records]()
        for number, end in self.offsets(partitions, "latest", REQUEST_TIMEOUT_SECONDS).items():
            records += self._read_past_damage(number, max(end, before[number] + 1))  # also finds a truncated log
        stuck = [number for number in partitions if self._positions[number] == before[number]]
        if stuck:
            super().unblock(stuck)
        self._restart()
        return records

    def highwater(self, partition: int) -> int | None:
        with translated_errors():
            offsets = self._fetcher.get_watermark_offsets(self._topic_partition(partition), cached=True)
        return offsets[1] if offsets and offsets[1] >= 0 else None

    def close(self) -> None:
        self._close_fetcher()
        super().close()

    def _close_fetcher(self) -> None:
        fetcher, self._fetcher, self._trouble = self._fetcher, None, ""
        self._blocked, self._errors = set(), set()
        with translated_errors():
            if fetcher is not None:
                fetcher.close()

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()

    def _topic_partition(
        self, partition: int, offset: int = OFFSET_INVALID, epoch: int = UNKNOWN_EPOCH
    ) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset, leader_epoch=epoch)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of librdkafka as `ClientError`.

    Raises:
        ClientError: librdkafka reports a failure, or the client was closed.
    """
    try:
        yield
    except (KafkaException, RuntimeError) as error:  # RuntimeError: closed meanwhile
        reason = error.args[0]
        raise ClientError(reason.str() if isinstance(reason, KafkaError) else str(reason)) from error
