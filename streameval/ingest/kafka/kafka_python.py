"""kafka-python as a `KafkaClient`, with a network that any thread may close at any time."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import RLock
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
)
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector
from kafka.structs import OffsetAndMetadata

from streameval.errors import SourceError
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka.reader import Beginning, ClientError, OffsetsGoneError
from streameval.ingest.kafka.settings import KafkaConnection, KafkaSettings


class Network(KafkaNetClient):  # type: ignore[misc]  # the library ships no types
    """The network of the library, which by itself fails when it is closed by two threads or while it starts."""

    def __init__(self, **options: Any) -> None:
        self._loop = _Loop(**options)
        self._loop.network = self
        super().__init__(net=self._loop, **options)

    def ask(self, timeout: float) -> None:
        """Request the metadata of the cluster; raises KafkaError, and RuntimeError if this is closed."""

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


RECONNECT_BACKOFF_MAX_MS = 2000  # the default of 30 s delays the reconnect to a broker that is back
HUNG_UP = "socket disconnected"
REFUSED = ", as brokers do that refuse the authentication"
"""Such brokers report the reason and close the connection; when both arrive at once, the library drops the reason."""
INSIDE = suppress(AttributeError)
"""Around private attributes of the library: with a version that lacks them, the statement is skipped."""


def connection_options(connection: KafkaConnection) -> dict[str, Any]:
    """The settings of a connection as arguments of kafka-python, for consumers, producers and administrators.

    >>> connection_options(KafkaConnection(bootstrap_servers="a:1"))["bootstrap_servers"]
    ['a:1']
    """
    options = {
        "bootstrap_servers": list(connection.bootstrap_servers),
        "client_id": "streameval",
        "api_version": connection.api_version,
        "request_timeout_ms": int(connection.request_timeout * 1000),
        "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
        "security_protocol": connection.security_protocol,
        "sasl_mechanism": connection.sasl_mechanism,
        "sasl_plain_username": connection.sasl_username,
        "sasl_plain_password": connection.sasl_password and connection.sasl_password.get_secret_value(),
        "ssl_cafile": connection.ssl_cafile,
        "ssl_certfile": connection.ssl_certfile,
        "ssl_keyfile": connection.ssl_keyfile,
        "ssl_password": connection.ssl_password and connection.ssl_password.get_secret_value(),
        "ssl_check_hostname": connection.ssl_check_hostname,
    }
    return {name: value for name, value in options.items() if value is not None}


def consumer_options(settings: KafkaSettings) -> dict[str, Any]:
    """The settings of a source as arguments of `kafka.KafkaConsumer`."""
    return connection_options(settings) | {
        "enable_auto_commit": False,
        "auto_offset_reset": "none",  # other values skip messages silently after a truncation
        "isolation_level": "read_committed",
        "max_poll_records": settings.max_poll_records,
        "fetch_max_bytes": settings.fetch_max_bytes,
        "metrics_enabled": False,
    }


def connected(
    make: Callable[..., Any], options: Mapping[str, Any], timeout: float, connections: ConnectionGroup | None = None
) -> tuple[Any, Network]:
    """A consumer, producer or administrator of kafka-python that has reached a broker, and its network.

    Raises KafkaError after `timeout` seconds, and closes the network, whose thread the library would leave running.
    Closing `connections` makes every call under way fail, and all later ones. Topics are not created by requests for
    their metadata; the library does not pass that option on by itself.
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
    return client, made[0]


@contextmanager
def _reasons_to_fail() -> Iterator[dict[str, None]]:
    """Why connections fail during the block, each reason once: the library only logs the reasons."""
    reasons: dict[str, None] = {}

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            arguments = record.args if isinstance(record.args, tuple) else ()
            causes = [reason for reason in arguments if isinstance(reason, Exception)]
            reasons.update((plain(cause), None) for cause in causes if not isinstance(cause, KafkaTimeoutError))

    listener = Listener(logging.WARNING)
    manager = logging.getLogger("kafka.net.manager")
    level = manager.level
    manager.addHandler(listener)
    manager.setLevel(logging.WARNING)  # also where the library is not to be logged
    try:
        yield reasons
    finally:
        manager.setLevel(level)
        manager.removeHandler(listener)


