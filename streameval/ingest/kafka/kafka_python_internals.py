"""Reach behind the public interface of kafka-python for the guarantees that it cannot give.

`KafkaConsumer` compares leader epochs since https://github.com/dpkp/kafka-python/pull/2978, but `seek` takes no epoch,
so that a log that was truncated while the daemon was stopped is not noticed. It does not show the topic id, so that a
topic that was recreated is noticed late. Its constructor leaves a thread behind when no broker answers, as the
constructors of `KafkaProducer` and `KafkaAdminClient` do. A producer that is closed waits for all its messages. A batch
of compressed messages is unpacked as a whole, whatever its size: a few kilobytes may fill the memory.

It makes the class of each response at the first use, and registers it by a weak reference. If two threads make one at
once (3.0.12), the registered one may be the one that nobody keeps. After the next garbage collection, every response of
that kind then raises ReferenceError until the end of the process.

With a version of the library that lacks what is used here, the function does nothing, and the log says what is lost.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from socket import socket
from typing import Any

import structlog
from kafka import TopicPartition
from kafka.errors import CorruptRecordError, KafkaConnectionError
from kafka.net.inet import KafkaNetSocket
from kafka.protocol.api_message import VersionSubscriptable
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint
from kafka.structs import OffsetAndMetadata

from streameval.events.diagnosis import cut
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.kafka.unpacking import read_varint, skip, unpacked

KEY_BYTES = 2**16
"""Bytes of a record beside its value."""
MAX_SKIPPED_BYTES = 2**29
"""Bytes of a message that can be skipped in about a second."""

log = structlog.get_logger(__name__)
reported: set[str] = set()


lock = threading.RLock()


@contextmanager
def unless_missing(lost: str) -> Iterator[None]:
    """Skip the block if the library lacks what it uses, and log once what is lost by that."""
    try:
        yield
    except (AttributeError, KeyError, TypeError) as error:
        if lost not in reported:
            reported.add(lost)
            log.warning("kafka_python_lacks_internals", lost=lost, error=repr(error))


def open_client(make: Any, options: Mapping[str, Any], group: ConnectionGroup) -> tuple[Any, Any]:
    """Make a client of the library, and close its connections if that fails.

    Requests for metadata do not create topics. The library does not pass that option on by itself.

    Args:
        make: `KafkaConsumer`, `KafkaProducer` or `KafkaAdminClient`.
        options: Its arguments.
        group: Closes the connections together with others.

    Returns:
        The client and its connections.
    """
    made: list[Any] = []

    def make_connections(**arguments: Any) -> Any:
        connections = make.DEFAULT_CONFIG["kafka_client"](**arguments)
        made.append(connections)
        with unless_missing("a missing topic may be created by the daemon"):
            connections.cluster.config["allow_auto_create_topics"] = False
        with unless_missing("closing a client may fail or wait"):
            make_closable(connections)
        group.add(connections)
        return connections

    try:
        client = make(**options, kafka_client=make_connections)
    except BaseException:
        for connections in made:
            connections.close()
        raise
    return client, made[0] if made else None


def make_closable(connections: Any) -> None:
    """Let any thread close the connections: the library fails if two do, and misses a close while it starts."""
    loop, lock = connections._net, threading.RLock()
    start, close = loop.start, connections.close

    def start_unless_closed() -> None:
        with lock:
            if not loop._closed:
                start()
                loop.run(bool)  # does nothing, in the thread

    def close_alone(node_id: object = None) -> None:
        with lock:
            close(node_id)

    loop.start, connections.close = start_unless_closed, close_alone


def topic_id(connections: Any, topic: str) -> str | None:
    """Return the id of a topic in the newest metadata, None if the library or the broker does not give one."""
    newest = None
    with unless_missing("messages of a topic that was recreated may be taken for those of the old one"):
        newest = connections.cluster.topic_id(topic)
    return None if newest is None else str(newest)


def seek(consumer: Any, key: TopicPartition, offset: int, epoch: int) -> None:
    """Move to an offset, and let the broker compare the leader epoch of the message before it."""
    with unless_missing("a log that was truncated and has grown again is not noticed"):
        consumer._subscription.seek(key, OffsetAndMetadata(offset, "", epoch))


def keep_epochs(consumer: Any) -> None:
    """Keep the leader epoch of a position over fetches without messages, with which the library forgets it."""
    with unless_missing("a log that is truncated while nothing is written is not noticed"):
        fetcher, make = consumer._fetcher, consumer._fetcher.PartitionRecords

        def partition_records(offset: int, key: TopicPartition, *rest: Any, **options: Any) -> Any:
            part = make(offset, key, *rest, **options)
            with unless_missing("a log that is truncated while nothing is written is not noticed"):
                part.leader_epoch = consumer._subscription.assignment[key].position.leader_epoch
            return part

        fetcher.PartitionRecords = partition_records


class AllowanceSpentError(Exception):
    """End a poll that has returned enough. The next one continues after its messages."""


class Allowance:
    """Limit the bytes of the messages that one poll returns, to about the size of the longest message."""

    def __init__(self, most: int) -> None:
        self._most = self.left = most

    def refill(self) -> None:
        """Start a poll."""
        self.left = self._most


def bound_messages(consumer: Any, limit: int, *, with_headers: bool = False) -> Allowance:
    """Cut compressed messages to excerpts if they are longer than a limit, without unpacking them whole.

    Batches of the formats before Kafka 0.11 are unpacked as a whole, and are unreadable if longer than the limit.

    Args:
        consumer: A `KafkaConsumer`.
        limit: Bytes of a message.
        with_headers: Whether the headers of compressed messages are read.

    Returns:
        What a poll may still return.
    """
    allowance = Allowance(limit)
    with unless_missing("a short compressed message may be unpacked to any size"):
        fetcher, make = consumer._fetcher, consumer._fetcher.PartitionRecords
        for name in ("_buffer", "_pos", "_assert_has_codec"):
            getattr(DefaultRecordBatch, name)

        def partition_records(offset: int, key: TopicPartition, records: Any, *rest: Any, **options: Any) -> Any:
            part = make(offset, key, _BoundedBatches(records, limit, allowance, with_headers), *rest, **options)
            part.record_iterator = _Rationed(part.record_iterator, allowance)
            return part

        fetcher.PartitionRecords = partition_records
    return allowance


class _Rationed:
    """Return records until the allowance is spent, and the others once it is refilled.

    An error is raised again by each later call. The library may forget the first one while it validates a position, and
    would then wait for ever for an iterator that has ended without a drain.
    """

    def __init__(self, records: Iterator[Any], allowance: Allowance) -> None:
        self._records, self._allowance = records, allowance
        self._error: Exception | None = None

    def __iter__(self) -> _Rationed:
        return self

    def __next__(self) -> Any:
        if self._allowance.left <= 0:
            raise AllowanceSpentError
        if self._error is not None:
            raise self._error
        try:
            record = next(self._records)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise
        self._allowance.left -= len(record.value or b"")
        return record


class _BoundedBatches:
    """Return the batches of a fetch, with a limit for the messages of compressed ones."""

    def __init__(self, batches: Any, limit: int, allowance: Allowance, with_headers: bool) -> None:
        self._batches, self._options = batches, (limit, allowance, with_headers)

    def next_batch(self) -> Any:
        batch = self._batches.next_batch()
        if batch is None or not batch.compression_type:
            return batch
        return _BoundedBatch(batch, *self._options)


class _BoundedBatch:
    """Behave as a compressed batch, and unpack one message after another."""

    def __init__(self, batch: Any, limit: int, allowance: Allowance, with_headers: bool) -> None:
        self._batch, self._limit, self._allowance, self._with_headers = batch, limit, allowance, with_headers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        batch = self._batch
        batch._assert_has_codec(batch.compression_type)
        if batch.magic < 2:
            self._require_short_set()
            yield from batch
            return
        stream = unpacked(batch.compression_type, bytes(batch._buffer[batch._pos :]))
        for _ in range(batch.records_count):
            yield self._record(stream)
        if stream.read(1):
            raise CorruptRecordError("bytes after the last record of a batch")

    def _record(self, stream: Any) -> DefaultRecord:
        """Read the next record. It has no headers if nobody reads them, or if it is cut."""
        batch, size = self._batch, read_varint(stream)
        if not 0 <= size <= MAX_SKIPPED_BYTES:
            raise CorruptRecordError(f"a message of {size} bytes, and those after it in its batch")
        body = stream.read(size if size <= self._limit + KEY_BYTES else KEY_BYTES)
        _, position = decode_varint(body, 0)  # attributes
        later, position = decode_varint(body, position)
        number, position = decode_varint(body, position)
        key, position = _text_at(body, position)
        value, position = _text_at(body, position)
        if size > self._limit + KEY_BYTES:
            value = cut(value or b"", size, "message")
            skip(stream, size - len(body))
            self._allowance.left -= size  # it took as long as many others
        elif len(body) < size or position > size:
            raise CorruptRecordError(f"a record of {size} bytes has other parts")
        headers = _headers_at(body, position) if self._with_headers and len(body) == size else []
        is_written_time = batch.timestamp_type == batch.LOG_APPEND_TIME
        time = batch.max_timestamp if is_written_time else batch.first_timestamp + later
        return DefaultRecord(size, batch.base_offset + number, time, batch.timestamp_type, key, value, headers)

    def _require_short_set(self) -> None:
        """Refuse a set of messages of an old format that is longer than the limit."""
        batch = self._batch
        if batch.magic == 0 and batch.compression_type == batch.CODEC_LZ4:
            raise CorruptRecordError("a set of messages of Kafka 0.9 in lz4")
        position = batch.KEY_OFFSET_V1 if batch.magic else batch.KEY_OFFSET_V0
        for _ in range(2):  # the key, and the set as a value
            (size,) = struct.unpack_from(">i", batch._buffer, position)
            start, position = position + 4, position + 4 + max(0, size)
        if skip(unpacked(batch.compression_type, bytes(batch._buffer[start:position])), self._limit + 1) > self._limit:
            raise CorruptRecordError(f"a set of messages is unpacked to more than {self._limit} bytes")


def _text_at(body: bytes, position: int) -> tuple[bytes | None, int]:
    """Return the text at a position, None if it is null, and the position after it. It may be cut."""
    size, position = decode_varint(body, position)
    return (None, position) if size < 0 else (body[position : position + size], position + size)


def _headers_at(body: bytes, position: int) -> list[tuple[str, bytes | None]]:
    """Return the headers at a position. Each takes two bytes at least."""
    count, position = decode_varint(body, position)
    headers = list[tuple[str, bytes | None]]()
    while len(headers) < count and position < len(body):
        name, position = _text_at(body, position)
        content, position = _text_at(body, position)
        headers.append(((name or b"").decode(errors="replace"), content))
    return headers


def give_up(producer: Any) -> None:
    """Let a producer drop the messages that no broker has acknowledged."""
    with unless_missing("closing a producer waits until its messages expire"):
        producer._sender.force_close()


def repair() -> None:
    """Let only one thread at a time make classes of the library, and close sockets that do not connect.

    The library leaves such sockets to the garbage collector.
    """
    with unless_missing("two clients that connect at once may break all clients of this process"):
        version_of, connect = VersionSubscriptable.__getitem__, KafkaNetSocket.sock_connect

        def alone(cls: Any, version: int | None) -> Any:
            with lock:
                return version_of(cls, version)

        async def connect_or_close(self: Any, net: Any, sock: socket, *address: Any, **options: Any) -> Any:
            try:
                return await connect(self, net, sock, *address, **options)
            except KafkaConnectionError:
                sock.close()
                raise

        VersionSubscriptable.__getitem__, KafkaNetSocket.sock_connect = alone, connect_or_close


repair()
