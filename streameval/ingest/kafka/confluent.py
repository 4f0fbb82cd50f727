"""Read one topic through librdkafka, in a small part of the processor time of kafka-python."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, overload

from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, MessageSizeTooLargeError
from pydantic import SecretStr

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import ClientError
from streameval.ingest.kafka.connection import KafkaConnection, KafkaTopic, Start
from streameval.ingest.kafka.kafka_python import RECONNECT_BACKOFF_MAX_MS, KafkaPythonClient, milliseconds

OPTIONS = {
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_username": "sasl.username",
    "sasl_password": "sasl.password",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",
}
"""Settings that only have another name in the library."""
UNKNOWN_EPOCH = -1
REQUEST_TIMEOUT_SECONDS, SLICE_SECONDS = 5.0, 0.05
CHECK_SECONDS = 1.0
"""Time after which the id of the topic is requested again before messages are returned. The library reads on in a topic
that was recreated, without an error, if it has grown beyond the position."""
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
    """Translate the settings of a connection into options of librdkafka, for consumers and producers."""
    options = {option: getattr(connection, name) for name, option in OPTIONS.items()}
    if connection.sasl_oauth_url is not None:
        options["sasl.oauthbearer.method"] = "oidc"
        options["sasl.oauthbearer.token.endpoint.url"] = connection.sasl_oauth_url
        options["sasl.oauthbearer.scope"] = connection.sasl_oauth_scope
        options["sasl.oauthbearer.client.id"] = options.pop("sasl.username")
        options["sasl.oauthbearer.client.secret"] = options.pop("sasl.password")
    if connection.api_version is not None:
        options["broker.version.fallback"] = ".".join(map(str, connection.api_version))
    return {
        option: value.get_secret_value() if isinstance(value, SecretStr) else value
        for option, value in options.items()
        if value is not None
    } | {
        "bootstrap.servers": connection.address,
        "client.id": "streameval",
        "ssl.endpoint.identification.algorithm": "https" if connection.ssl_check_hostname else "none",
        "socket.timeout.ms": milliseconds(connection.request_timeout),
        "allow.auto.create.topics": False,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
        "log.connection.close": False,
        "logger": logging.getLogger("confluent_kafka"),
    }


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
        "message.max.bytes": min(10**6, max_bytes),  # the library refuses more than fetch.max.bytes
        "queued.max.messages.kbytes": max(1, max_bytes // 1024),
        "fetch.queue.backoff.ms": 10,  # the default of 1 s stalls whenever the queue is full
    }
    return options | settings.client_options


class ConfluentClient:
    """Implement `Client` on librdkafka.

    It only fetches. All other requests go through kafka-python, which reads on after errors of librdkafka. It also
    finds where a log was truncated, and skips batches that cannot be unpacked.
    """

    def __init__(self, settings: KafkaTopic, timeout: float, connections: ConnectionGroup) -> None:
        self._settings, self._topic = settings, settings.topic
        self._requests = KafkaPythonClient(settings, timeout, connections)
        self._consumer: Consumer = None
        self._positions: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._errors: dict[int, KafkaError] = {}
        self._records: list[Records] = []
        self._checked_at, self._trouble = time.monotonic(), ""

    def topic_id(self) -> str | None:
        return self._requests.topic_id()

    def partitions(self, timeout: float) -> Collection[int]:
        self._checked_at = time.monotonic()
        return self._requests.partitions(timeout)

    def offsets(self, partitions: Collection[int], at: Start, timeout: float) -> dict[int, int]:
        return self._requests.offsets(partitions, at, timeout)

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self._close_consumer()
        self._positions, self._epochs, self._records = dict(positions), dict(epochs), []
        keys = [self._key(number, offset, epochs.get(number, UNKNOWN_EPOCH)) for number, offset in positions.items()]
        with translated_errors():  # a new consumer: one compares epochs only when it gets to know the leaders
            self._consumer = Consumer(consumer_options(self._settings) | {"error_cb": self._note})
            self._consumer.assign(keys)
        self.pause(self._paused)

    def pause(self, partitions: Collection[int]) -> None:
        before, self._paused = self._paused, frozenset(partitions)
        if self._consumer is not None:
            assigned = self._positions.keys()
            with translated_errors():
                self._consumer.pause([self._key(number) for number in assigned & self._paused])
                self._consumer.resume([self._key(number) for number in assigned & (before - self._paused)])

    def poll(self, timeout: float) -> list[Records]:
        if reasons := {error.str() for error in self._errors.values() if error.code() not in POSITION_ERRORS}:
            raise ClientError("; ".join(sorted(reasons)))
        if self._errors:
            self._read_on(tuple(self._errors))
        if self._records:
            records, self._records = self._records, []
            return records
        with translated_errors():
            count = self._settings.max_poll_records
            messages = self._consumer.consume(count, 0) or self._consumer.consume(1, timeout)
        if messages and time.monotonic() > self._checked_at + CHECK_SECONDS:
            self.partitions(REQUEST_TIMEOUT_SECONDS)
        by_partition: dict[int, list[Message]] = {}
        for number, run in groupby(messages, Message.partition):
            by_partition.setdefault(number, []).extend(run)
        return [
            self._taken(number, some) for number, some in by_partition.items() if self._without_errors(number, some)
        ]

    def _without_errors(self, number: int, messages: list[Message]) -> list[Message]:
        """Remove errors from the messages of a partition. The next poll handles them unless they are its end."""
        if any(map(Message.error, messages)):
            for message in filter(Message.error, messages):
                if message.error().code() == KafkaError._PARTITION_EOF:
                    self._positions[number] = message.offset()
                else:
                    self._errors[number] = message.error()
            messages[:] = [message for message in messages if not message.error()]
        return messages

    def _taken(self, number: int, messages: Sequence[Message]) -> Records:
        offsets = [*map(Message.offset, messages)]
        self._positions[number] = max(self._positions[number], offsets[-1] + 1)
        self._epochs[number] = messages[-1].leader_epoch()
        return Records(self._topic, number, offsets, [*map(Message.value, messages)], WrittenAt(messages))

    def unblock(self, partitions: Collection[int]) -> None:
        if self._trouble:
            raise ClientError(self._trouble)
        self._read_on(partitions)

    def _read_on(self, partitions: Collection[int]) -> None:
        """Let kafka-python read some messages of each partition, then continue here.

        Raises:
            OffsetsGoneError: The log no longer has the next messages.
            ClientError: No message comes.
        """
        read: list[Records] = []
        for number in partitions:
            epochs = {key: epoch for key, epoch in self.epochs().items() if key == number}
            self._requests.assign({number: self._positions[number]}, epochs)
            records = self._requests.read_alone([number])
            position = self._requests.position(number)
            if position == self._positions[number]:
                self._requests.unblock(partitions)
            read += records
            self._positions[number] = position
            self._epochs |= {number: UNKNOWN_EPOCH} | self._requests.epochs()
        self._requests.assign({}, {})
        self.assign(self._positions, self.epochs())
        self._records = read

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def epochs(self) -> dict[int, int]:
        return {number: epoch for number, epoch in self._epochs.items() if epoch not in (None, UNKNOWN_EPOCH)}

    def highwater(self, partition: int) -> int | None:
        with translated_errors():
            offsets = self._consumer.get_watermark_offsets(self._key(partition), cached=True)
        return offsets[1] if offsets and offsets[1] >= 0 else None

    def close(self) -> None:
        self._close_consumer()
        self._requests.close()

    def _close_consumer(self) -> None:
        consumer, self._consumer, self._errors, self._trouble = self._consumer, None, {}, ""
        with translated_errors():
            if consumer is not None:
                consumer.close()

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()

    def _key(self, partition: int, offset: int = OFFSET_INVALID, epoch: int = UNKNOWN_EPOCH) -> TopicPartition:
        return TopicPartition(self._topic, partition, offset, leader_epoch=epoch)


class WrittenAt(Sequence[int]):
    """Hold when messages were written, in milliseconds since 1970. Read them on demand, as few are needed."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [message.timestamp()[1] for message in self._messages[index]]
        return int(self._messages[index].timestamp()[1])


