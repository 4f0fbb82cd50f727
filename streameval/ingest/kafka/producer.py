"""Writers to Kafka topics: of events, behind `streameval produce`, the demo and the tests; and of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, Protocol

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
)

from streameval.errors import SourceError
from streameval.ingest.background import ConnectionGroup, RetryError
from streameval.ingest.kafka.kafka_python import INSIDE, connected, connection_options, plain
from streameval.ingest.kafka.settings import KafkaConnection

CONNECT_TIMEOUT = 10.0
DELIVERY_TIMEOUT, SENDER_TIMEOUT = 60.0, 20.0
"""Seconds for the acknowledgement of events, and of messages of a `MessageSender`, which tries again."""
SENDER_BLOCKS = 5.0
BATCH_BYTES = 256 * 1024
CHUNK = 1000
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


def produce(
    values: Iterable[bytes],
    topic: str,
    connection: KafkaConnection,
    *,
    partitions: int = 4,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write values to a topic, to each of its partitions in turn; returns how many were acknowledged.

    A topic that does not exist is created with `partitions` partitions. `progress` is called with the number of values
    sent so far.

    Raises:
        SourceError: The cluster cannot be reached or refuses a value.
    """
    create_topic(topic, partitions, connection)
    with TopicWriter(topic, connection) as writer:
        rest = iter(values)
        while chunk := list(islice(rest, CHUNK)):
            writer.write(chunk)
            if progress is not None:
                progress(writer.sent)
    return writer.sent


def create_topic(
    topic: str, partitions: int, connection: KafkaConnection, connections: ConnectionGroup | None = None
) -> bool:
    """Create a topic with the cluster's default number of replicas; False if it exists already."""
    with _explained(connection):
        administrator, _ = connected(KafkaAdminClient, connection_options(connection), CONNECT_TIMEOUT, connections)
        with closing(administrator):
            if any(found["error_code"] == 0 for found in administrator.describe_topics([topic])):
                return False
            try:
                administrator.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)
            except TopicAlreadyExistsError:
                return False
    return True


def _producer(connection: KafkaConnection, delivery_timeout: float, block_timeout: float, **options: Any) -> Any:
    request_timeout = min(connection.request_timeout, delivery_timeout / 2)
    options |= connection_options(connection) | {
        "linger_ms": 20,
        "delivery_timeout_ms": int(delivery_timeout * 1000),
        "request_timeout_ms": int(request_timeout * 1000),
        "max_block_ms": int(block_timeout * 1000),
        "metrics_enabled": False,
    }
    return connected(KafkaProducer, options, CONNECT_TIMEOUT)[0]


def _close(producer: Any) -> None:
    """Give up what is still under way; the library would wait for it."""
    producer._sender.force_close()
    with suppress(KafkaError):
        producer.close(timeout=CONNECT_TIMEOUT)


class TopicWriter:
    """A context that writes to an existing topic; leaving it waits until everything is acknowledged.

    Raises:
        SourceError: From `write`, `flush` and the exit, when a value was refused or not acknowledged in time.
    """

    def __init__(self, topic: str, connection: KafkaConnection) -> None:
        self._topic = topic
        self._connection = connection
        self._failure: Exception | None = None
        self.sent = 0
        with _explained(connection):
            self._producer = _producer(connection, DELIVERY_TIMEOUT, CONNECT_TIMEOUT, batch_size=BATCH_BYTES)
            self._partitions = sorted(self._producer.partitions_for(topic))

    def write(self, values: Iterable[bytes]) -> None:
        """Send values, to each partition in turn; returns before they are acknowledged."""
        with _explained(self._connection):
            for value in values:
                partition = self._partitions[self.sent % len(self._partitions)]
                self._producer.send(self._topic, value, partition=partition).add_errback(self._fail)
                self.sent += 1
            self._raise_failure()

    def flush(self) -> None:
        """Wait until everything sent is acknowledged."""
        with _explained(self._connection):
            self._producer.flush(DELIVERY_TIMEOUT)
            self._raise_failure()

    def __enter__(self) -> TopicWriter:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            _close(self._producer)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


class Message(Protocol):
    """A message with a value, which may be empty, and headers."""

    @property
    def value(self) -> bytes: ...

    @property
    def headers(self) -> list[tuple[str, bytes]]: ...


class MessageSender:
    """Sends messages to a topic and waits for their acknowledgement; creates the topic if it does not exist."""

    def __init__(self, topic: str, connection: KafkaConnection) -> None:
        self._topic, self._connection = topic, connection
        self._connections, self._aborted = ConnectionGroup(), False
        self._producer: Any = None

    def write(self, messages: Sequence[Message]) -> int:
        """Send messages; returns how many the cluster took. Messages that are too large are dropped.

        Raises:
            RetryError: Some were not acknowledged; they may be sent again.
        """
        answers: list[Any] = []
        try:
            producer = self._producer or self._connect()
            for message in messages:
                answers.append(producer.send(self._topic, message.value, headers=message.headers))
            producer.flush(SENDER_TIMEOUT)
        except Exception as error:
            if not (self._aborted or isinstance(error, (KafkaError, SourceError))):
                raise
            self.close()
            sent = {place for place, answer in enumerate(answers) if answer.succeeded()}
            unsent = [message for place, message in enumerate(messages) if place not in sent]
            raise RetryError(self._reason(error), unsent) from error
        failures = {place: answer.exception for place, answer in enumerate(answers) if not answer.succeeded()}
        passing = [place for place, error in failures.items() if not isinstance(error, TOO_LARGE)]
        if passing:
            self.close()
            cause = failures[passing[0]] or TimeoutError("no answer")
            raise RetryError(self._reason(cause), [messages[at] for at in passing], len(failures) - len(passing))
        return len(messages) - len(failures)

    def abort(self) -> None:
        """Leave the cluster at once; a `write` that waits for it fails."""
        self._aborted = True
        self._connections.close()
        producer = self._producer
        if producer is not None:
            with INSIDE:  # its thread closes its network; two that close one get in each other's way
                producer._sender.force_close()

    def close(self) -> None:
        """Leave the cluster; messages under way are given up."""
        producer, self._producer = self._producer, None
        if producer is not None:
            _close(producer)

    def _connect(self) -> Any:
        create_topic(self._topic, 1, self._connection, self._connections)
        self._producer = _producer(self._connection, SENDER_TIMEOUT, SENDER_BLOCKS)
        if self._aborted:
            raise KafkaConnectionError("no answer in time")
        return self._producer

    def _reason(self, error: Exception) -> str:
        return "no answer in time" if self._aborted else plain(error) or type(error).__name__


@contextmanager
def _explained(connection: KafkaConnection) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise SourceError(
            f"cannot write to Kafka at {connection.address}: {plain(error)}",
            hint="check the address, the security settings and the rights to create and write the topic",
        ) from error