class KafkaPythonClient:
    """A `KafkaClient` made of a kafka-python consumer."""

    def __init__(self, settings: KafkaSettings, timeout: float, connections: ConnectionGroup) -> None:
        self._topic = settings.topic
        self._paused: frozenset[int] = frozenset()
        with translated_errors():
            self._consumer, self._network = connected(KafkaConsumer, consumer_options(settings), timeout, connections)
            self._cluster = self._network.cluster

    def topic_id(self) -> str | None:
        topic_id = self._cluster.topic_id(self._topic)
        return None if topic_id is None else str(topic_id)

    def partitions(self, timeout: float) -> Collection[int]:
        with translated_errors():
            self._cluster.add_topic(self._topic)
            with suppress(UnknownTopicOrPartitionError):
                self._network.ask(timeout)
            return self._cluster.partitions_for_topic(self._topic) or frozenset()

    def offsets(self, partitions: Collection[int], at: Beginning, timeout: float) -> dict[int, int]:
        with translated_errors():
            found = self._look_up([self._key(partition) for partition in partitions], at, milliseconds(timeout))
        return {key.partition: offset for key, offset in found.items()}

    def _look_up(self, keys: list[TopicPartition], at: Beginning, timeout_ms: int) -> dict[TopicPartition, int]:
        if at == "earliest":
            return dict(self._consumer.beginning_offsets(keys, timeout_ms=timeout_ms))
        ends = dict(self._consumer.end_offsets(keys, timeout_ms=timeout_ms))
        if at == "latest":
            return ends
        times = {key: milliseconds(at.timestamp()) for key in keys}
        since = self._consumer.offsets_for_times(times, timeout_ms=timeout_ms)
        return {key: since[key].offset if since[key] is not None else ends[key] for key in keys}

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        with translated_errors():
            self._consumer.assign([self._key(partition) for partition in positions])
            for partition, offset in positions.items():
                self._consumer.seek(self._key(partition), offset)
                if partition in epochs:  # `seek` takes no epoch, so the library would not compare it
                    place = OffsetAndMetadata(offset, "", epochs[partition])
                    with INSIDE:
                        self._consumer._subscription.seek(self._key(partition), place)
            self._apply_pause()

    def pause(self, partitions: Collection[int]) -> None:
        with translated_errors():
            self._paused = frozenset(partitions)
            self._apply_pause()

    def _apply_pause(self) -> None:
        for key in self._consumer.assignment():
            paused = key.partition in self._paused
            (self._consumer.pause if paused else self._consumer.resume)(key)

    def poll(self, timeout: float) -> list[Records]:
        with translated_errors():
            self._drop_empty_fetch()
            polled = self._consumer.poll(timeout_ms=milliseconds(timeout))
        return [
            Records(
                topic=key.topic,
                partition=key.partition,
                offsets=[message.offset for message in messages],
                values=[message.value for message in messages],
                timestamps=[message.timestamp for message in messages],
            )
            for key, messages in polled.items()
        ]

    def _drop_empty_fetch(self) -> None:
        """Drop a fetch that was returned completely, so that one of a paused partition can be put back in its place.

        The library (3.0.12) puts such a fetch back only where no other is current, and keeps an exhausted one current:
        the partition, once resumed, would never be read again.
        """
        with INSIDE:
            fetcher = self._consumer._fetcher
            if not fetcher._next_partition_records:
                fetcher._next_partition_records = None

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


@contextmanager
def translated_errors() -> Iterator[None]:
    """Errors of kafka-python as `ClientError` or `SourceError`.

    >>> with translated_errors():  # doctest: +IGNORE_EXCEPTION_DETAIL
    ...     raise KafkaTimeoutError("no metadata")
    Traceback (most recent call last):
    ClientError: no metadata
    """
    try:
        yield
    except (ClientError, SourceError):
        raise
    except OffsetOutOfRangeError as error:
        raise OffsetsGoneError({key.partition: None for key in error.args[0]}) from error
    except LogTruncationError as error:
        resume = {key.partition: place and place.offset for key, place in error.divergent_offsets.items()}
        raise OffsetsGoneError(resume) from error
    except UnsupportedCodecError as error:
        raise SourceError(str(error), hint="install the codec, for snappy: pip install python-snappy") from error
    except KafkaError as error:
        raise ClientError(plain(error)) from error
    except Exception as error:  # a crash of the library's network thread, raised in the next call
        raise ClientError(repr(error)) from error


def plain(error: Exception) -> str:
    """The message of an error without the class name that kafka-python puts before it.

    >>> plain(KafkaTimeoutError("no metadata within 1 s"))
    'no metadata within 1 s'
    """
    wordy = isinstance(error, KafkaConnectionError | KafkaTimeoutError) and error.args
    return ", ".join(map(str, error.args)) if wordy else str(error)


def milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
