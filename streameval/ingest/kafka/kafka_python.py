"""Read one topic through kafka-python."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import (
    CorruptRecordError,
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
    for_code,
)

from streameval.events.diagnosis import cut
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka import kafka_python_internals as internals
from streameval.ingest.kafka.client import ClientError, OffsetsGoneError, with_schema_id
from streameval.ingest.kafka.connection import KafkaConnection, KafkaTopic, Start, shared_options
from streameval.ingest.kafka.oauth import provider_of, shared_credentials

RECONNECT_BACKOFF_MAX_MS = 2000  # the default of 30 s delays the reconnect to a broker that is back
HUNG_UP = "socket disconnected"
REFUSED = ", as brokers do that refuse the authentication"
"""Such brokers report the reason and close the connection. If both arrive at once, the library drops the reason."""
UNDECODABLE = "Unable to decode response"
EMBEDDED = ', as the embedded broker does (`streameval demo`): set api_version to "2.3", with `produce` by --config'
"""The mock cluster of librdkafka (2.16) answers a request for versions in a form that nobody else writes or reads."""
REQUEST_TIMEOUT_SECONDS = 5.0
POLL_BYTES, FIRST_MEAN_BYTES = 2 * 2**20, 10_000
"""Bytes of the messages of one poll, on average, and of a message before the first ones are known."""
SKIP_SECONDS = 5.0
"""Time for skipping messages of a damaged batch in one poll, so that the caller stays alive."""


def connection_options(connection: KafkaConnection) -> dict[str, Any]:
    """Translate the settings of a connection into arguments of all classes of kafka-python."""
    options = shared_options(connection, "kafka-python") | {
        "bootstrap_servers": connection.bootstrap_servers,
        "client_id": "streameval",
        "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
    }
    if connection.api_version is not None:
        options["api_version"] = connection.api_version
    if connection.sasl_oauth_url is not None:
        client_id, secret = options.pop("sasl_plain_username"), options.pop("sasl_plain_password")
        provider = shared_credentials(connection.sasl_oauth_url, client_id, secret, connection.sasl_oauth_scope)
        options["sasl_oauth_token_provider"] = provider
    elif (called := provider_of(connection)) is not None:
        options["sasl_oauth_token_provider"] = called
    return options


def arguments(make: Any, connection: KafkaConnection, **options: Any) -> dict[str, Any]:
    """Return the arguments of a class of kafka-python.

    Args:
        make: The class, which tells which `client_options` of the configuration it has. They come last.
        connection: How to reach the cluster.
        options: More arguments.
    """
    more = connection.client_options if connection.client == "kafka-python" else {}
    last = {name: value for name, value in more.items() if name in make.DEFAULT_CONFIG}
    return connection_options(connection) | options | last


def consumer_options(settings: KafkaTopic) -> dict[str, Any]:
    """Translate the settings of a source into arguments of `kafka.KafkaConsumer`."""
    return arguments(
        KafkaConsumer,
        settings,
        enable_auto_commit=False,
        auto_offset_reset="none",  # other values skip messages silently after a truncation
        isolation_level="read_committed",
        check_crcs=True,
        max_poll_records=settings.max_poll_records,
        fetch_max_bytes=settings.fetch_max_bytes,
        metrics_enabled=False,
    )


def connected(make: Any, options: Mapping[str, Any], timeout: float, connections: ConnectionGroup) -> tuple[Any, Any]:
    """Return a client of kafka-python that has reached a broker, and its connections.

    Args:
        make: `KafkaConsumer`, `KafkaProducer` or `KafkaAdminClient`.
        options: Its arguments.
        timeout: Seconds to wait for a broker.
        connections: Closing them makes every call of the client fail, also one under way.

    Raises:
        KafkaError: No broker was reached in time.
    """
    with _reasons_to_fail() as reasons:
        try:
            options = {**options, "bootstrap_timeout_ms": milliseconds(timeout)}
            client, made = internals.open_client(make, options, connections)
            if isinstance(client, KafkaConsumer):
                try:
                    client.bootstrap(timeout_ms=milliseconds(timeout))
                except BaseException:
                    client.close(autocommit=False, timeout_ms=0)
                    raise
        except KafkaTimeoutError as error:
            if not reasons:
                raise
            cause = REFUSED if set(reasons) == {HUNG_UP} and "sasl_mechanism" in options else ""
            cause = EMBEDDED if any(UNDECODABLE in reason for reason in reasons) else cause
            raise KafkaConnectionError("; ".join(reasons) + cause) from error

    return client, made


@contextmanager
def _reasons_to_fail() -> Iterator[dict[str, None]]:
    """Collect why connections fail during the block, each reason once: the library only logs the reasons."""
    reasons: dict[str, None] = {}

    def listen(record: logging.LogRecord) -> bool:
        for cause in record.args if isinstance(record.args, tuple) else ():
            if isinstance(cause, Exception) and not isinstance(cause, KafkaTimeoutError):
                reasons[plain(cause)] = None
        return record.levelno >= level

    manager = logging.getLogger("kafka.net.manager")
    level, set_level = manager.getEffectiveLevel(), manager.level
    manager.addFilter(listen)
    manager.setLevel(min(level, logging.WARNING))  # also if the library is not to be logged
    try:
        yield reasons
    finally:
        manager.setLevel(set_level)
        manager.removeFilter(listen)


class KafkaPythonClient:
    """Implement `Client` on kafka-python."""

    def __init__(self, settings: KafkaTopic, timeout: float, connections: ConnectionGroup) -> None:
        self._topic = settings.topic
        self._positions: dict[int, int] = {}
        self._epochs: dict[int, tuple[int | None, int]] = {}  # the epoch, and the position to which it belongs
        self._paused: frozenset[int] = frozenset()
        self._is_damaged = False
        self._topic_id: str | None = None
        self._newest_topic_id: str | None = None
        patience = {"request_timeout_ms": milliseconds(timeout)}  # it is waited for
        with translated_errors():
            options = arguments(KafkaAdminClient, settings) | patience
            self._administrator, _ = connected(KafkaAdminClient, options, timeout, connections)
            try:
                options = consumer_options(settings)
                self._consumer, self._connections = connected(KafkaConsumer, options, timeout, connections)
            except BaseException:
                self._administrator.close()
                raise
        internals.keep_epochs(self._consumer)
        self._max_message_bytes, self._max_poll_records = settings.max_message_bytes, settings.max_poll_records
        self._mean_bytes = FIRST_MEAN_BYTES
        self._reads_schema_ids = settings.reads_schema_ids
        self._allowance = internals.bound_messages(
            self._consumer, settings.max_message_bytes, with_headers=self._reads_schema_ids
        )

    def topic_id(self) -> str | None:
        newest = internals.topic_id(self._connections, self._topic)
        if newest not in (None, self._newest_topic_id):
            self._topic_id = self._newest_topic_id = newest
        return self._topic_id

    def partitions(self, timeout: float) -> Collection[int]:
        """Request the partitions that exist now, none if the topic does not exist.

        Raises:
            ClientError: The brokers do not answer, or refuse to. The time for this is set with the connection.
        """
        with translated_errors():
            (topic,) = self._administrator.describe_topics([self._topic])
            error = for_code(topic["error_code"])
            if error is UnknownTopicOrPartitionError:
                return ()
            if topic["error_code"]:
                raise error(f"cannot list the partitions of {self._topic}")
        topic_id = topic.get("topic_id")
        self._topic_id = self._topic_id if topic_id in (None, UUID(int=0)) else str(topic_id)
        return [partition["partition_index"] for partition in topic["partitions"]]

    def offsets(self, partitions: Collection[int], at: Start, timeout: float) -> dict[int, int]:
        keys, timeout_ms = [self._key(partition) for partition in partitions], milliseconds(timeout)
        with translated_errors():
            look_up = self._consumer.beginning_offsets if at == "earliest" else self._consumer.end_offsets
            offsets = dict(look_up(keys, timeout_ms=timeout_ms))
            if isinstance(at, datetime):
                times = dict.fromkeys(keys, milliseconds(at.timestamp()))
                since = self._consumer.offsets_for_times(times, timeout_ms=timeout_ms)
                offsets |= {key: position.offset for key, position in since.items() if position is not None}
        return {key.partition: offset for key, offset in offsets.items()}

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self._positions = dict(positions)
        self._epochs = {number: (epoch, positions[number]) for number, epoch in epochs.items() if number in positions}
        self._restart()

    def pause(self, partitions: Collection[int]) -> None:
        self._paused = frozenset(partitions)
        self._assign(self._positions.keys() - self._paused)

    def _restart(self) -> None:
        """Read on at the positions, with nothing fetched before."""
        self._assign_anew(self._positions.keys() - self._paused)

    def _assign_anew(self, partitions: Collection[int]) -> None:
        """Forget the fetched messages and the ends of logs, which may have been cut, and read these partitions."""
        with translated_errors():
            self._consumer.assign([])
        self._assign(partitions)

    def _assign(self, partitions: Collection[int]) -> None:
        """Read these partitions, and others not.

        A partition that is paused in the library (3.0.12) and resumed later may never be read again.
        """
        with translated_errors():
            assigned, epochs = {key.partition for key in self._consumer.assignment()}, self.epochs()
            for number in assigned - set(partitions):
                self.position(number)
            if assigned != set(partitions):
                self._consumer.assign([self._key(number) for number in partitions])
            for number in set(partitions) - assigned:
                self._consumer.seek(self._key(number), self._positions[number])
                if number in epochs:  # `seek` takes no epoch, so the library would not compare it
                    internals.seek(self._consumer, self._key(number), self._positions[number], epochs[number])

    def poll(self, timeout: float) -> list[Records]:
        if self._is_damaged:
            return self.read_alone(self._positions.keys() - self._paused)
        try:
            return self._fetch(timeout)
        except UnreadableError:
            self._is_damaged = True  # messages of other partitions have been fetched, too
            return []

    def _fetch(self, timeout: float) -> list[Records]:
        """Return the messages that have come.

        Raises:
            UnreadableError: A batch cannot be unpacked.
        """
        with translated_errors():
            try:
                polled = self._poll(milliseconds(timeout))
            except (CorruptRecordError, UnsupportedCodecError) as error:
                raise UnreadableError(plain(error)) from error
            except KafkaError:
                raise
            except Exception as error:  # each codec has its own errors
                raise UnreadableError(f"{type(error).__name__}: {error}") from error
        return [self._taken(key.partition, messages) for key, messages in polled.items()]

    def _poll(self, timeout_ms: int) -> Mapping[TopicPartition, Sequence[Any]]:
        self._allowance.refill()
        poll = partial(self._consumer.poll, timeout_ms=timeout_ms, max_records=self._most)
        try:
            polled: Mapping[TopicPartition, Sequence[Any]] = poll()
        except internals.AllowanceSpentError:  # by the poll before
            polled = poll()
        return polled

    @property
    def _most(self) -> int:
        """Return how many messages a poll may return: fewer if the last ones were long. A turn takes them at once."""
        return min(self._max_poll_records, max(1, POLL_BYTES // self._mean_bytes))

    def _taken(self, number: int, messages: Sequence[Any]) -> Records:
        offsets = [message.offset for message in messages]
        self._move(number, offsets[-1] + 1, messages[-1].leader_epoch)
        values, timestamps = [message.value for message in messages], [message.timestamp for message in messages]
        if self._reads_schema_ids:
            values = [with_schema_id(message.value, message.headers) for message in messages]
        return Records(self._topic, number, offsets, self._cut(values), timestamps)

    def _cut(self, values: list[bytes | None]) -> list[bytes | None]:
        """Cut messages that are longer than the limit."""
        limit, sizes = self._max_message_bytes, [len(value or b"") for value in values]
        self._mean_bytes = sum(sizes) // len(sizes) + 1
        if max(sizes) <= limit:
            return values
        return [cut(value, len(value), "message") if value and len(value) > limit else value for value in values]

    def _move(self, number: int, position: int, epoch: int | None) -> None:
        self._positions[number], self._epochs[number] = position, (epoch, position)

    def read_alone(self, partitions: Collection[int]) -> list[Records]:
        """Read some messages of each partition that has unread ones, and skip those that cannot be unpacked.

        The library reports neither the partition nor the end of a batch that it cannot unpack, and never continues
        after one. So each partition is read without the others, and offsets are tried one after another.
        """
        ends = self.offsets(partitions, "latest", REQUEST_TIMEOUT_SECONDS)
        records = [part for number, end in ends.items() for part in self._read_past_damage(number, end)]
        self._is_damaged = False
        self._restart()
        return records

    def _read_past_damage(self, number: int, end: int) -> list[Records]:
        records, is_damaged = list[Records](), True
        while is_damaged and self._positions[number] < end:
            part, is_damaged = self._read_one(number, end)
            records += part
        return records

    def _read_one(self, number: int, end: int) -> tuple[list[Records], bool]:
        """Read some messages of a partition, after skipping those that cannot be unpacked.

        Args:
            number: The partition, with unread messages.
            end: The end of its log.

        Returns:
            The messages, and whether they are followed by one that cannot be unpacked.
        """
        start = offset = self._positions[number]
        records, reason, is_damaged = list[Records](), "", False
        deadline = time.monotonic() + SKIP_SECONDS
        while offset < end and (offset == start or time.monotonic() < deadline):  # skips at least one
            self._positions[number] = offset
            self._assign_anew([number])
            try:
                records = self._fetch(REQUEST_TIMEOUT_SECONDS)
                self.position(number)
                break
            except UnreadableError as error:
                offset += bool(reason)  # the first offset is tried twice: the error may have been of the network
                reason = str(error)
        try:
            records += self._fetch(0.0) if records else []
        except UnreadableError:
            is_damaged = True
        if offset == start:
            return records, is_damaged
        self.offsets([number], "latest", REQUEST_TIMEOUT_SECONDS)  # raises if not the batch but the library is broken
        self._positions[number] = max(self._positions[number], offset)
        skipped = range(start, offset)
        lost = Records(self._topic, number, skipped, [None] * len(skipped), unreadable=reason)
        return [lost, *records], is_damaged

    def unblock(self, partitions: Collection[int]) -> None:
        raise ClientError(f"partitions {sorted(partitions)} have unread events, but none arrives")

    def position(self, partition: int) -> int:
        with translated_errors():
            if self._key(partition) in self._consumer.assignment():
                position = self._consumer.position(self._key(partition), timeout_ms=0)
                self._positions[partition] = max(position, self._positions[partition])
        return self._positions[partition]

    def epochs(self) -> dict[int, int]:
        return {
            number: epoch
            for number, (epoch, position) in self._epochs.items()
            if epoch is not None and epoch >= 0 and position == self._positions[number]
        }

    def highwater(self, partition: int) -> int | None:
        key = self._key(partition)
        highwater: int | None = self._consumer.highwater(key) if key in self._consumer.assignment() else None
        return highwater

    def close(self) -> None:
        with translated_errors():
            try:
                self._consumer.close(autocommit=False, timeout_ms=0)
            finally:
                self._administrator.close()

    def _key(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)


class UnreadableError(ClientError):
    """Report a batch that cannot be unpacked."""


@contextmanager
def translated_errors() -> Iterator[None]:
    """Raise errors of kafka-python as `ClientError`.

    Raises:
        OffsetsGoneError: The log no longer has the next messages.
        ClientError: The library reports another failure.
    """
    try:
        yield
    except ClientError:
        raise
    except OffsetOutOfRangeError as error:
        raise OffsetsGoneError({key.partition: None for key in error.args[0]}) from error
    except LogTruncationError as error:
        resume = {key.partition: position and position.offset for key, position in error.divergent_offsets.items()}
        raise OffsetsGoneError(resume) from error
    except KafkaError as error:
        raise ClientError(plain(error)) from error
    except Exception as error:  # a crash of the library's network thread, raised in the next call
        raise ClientError(repr(error)) from error


def plain(error: Exception) -> str:
    """Return the message of an error without the class name that kafka-python puts before it."""
    wordy = isinstance(error, KafkaConnectionError | KafkaTimeoutError) and error.args
    return ", ".join(map(str, error.args)) if wordy else str(error)


def milliseconds(seconds: float) -> int:
    """Return seconds as whole milliseconds, at least 0."""
    return max(0, round(seconds * 1000))
