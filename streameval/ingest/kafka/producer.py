"""Writes events to a Kafka topic: behind `streameval produce`, the demo and the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import KafkaError, TopicAlreadyExistsError

from streameval.errors import SourceError
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.kafka.kafka_python import connected, connection_options, plain
from streameval.ingest.settings import KafkaConnection

CONNECT_TIMEOUT = 10.0
DELIVERY_TIMEOUT = 60.0
BATCH_BYTES = 256 * 1024
CHUNK = 1000


def produce(
    values: Iterable[bytes],
    topic: str,
    connection: KafkaConnection,
    *,
    partitions: int = 4,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write values to a topic, in turn to each of its partitions; returns how many were acknowledged.

    A topic that does not exist is created with `partitions` partitions. `progress` is told how many have been sent so
    far. Raises SourceError when the cluster cannot be reached or refuses a value.
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
    topic: str, partitions: int, connection: KafkaConnection, lifeline: ConnectionGroup | None = None
) -> bool:
    """Create a topic unless it exists, with as many replicas as the cluster likes; says whether it did."""
    with _explained(connection):
        administrator, _ = connected(KafkaAdminClient, connection_options(connection), CONNECT_TIMEOUT, lifeline)
        with closing(administrator):
            if any(found["error_code"] == 0 for found in administrator.describe_topics([topic])):
                return False
            try:
                administrator.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)
            except TopicAlreadyExistsError:
                return False
    return True


class TopicWriter:
    """A context that writes to an existing topic; leaving it waits until everything is acknowledged.

    Raises SourceError from `write`, `flush` and the exit when a value was refused or not acknowledged in time.
    """

    def __init__(self, topic: str, connection: KafkaConnection) -> None:
        self._topic = topic
        self._connection = connection
        self._failure: Exception | None = None
        self.sent = 0
        options = connection_options(connection) | {
            "linger_ms": 20,
            "batch_size": BATCH_BYTES,
            "delivery_timeout_ms": int(DELIVERY_TIMEOUT * 1000),
            "request_timeout_ms": int(min(connection.request_timeout, DELIVERY_TIMEOUT / 2) * 1000),
            "max_block_ms": int(CONNECT_TIMEOUT * 1000),
            "metrics_enabled": False,
        }
        with _explained(connection):
            self._producer, _ = connected(KafkaProducer, options, CONNECT_TIMEOUT)
            self._partitions = sorted(self._producer.partitions_for(topic))

    def write(self, values: Iterable[bytes]) -> None:
        """Send values, in turn to each partition; returns before they are acknowledged."""
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
            self._close()

    def _close(self) -> None:
        """Give up what is still under way, after an error; by itself the library would not close then."""
        self._producer._sender.force_close()
        with suppress(KafkaError):
            self._producer.close(timeout=CONNECT_TIMEOUT)

    def _fail(self, error: Exception) -> None:
        self._failure = self._failure or error

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure


@contextmanager
def _explained(connection: KafkaConnection) -> Iterator[None]:
    try:
        yield
    except KafkaError as error:
        raise SourceError(
            f"cannot write to Kafka at {connection.address}: {plain(error)}",
            hint="check the address, the security settings and the rights to create and write the topic",
        ) from error
