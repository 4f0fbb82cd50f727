"""Write events, dead letters and the offsets of a consumer group to Kafka, through kafka-python for either client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    NoError,
    RecordListTooLargeError,
    TopicAlreadyExistsError,
)
from kafka.structs import OffsetAndMetadata

from streameval.errors import SourceError
from streameval.ingest.background import ConnectionGroup, RetryError
from streameval.ingest.kafka import kafka_python_internals as internals
from streameval.ingest.kafka.client import ClientError
from streameval.ingest.kafka.connection import KafkaConnection, KafkaTopic
from streameval.ingest.kafka.kafka_python import (
    arguments,
    connected,
    milliseconds,
    plain,
    translated_errors,
)

CONNECT_TIMEOUT = 10.0  # seconds, as all others
DELIVERY_TIMEOUT, SENDER_TIMEOUT = 60.0, 20.0
"""Wait this long for the acknowledgement of events, and of messages of a `MessageSender`, which tries again."""
SENDER_BLOCK_TIMEOUT = 5.0
BATCH_BYTES, COMPRESSION = 256 * 1024, "gzip"
"""Batches of events. Every broker and client has this codec, and an embedded broker then keeps more of them."""
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


def produce(values: Iterable[bytes], topic: str, connection: KafkaConnection, *, partitions: int = 4) -> int:
    """Write values to a topic, to each of its partitions in turn.

    Args:
        values: The values of the messages, in order.
        topic: The topic. It is created if it does not exist.
        connection: How to reach the cluster.
        partitions: The number of partitions of a topic that is created.

    Returns:
        How many messages were acknowledged.

    Raises:
        SourceError: The cluster cannot be reached, or a value is refused or not acknowledged in time.
    """
    create_topic(topic, partitions, connection)
    failures: list[Exception] = []
    sent = 0
    with _explained(connection):
        options = {"batch_size": BATCH_BYTES, "compression_type": COMPRESSION}
        producer = _producer(connection, DELIVERY_TIMEOUT, CONNECT_TIMEOUT, **options)
        try:
            numbers = sorted(producer.partitions_for(topic))
            for value in values:
                partition = numbers[sent % len(numbers)]
                producer.send(topic, value, partition=partition).add_errback(failures.append)
                sent += 1
                if failures:
                    break
            producer.flush(DELIVERY_TIMEOUT)
            if failures:
                raise failures[0]
        finally:
            _close(producer)
    return sent


def create_topic(
    topic: str, partitions: int, connection: KafkaConnection, connections: ConnectionGroup | None = None
) -> None:
    """Create a topic with the cluster's default number of replicas, unless it exists."""
    group = connections or ConnectionGroup()
    with _explained(connection), closing(_administrator(connection, group)) as administrator:
        if not any(answer["error_code"] == 0 for answer in administrator.describe_topics([topic])):
            with suppress(TopicAlreadyExistsError):
                administrator.create_topics({topic: {"num_partitions": partitions}}, wait_for_metadata=True)


def list_topics(connection: KafkaConnection) -> set[str]:
    """Return the topics of the cluster that this user may see.

    Raises:
        ClientError: The cluster does not answer.
    """
    with translated_errors(), closing(_administrator(connection, ConnectionGroup())) as administrator:
        return set(administrator.list_topics())


def _administrator(connection: KafkaConnection, connections: ConnectionGroup) -> Any:
    return connected(KafkaAdminClient, arguments(KafkaAdminClient, connection), CONNECT_TIMEOUT, connections)[0]


def _producer(connection: KafkaConnection, delivery_timeout: float, block_timeout: float, **options: Any) -> Any:
    options = arguments(
        KafkaProducer,
        connection,
        linger_ms=20,
        delivery_timeout_ms=milliseconds(delivery_timeout),
        request_timeout_ms=milliseconds(delivery_timeout / 2),
        max_block_ms=milliseconds(block_timeout),
        metrics_enabled=False,
        **options,
    )
    return connected(KafkaProducer, options, CONNECT_TIMEOUT, ConnectionGroup())[0]


def _close(producer: Any) -> None:
    """Close a producer and drop what is still under way, which the library would wait for."""
    internals.give_up(producer)
    with suppress(KafkaError):
        producer.close(timeout=CONNECT_TIMEOUT)