class ConfluentProducer:
    """Offer the methods of `kafka.KafkaProducer` that `producer.py` uses, on librdkafka."""

    def __init__(
        self, connection: KafkaConnection, delivery_timeout: float, block_timeout: float, compression: str = "none"
    ) -> None:
        options: dict[str, Any] = {"linger.ms": 20, "enable.idempotence": True, "compression.type": compression}
        options = connection_options(connection) | options | {"message.timeout.ms": milliseconds(delivery_timeout)}
        options |= connection.client_options
        self._producer = Producer(options | {"error_cb": self._note})
        self._block_timeout, self._trouble = block_timeout, "no answer in time"

    def partitions_for(self, topic: str) -> Collection[int]:
        """Return the partitions of a topic.

        Raises:
            KafkaConnectionError: The cluster does not answer.
        """
        try:
            return frozenset(self._producer.list_topics(topic, self._block_timeout).topics[topic].partitions)
        except KafkaException as error:
            raise KafkaConnectionError(self._trouble) from error

    def send(self, topic: str, value: bytes, **options: Any) -> Delivery:
        """Send a message, and return at once. Its acknowledgement comes later.

        Raises:
            KafkaTimeoutError: The queue stays full.
        """
        delivery, deadline = Delivery(), time.monotonic() + self._block_timeout
        while True:
            try:
                self._producer.produce(topic, value, on_delivery=delivery.answer, **options)
                self._producer.poll(0)
                return delivery
            except BufferError:
                self._producer.poll(SLICE_SECONDS)
                if time.monotonic() > deadline:
                    raise KafkaTimeoutError(self._trouble) from None
            except KafkaException as error:
                delivery.answer(error.args[0], None)
                return delivery

    def flush(self, timeout: float) -> None:
        """Wait for the acknowledgements of all messages.

        Raises:
            KafkaTimeoutError: Some are missing after `timeout` seconds.
        """
        if self._producer.flush(timeout):
            raise KafkaTimeoutError(self._trouble)

    def force_close(self) -> None:
        """Drop messages that are still under way."""
        self._producer.purge()
        self._producer.flush(0)

    def _note(self, error: KafkaError) -> None:
        self._trouble = error.str()


class Delivery:
    """Receive the answer to a message."""

    exception: Exception | None = None
    _answered = False

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Exception], object]] = []

    def answer(self, error: KafkaError | None, message: Message) -> None:
        self._answered = True
        if error is not None:
            too_large = error.code() == KafkaError.MSG_SIZE_TOO_LARGE
            self.exception = (MessageSizeTooLargeError if too_large else KafkaConnectionError)(error.str())
            for callback in self._callbacks:
                callback(self.exception)

    def add_errback(self, callback: Callable[[Exception], object]) -> None:
        self._callbacks.append(callback)
        if self.exception is not None:
            callback(self.exception)

    def succeeded(self) -> bool:
        return self._answered and self.exception is None


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
