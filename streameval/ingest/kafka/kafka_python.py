"""One topic read through kafka-python, with a network that any thread may close at any time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from threading import RLock
from types import SimpleNamespace
from typing import Any, TypeAlias

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.consumer.fetcher import Fetcher
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.record.default_records import DefaultRecord
from kafka.structs import OffsetAndMetadata
from pydantic import SecretStr

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import ClientError, OffsetsGoneError
from streameval.ingest.kafka.connection import KafkaConnection, KafkaTopic, Start
from streameval.ingest.kafka.oauth import shared_credentials

RECONNECT_BACKOFF_MAX_MS = 2000  # the default of 30 s delays the reconnect to a broker that is back
RENAMED = {"sasl_username": "sasl_plain_username", "sasl_password": "sasl_plain_password"}
"""Settings whose names in the library differ."""
NO_ARGUMENTS = {"client", "client_options", "request_timeout", "sasl_oauth_url", "sasl_oauth_scope"}
"""Settings that become arguments in another way."""
HUNG_UP = "socket disconnected"
REFUSED = ", as brokers do that refuse the authentication"
"""Such brokers report the reason and close the connection; when both arrive at once, the library drops the reason."""
INSIDE = suppress(AttributeError)
"""Around private attributes of the library: with a version that lacks them, the statement is skipped."""

FetchedMessage: TypeAlias = tuple[int, bytes | None, int]
"""Offset, value, and the time of writing in milliseconds since 1970."""

CURRENT_FORMAT = 2
"""The `magic` of batches since Kafka 0.11."""
LARGEST_SHIFT = 63
"""Bits by which the last byte of a number is shifted at most."""
UNPACKING_ERRORS = (AttributeError, IndexError, ValueError)


class Network(KafkaNetClient):  # type: ignore[misc]  # the library ships no types
    """The network of the library, which by itself fails when it is closed by two threads or while it starts."""

    def __init__(self, **options: Any) -> None:
        self._loop = _Loop(**options)
        self._loop.network = self
        super().__init__(net=self._loop, **options)

    def ask(self, timeout: float) -> None:
        """Request the metadata of the cluster.

        Raises:
            KafkaError: No broker answers in time.
            RuntimeError: This is closed.
        """

        async def asked() -> None:
            await self._manager.wait_for(self.cluster.request_update(), 1000 * timeout)

        try:
            self._loop.run(asked)
        except KafkaTimeoutError:
            raise KafkaTimeoutError(f"no metadata within {timeout:g} s") from None

    def close(self, node_id: object = None) -> None:
        with self._loop.lock:
            super().close(node_id)


class _Loop(NetworkSelector):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = RLock()
        self.network: Network | None = None  # so that it can be closed for as long as its thread runs

    def start(self) -> None:
        """Start the thread unless this is closed, and wait until it runs: before that it would miss a close."""
        with self.lock:
            if not self._closed:
                super().start()
                self.run(bool)  # does nothing, in the thread


def connection_options(connection: KafkaConnection) -> dict[str, Any]:
    """The named settings of a connection as arguments of kafka-python, for all its classes."""
    options: dict[str, Any] = {"client_id": "streameval", "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS}
    for name in KafkaConnection.model_fields.keys() - NO_ARGUMENTS:
        value = getattr(connection, name)
        if value is not None:
            options[RENAMED.get(name, name)] = value.get_secret_value() if isinstance(value, SecretStr) else value
    if connection.sasl_oauth_url is not None:
        client_id, secret = options.pop("sasl_plain_username"), options.pop("sasl_plain_password")
        provider = shared_credentials(connection.sasl_oauth_url, client_id, secret, connection.sasl_oauth_scope)
        options["sasl_oauth_token_provider"] = provider
    return options | {"request_timeout_ms": milliseconds(connection.request_timeout)}


def with_client_options(make: Any, options: Mapping[str, Any], connection: KafkaConnection) -> dict[str, Any]:
    """Arguments of a class of kafka-python, with those of `client_options` that it has."""
    more = connection.client_options if connection.client == "kafka-python" else {}
    return {**options, **{name: value for name, value in more.items() if name in make.DEFAULT_CONFIG}}


def consumer_options(settings: KafkaTopic) -> dict[str, Any]:
    """The settings of a source as arguments of `kafka.KafkaConsumer`."""
    options = connection_options(settings) | {
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # other values skip messages silently after a truncation
        "isolation_level": "read_committed",
        "check_crcs": False,  # the client does, and skips what is damaged
        "max_poll_records": settings.max_poll_records,
        "fetch_max_bytes": settings.fetch_max_bytes,
        "metrics_enabled": False,
    }
    return with_client_options(KafkaConsumer, options, settings)


def administrator_options(connection: KafkaConnection) -> dict[str, Any]:
    """The settings of a connection as arguments of `kafka.KafkaAdminClient`."""
    return with_client_options(KafkaAdminClient, connection_options(connection), connection)


def connected(
    make: Callable[..., Any], options: Mapping[str, Any], timeout: float, connections: ConnectionGroup | None = None
) -> tuple[Any, Network]:
    """A consumer, producer or administrator of kafka-python that has reached a broker, and its network.

    After a failure it closes the network, whose thread the library would leave running. Closing `connections` makes
    every call under way fail, and all later ones. Topics are not created by requests for their metadata; the library
    does not pass that option on by itself.

    Raises:
        KafkaError: No broker was reached within `timeout` seconds.
    """
    made: list[Network] = []

    def make_network(**network_options: Any) -> Network:
        made.append(Network(**network_options))
        made[0].cluster.config["allow_auto_create_topics"] = False
        if connections is not None:
            connections.add(made[0])
        return made[0]

    with _reasons_to_fail() as reasons:
        try:
            client = make(kafka_client=make_network, bootstrap_timeout_ms=milliseconds(timeout), **options)
            if isinstance(client, KafkaConsumer):
                client.bootstrap(timeout_ms=milliseconds(timeout))
        except BaseException as error:
            for network in made:
                network.close()
            if isinstance(error, KafkaTimeoutError) and reasons:
                refused = REFUSED if set(reasons) == {HUNG_UP} and "sasl_mechanism" in options else ""
                raise KafkaConnectionError("; ".join(reasons) + refused) from error
            raise
    gc.collect()  # reference cycles keep the sockets of failed clients open
    return client, made[0]


@contextmanager
def _reasons_to_fail() -> Iterator[dict[str, None]]:
    """Why connections fail during the block, each reason once: the library only logs the reasons."""
    reasons: dict[str, None] = {}

    def listen(record: logging.LogRecord) -> bool:
        for cause in record.args if isinstance(record.args, tuple) else ():
            if isinstance(cause, Exception) and not isinstance(cause, KafkaTimeoutError):
                reasons[plain(cause)] = None
        return record.levelno >= level

    manager = logging.getLogger("kafka.net.manager")
    level, set_level = manager.getEffectiveLevel(), manager.level
    manager.addFilter(listen)
    manager.setLevel(min(level, logging.WARNING))  # also where the library is not to be logged
    try:
        yield reasons
    finally:
        manager.setLevel(set_level)
        manager.removeFilter(listen)


class KafkaPythonClient:
    """The `Client` on kafka-python."""

    def __init__(self, settings: KafkaTopic, timeout: float, connections: ConnectionGroup) -> None:
        self._topic = settings.topic
        self._paused: frozenset[int] = frozenset()
        self._damaged: set[tuple[int, int]] = set()
        self._unreadable: list[Records] = []
        with translated_errors():
            self._consumer, self._network = connected(KafkaConsumer, consumer_options(settings), timeout, connections)
            self._cluster = self._network.cluster
            self._consumer._fetcher.PartitionRecords = self._partition_records

    def topic_id(self) -> str | None:
        topic_id = self._cluster.topic_id(self._topic)
        return None if topic_id is None else str(topic_id)

    def partitions(self, timeout: float) -> Collection[int]:
        with translated_errors():
            self._cluster.add_topic(self._topic)
            with suppress(UnknownTopicOrPartitionError):
                self._network.ask(timeout)
                if self._cluster.partitions_for_topic(self._topic) is None:
                    self._network.ask(timeout)  # the first answer was to a request from before the topic was added
            return self._cluster.partitions_for_topic(self._topic) or frozenset()

    def offsets(self, partitions: Collection[int], at: Start, timeout: float) -> dict[int, int]:
        keys, timeout_ms = [self._key(partition) for partition in partitions], milliseconds(timeout)
        with translated_errors():
            look_up = self._consumer.beginning_offsets if at == "earliest" else self._consumer.end_offsets
            found = dict(look_up(keys, timeout_ms=timeout_ms))
            if isinstance(at, datetime):
                times = dict.fromkeys(keys, milliseconds(at.timestamp()))
                since = self._consumer.offsets_for_times(times, timeout_ms=timeout_ms)
                found |= {key: place.offset for key, place in since.items() if place is not None}
        return {key.partition: offset for key, offset in found.items()}

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self._unreadable.clear()
        with translated_errors():
            self._consumer.assign([])  # the library would keep the ends of logs, which may have been cut
            self._consumer.assign([self._key(partition) for partition in positions])
            for partition, offset in positions.items():
                self._consumer.seek(self._key(partition), offset)
                if partition in epochs:  # `seek` takes no epoch, so the library would not compare it
                    place = OffsetAndMetadata(offset, "", epochs[partition])
                    with INSIDE:
                        self._consumer._subscription.seek(self._key(partition), place)
        self.pause(self._paused)

    def pause(self, partitions: Collection[int]) -> None:
        self._paused = frozenset(partitions)
        with translated_errors():
            for key in self._consumer.assignment():
                paused = key.partition in self._paused
                (self._consumer.pause if paused else self._consumer.resume)(key)

    def poll(self, timeout: float) -> list[Records]:
        with translated_errors():
            self._drop_empty_fetch()
            polled = self._consumer.poll(timeout_ms=milliseconds(timeout))
        unreadable, self._unreadable = self._unreadable, []
        records = []
        for key, messages in polled.items():
            offsets, values, timestamps = zip(*messages, strict=True)
            records.append(Records(key.topic, key.partition, offsets, values, timestamps))
        return records + unreadable

    def _partition_records(self, offset: int, key: TopicPartition, records: Any, *rest: Any, **options: Any) -> Any:
        """The messages of a fetch.

        The library (3.0.12) starts them with an unknown leader epoch, and gives it to the position after a fetch
        without messages; a truncation is then not noticed. It never continues after a batch that it cannot unpack.
        """

        def next_batch() -> Any:
            batch = records.next_batch()
            if batch is None or batch.validate_crc():
                return batch and FetchedBatch(batch, lambda: part.next_fetch_offset, skip)
            start = part.next_fetch_offset
            if (key.partition, start) not in self._damaged:  # fetch it again: the error may be of the network
                self._damaged.add((key.partition, start))
                return None
            following = int.from_bytes(records._next_slice[:8], "big") if records.has_next() else None
            limit = self.highwater(key.partition) if following is None else following
            claimed = getattr(batch, "next_offset", start)  # old formats do not have it
            is_plausible = limit is not None and start < claimed <= limit
            skip(claimed if is_plausible else following or start + 1, None, "the checksum is wrong")
            return SKIPPED

        def skip(end: int, count: int | None, reason: str) -> None:
            offsets = range(part.next_fetch_offset, max(end, part.next_fetch_offset + 1))
            lost = offsets if count is None else offsets[max(0, len(offsets) - count) :]
            if lost:
                self._unreadable.append(Records(key.topic, key.partition, lost, [None] * len(lost), unreadable=reason))
            part.next_fetch_offset = offsets[-1] + 1

        part = FetchedMessages(offset, key, SimpleNamespace(next_batch=next_batch), *rest, **options)
        part.leader_epoch = self._consumer._subscription.assignment[key].position.leader_epoch
        return part

    def _drop_empty_fetch(self) -> None:
        """Drop a fetch that was returned completely, so that one of a paused partition can be put back in its place.

        The library (3.0.12) puts such a fetch back only where no other is current, and keeps an exhausted one current:
        the partition, once resumed, would never be read again.
        """
        with INSIDE:
            fetcher = self._consumer._fetcher
            if not fetcher._next_partition_records:
                fetcher._next_partition_records = None

    def unblock(self, partitions: Collection[int]) -> None:
        raise ClientError(f"partitions {sorted(partitions)} have unread events, but none arrives")

    def position(self, partition: int) -> int:
        with translated_errors():
            return int(self._consumer.position(self._key(partition), timeout_ms=0))

    def epochs(self) -> dict[int, int]:
        known: dict[int, Any] = {}
        with INSIDE:
            known = {key.partition: state.position for key, state in self._consumer._subscription.assignment.items()}
        return {number: place.leader_epoch for number, place in known.items() if place and place.leader_epoch >= 0}

    def highwater(self, partition: int) -> int | None:
        highwater: int | None = self._consumer.highwater(self._key(partition))
        return highwater

    def close(self) -> None:
        with translated_errors():
            self._consumer.close(autocommit=False, timeout_ms=0)

    def _key(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)


class FetchedMessages(Fetcher.PartitionRecords):  # type: ignore[misc]  # as above
    """The messages of a fetch in one partition, each a `FetchedMessage`.

    The library makes several objects of each message. Here it only decides which batches are returned: `FetchedBatch`
    unpacks one, and yields its messages as the value of one record.
    """

    next_fetch_offset: int
    record_iterator: Iterator[DefaultRecord] | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._left: list[FetchedMessage] = []
        self._end = self.next_fetch_offset  # behind the messages that are left

    def __bool__(self) -> bool:
        return bool(self._left) or super().__bool__()

    def drain(self) -> None:
        """Forget all messages."""
        self._left = []
        super().drain()

    def take(self, n: int) -> list[FetchedMessage]:
        """The next messages, up to `n`; an error behind some of them is raised by the next call."""
        messages, self._left = self._left, []
        if messages:
            self.next_fetch_offset = self._end
        try:
            while len(messages) < n and self.record_iterator is not None:
                found = super().take(1)
                if not found:
                    break
                messages += found[0].value
        except Exception as error:
            if not messages:
                raise
            self._next_inline_exception = error
        if len(messages) > n:
            self._end, self._left = self.next_fetch_offset, messages[n:]
            messages = messages[:n]
            self.next_fetch_offset = messages[-1][0] + 1
        return messages


class FetchedBatch:
    """A batch of the library whose messages from the offset `start()` on are the value of one record.

    Where messages cannot be unpacked, `skip` is called with the next offset after the batch, the number of its
    messages, and the reason.
    """

    def __init__(self, batch: Any, start: Callable[[], int], skip: Callable[[int, int | None, str], None]) -> None:
        self._batch, self._start, self._skip = batch, start, skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __iter__(self) -> Iterator[DefaultRecord]:
        messages, error = list[FetchedMessage](), None
        try:
            messages = _unpacked(iter(self._batch))
        except UNPACKING_ERRORS:  # let the library read as far as it can, and find the reason
            messages, error = _read_by_library(self._batch)
        except Exception as reason:  # noqa: BLE001 - each codec has its own errors; they are reported
            error = reason
        start = self._start()
        if messages and messages[0][0] < start:
            messages = [message for message in messages if message[0] >= start]
        if messages:
            yield DefaultRecord(self._batch.size_in_bytes, messages[-1][0], messages[-1][2], 0, None, messages, [])
        if error is not None:
            end = getattr(self._batch, "next_offset", self._batch.base_offset + 1)  # old formats have no next one
            self._skip(end, getattr(self._batch, "records_count", None), f"{type(error).__name__}: {error}")

    def __next__(self) -> Any:
        return next(self._batch)


class SkippedBatch(tuple[()]):
    """Stands for a batch with a wrong checksum, of which no number can be trusted."""

    magic = 0


SKIPPED = SkippedBatch()


def _read_by_library(batch: Any) -> tuple[list[FetchedMessage], Exception | None]:
    """The messages of a batch as far as the library can read them, and the error that ended it."""
    messages = list[FetchedMessage]()
    try:
        messages.extend((record.offset, record.value, record.timestamp) for record in batch)
    except Exception as error:  # noqa: BLE001 - as above
        return messages, error
    return messages, None


def _unpacked(batch: Any) -> list[FetchedMessage]:
    """The messages of a batch that the library has decompressed; keys and headers are not read.

    Raises:
        AttributeError, IndexError, ValueError: The batch is of another format, or damaged.
    """
    if batch.magic != CURRENT_FORMAT:
        raise ValueError("the batch is of an older format")
    data, place, messages = bytes(batch._buffer), batch._pos, list[FetchedMessage]()
    offset, time = batch.base_offset, batch.first_timestamp
    for _ in range(batch.records_count):
        size, place = _number(data, place)
        end = place + size
        later, place = _number(data, place + 1)  # after a byte of attributes, which have no meaning yet
        delta, place = _number(data, place)
        key_size, place = _number(data, place)
        size, place = _number(data, place + key_size if key_size > 0 else place)
        after = place + size if size > 0 else place
        if after >= end or (not data[after] and after + 1 != end):  # where the headers are, or a 0 without any
            raise ValueError("the fields of a message are not as long as its record")
        messages.append((offset + delta, None if size < 0 else data[place:after], time + later))
        place = end
    if place != len(data):
        raise ValueError("bytes are left after the last message")
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        messages = [(offset, value, batch.max_timestamp) for offset, value, _ in messages]
    return messages


def _number(data: bytes, place: int) -> tuple[int, int]:
    """The number of variable length at a place, and the place behind it.

    >>> _number(bytes([0x03, 0xac, 0x02]), 0), _number(bytes([0x03, 0xac, 0x02]), 1)
    ((-2, 1), (150, 3))
    """
    byte = data[place]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), place + 1
    value, shift, byte = byte & 0x7F, 7, data[place + 1]
    if byte < 0x80:  # a loop would take longer
        value |= byte << 7
        return (value >> 1) ^ -(value & 1), place + 2
    while shift <= LARGEST_SHIFT:
        place += 1
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise ValueError("a number is too long")


@contextmanager
def translated_errors() -> Iterator[None]:
    """Errors of kafka-python as `ClientError`.

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
        resume = {key.partition: place and place.offset for key, place in error.divergent_offsets.items()}
        raise OffsetsGoneError(resume) from error
    except KafkaError as error:
        raise ClientError(plain(error)) from error
    except Exception as error:  # a crash of the library's network thread, raised in the next call
        raise ClientError(repr(error)) from error


def plain(error: Exception) -> str:
    """The message of an error without the class name that kafka-python puts before it."""
    wordy = isinstance(error, KafkaConnectionError | KafkaTimeoutError) and error.args
    return ", ".join(map(str, error.args)) if wordy else str(error)


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