@contextmanager
def _explained(connection: KafkaConnection) -> Iterator[None]:
    """Raise errors of Kafka as `SourceError`, with a hint."""
    try:
        yield
    except KafkaError as error:
        raise SourceError(
            f"cannot write to Kafka at {connection.address}: {plain(error)}",
            hint="check the address, the security settings and the rights to create and write the topic",
        ) from error


class MessageSender:
    """Send messages to a topic, each with `key`, `value` and `headers`. Create the topic if it does not exist."""

    def __init__(self, topic: str, connection: KafkaConnection) -> None:
        self._topic, self._connection = topic, connection
        self._connections, self._aborted = ConnectionGroup(), False
        self._producer: Any = None

    def write(self, messages: Sequence[Any]) -> int:
        """Send messages and wait for their acknowledgement. Drop messages that are too large.

        Returns:
            How many messages the cluster took.

        Raises:
            RetryError: Some messages were not acknowledged. The error holds them.
        """
        answers: list[Any] = []
        cause: Exception | None = None
        try:
            producer = self._producer or self._connect()
            for message in messages:
                try:
                    answer = producer.send(self._topic, message.value, key=message.key, headers=message.headers)
                except TOO_LARGE as error:
                    answer = error
                answers.append(answer)
            producer.flush(SENDER_TIMEOUT)
        except Exception as error:
            if not (self._aborted or isinstance(error, (KafkaError, SourceError))):
                raise
            cause = error
            self.close()
        failed = {
            index: answer if isinstance(answer, Exception) else answer.exception
            for index, answer in enumerate(answers)
            if isinstance(answer, Exception) or not answer.succeeded()
        }
        failed |= dict.fromkeys(range(len(answers), len(messages)), cause)
        again = [index for index, error in failed.items() if not isinstance(error, TOO_LARGE)]
        if again:
            self.close()
            first = cause or failed[again[0]] or TimeoutError("no answer")
            reason = "no answer in time" if self._aborted else plain(first) or type(first).__name__
            raise RetryError(reason, [messages[index] for index in again], len(failed) - len(again)) from cause
        return len(messages) - len(failed)

    def abort(self) -> None:
        """Leave the cluster at once. A `write` that waits for it fails."""
        self._aborted = True
        self._connections.close()
        producer = self._producer
        if producer is not None:
            internals.give_up(producer)

    def close(self) -> None:
        """Leave the cluster, and drop messages under way."""
        producer, self._producer = self._producer, None
        if producer is not None:
            _close(producer)

    def _connect(self) -> Any:
        create_topic(self._topic, 1, self._connection, self._connections)
        self._producer = _producer(self._connection, SENDER_TIMEOUT, SENDER_BLOCK_TIMEOUT)
        if self._aborted:
            raise KafkaConnectionError("no answer in time")
        return self._producer


class GroupWriter:
    """Write the offsets of a consumer group for tools that show lag. They are never read back.

    The consumer could commit, but it does not read while it looks for the coordinator of a group.
    """

    def __init__(self, settings: KafkaTopic, group: str, connections: ConnectionGroup) -> None:
        self._settings, self._group, self._connections = settings, group, connections
        self._administrator: Any = None

    def write(self, batch: Sequence[Mapping[int, int]]) -> int:
        """Write the newest offset of each partition.

        Raises:
            RetryError: The cluster did not take the offsets. A later attempt may succeed.
        """
        topic = self._settings.topic
        offsets = {TopicPartition(topic, number): OffsetAndMetadata(at, "", -1) for number, at in batch[-1].items()}
        try:
            with translated_errors():
                if self._administrator is None:
                    self._administrator = _administrator(self._settings, self._connections)
                answers: dict[Any, Any] = self._administrator.alter_group_offsets(self._group, offsets)
            refused = {key.partition: error.__name__ for key, error in answers.items() if error is not NoError}
            if refused:
                raise ClientError(f"the group {self._group} of {topic} refused offsets: {refused}")
        except ClientError as error:
            self.close()
            raise RetryError(str(error), batch[-1:]) from error
        return len(batch)

    def abort(self) -> None:
        """Do nothing: the source closes its connections."""

    def close(self) -> None:
        """Leave the cluster."""
        administrator, self._administrator = self._administrator, None
        with suppress(ClientError), translated_errors():
            if administrator is not None:
                administrator.close()
