"""Write the messages of a logger to a function, to files, or to topics of Kafka.

This module imports no Kafka client: sinks of Kafka get its library.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

from streameval.ingest.appended import open_to_append

MessageKind: TypeAlias = Literal["decision", "reward"]
Topics: TypeAlias = Mapping[MessageKind, str]
Done: TypeAlias = Callable[[Exception | None], None]

DELIVERY_TIMEOUT_MS = 600_000
CLOSE_SECONDS = 0.5


class Message(NamedTuple):
    """Hold one decision or reward as JSON, or several as Arrow, with the id of the first."""

    kind: MessageKind
    event_id: str | int
    value: bytes


class MessageSink(ABC):
    """Take the messages of a logger, which uses it in one thread."""

    @abstractmethod
    def send(self, message: Message, done: Done) -> None:
        """Write a message, and call `done` once, from any thread, when it is written or has failed.

        Raises:
            OSError: The message was not taken. A later attempt may succeed.
            Exception: The message has failed, and `done` was not called.
        """

    def poll(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for acknowledgements, and call `done` for them unless another thread does."""
        time.sleep(timeout)

    def close(self) -> None:  # noqa: B027 - most sinks have nothing to do
        """Drop messages that are not acknowledged, and free all resources."""


class FunctionSink(MessageSink):
    """Call a function with each message."""

    def __init__(self, write: Callable[[Message], None]) -> None:
        self._write = write

    def send(self, message: Message, done: Done) -> None:
        self._write(message)
        done(None)


class LineSink(MessageSink):
    """Append lines. A line that could not be written whole is completed by the next attempt.

    What another process has left of a line is ended first, see `open_to_append`.
    """

    def __init__(self, paths: Mapping[MessageKind, str | os.PathLike[str]]) -> None:
        self._files: dict[MessageKind, int] = {}
        try:
            for kind, path in paths.items():
                self._files[kind] = open_to_append(path)
        except OSError:
            self.close()
            raise
        self._rest = b""

    def send(self, message: Message, done: Done) -> None:
        self._rest = self._rest or message.value + b"\n"
        while self._rest:
            self._rest = self._rest[os.write(self._files[message.kind], self._rest) :]
        done(None)

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)


class KafkaPythonSink(MessageSink):
    """Produce by kafka-python.

    Raises:
        KafkaError: No broker answers.
    """

    def __init__(self, kafka: Any, servers: str, topics: Topics, options: Mapping[str, Any]) -> None:
        from streameval.ingest.kafka.kafka_python_internals import give_up

        defaults = {"linger_ms": 20, "max_block_ms": 1_000, "delivery_timeout_ms": DELIVERY_TIMEOUT_MS}
        self._topics, self._errors, self._give_up = topics, kafka.errors, give_up
        self._producer = kafka.KafkaProducer(
            **defaults | {"bootstrap_servers": servers.split(","), "enable_idempotence": True} | dict(options)
        )

    def send(self, message: Message, done: Done) -> None:
        try:
            sent = self._producer.send(self._topics[message.kind], message.value)
        except self._errors.KafkaTimeoutError as error:
            raise ConnectionError(str(error)) from error
        sent.add_callback(lambda _: done(None)).add_errback(done)

    def close(self) -> None:
        self._give_up(self._producer)
        with suppress(self._errors.KafkaError):
            self._producer.close(timeout=CLOSE_SECONDS)


class ConfluentSink(MessageSink):
    """Produce by confluent-kafka."""

    def __init__(self, library: Any, servers: str, topics: Topics, options: Mapping[str, Any]) -> None:
        defaults = {"linger.ms": 20, "message.timeout.ms": DELIVERY_TIMEOUT_MS, "log_level": 0}
        self._topics, self._failure = topics, library.KafkaException
        self._producer = library.Producer(
            defaults | {"bootstrap.servers": servers, "enable.idempotence": True} | dict(options)
        )

    def send(self, message: Message, done: Done) -> None:
        def delivered(error: Any, _: Any) -> None:
            done(None if error is None else self._failure(error))

        try:
            self._producer.produce(self._topics[message.kind], message.value, on_delivery=delivered)
        except BufferError as error:
            raise ConnectionError(str(error)) from error
        self._producer.poll(0)

    def poll(self, timeout: float) -> None:
        self._producer.poll(timeout)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(0)
