"""Reach behind the public interface of kafka-python for the guarantees that it cannot give.

`KafkaConsumer` compares leader epochs since https://github.com/dpkp/kafka-python/pull/2978, but `seek` takes no epoch,
so that a log that was truncated while the daemon was stopped is not noticed. It does not show the topic id, so that a
topic that was recreated is noticed late. Its constructor leaves a thread behind when no broker answers, as the
constructors of `KafkaProducer` and `KafkaAdminClient` do. A producer that is closed waits for all its messages.

It makes the class of each response at the first use, and registers it by a weak reference. If two threads make one at
once (3.0.12), the registered one may be the one that nobody keeps. After the next garbage collection, every response of
that kind then raises ReferenceError until the end of the process.

With a version of the library that lacks what is used here, the function does nothing, and the log says what is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from socket import socket
from typing import Any

import structlog
from kafka import TopicPartition
from kafka.errors import KafkaConnectionError
from kafka.net.inet import KafkaNetSocket
from kafka.protocol.api_message import VersionSubscriptable
from kafka.structs import OffsetAndMetadata

from streameval.ingest.background import ConnectionGroup

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
