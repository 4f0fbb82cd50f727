"""Dead letters in a topic: the message as it was, with reason and origin in its headers."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from streameval.errors import SourceError
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.kafka.kafka_python import INSIDE, connected, connection_options, plain
from streameval.ingest.kafka.producer import create_topic
from streameval.ingest.settings import KafkaConnection
from streameval.service.dead_letters.queue import CLOSE_TIMEOUT, DeadLetter, SinkError

CONNECT_TIMEOUT = 10.0
DELIVERY_TIMEOUT = 20.0
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class TopicSink:
    """Writes letters to a topic, which is made with one partition if it does not exist.

    The value of each is the message as it came, so that it can be sent again once the fault is mended. Where there is
    none it is empty, since a message needs a key or a value.
    """

    def __init__(self, topic: str, connection: KafkaConnection) -> None:
        self._topic, self._connection = topic, connection
        self._lifeline, self._given_up = ConnectionGroup(), False
        self._producer: Any = None

    def write(self, letters: Sequence[DeadLetter]) -> int:
        """Write these letters; those that were not acknowledged are to be tried again, unless they are too large."""
        answers: list[Any] = []
        try:
            producer = self._producer or self._connect()
            for letter in letters:
                answers.append(producer.send(self._topic, letter.value, headers=headers_of(letter)))
            producer.flush(DELIVERY_TIMEOUT)
        except Exception as error:
            if not (self._given_up or isinstance(error, (KafkaError, SourceError))):
                raise
            self.close()
            written = {place for place, answer in enumerate(answers) if answer.succeeded()}
            left = [letter for place, letter in enumerate(letters) if place not in written]
            raise SinkError("no answer in time" if self._given_up else _words(error), left) from error
        failures = {place: answer.exception for place, answer in enumerate(answers) if not answer.succeeded()}
        passing = [place for place, error in failures.items() if not isinstance(error, TOO_LARGE)]
        if passing:
            self.close()
            cause = failures[passing[0]] or TimeoutError("no answer")
            told = "no answer in time" if self._given_up else _words(cause)
            raise SinkError(told, [letters[place] for place in passing])
        return len(letters) - len(failures)

    def give_up(self) -> None:
        """Leave the cluster at once, whoever waits for its answer."""
        self._given_up = True
        self._lifeline.cut()
        producer = self._producer
        if producer is not None:
            with INSIDE:  # its thread closes its network; two that close one get in each other's way
                producer._sender.force_close()

    def close(self) -> None:
        """Leave the cluster; what is under way is given up."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer._sender.force_close()
            with suppress(KafkaError):
                producer.close(timeout=CONNECT_TIMEOUT)

    def _connect(self) -> Any:
        create_topic(self._topic, 1, self._connection, self._lifeline)
        options = connection_options(self._connection) | {
            "linger_ms": 20,
            "delivery_timeout_ms": int(DELIVERY_TIMEOUT * 1000),
            "request_timeout_ms": int(min(self._connection.request_timeout, DELIVERY_TIMEOUT / 2) * 1000),
            "max_block_ms": int(CLOSE_TIMEOUT * 1000),
            "metrics_enabled": False,
        }
        self._producer, _ = connected(KafkaProducer, options, CONNECT_TIMEOUT)
        if self._given_up:
            raise KafkaConnectionError("no answer in time")
        return self._producer


def headers_of(letter: DeadLetter) -> list[tuple[str, bytes]]:
    """Reason and origin of a letter, as the headers of its message."""
    return [(f"streameval.{name}", str(value).encode()) for name, value in letter.origin.items() if value is not None]


def _words(error: Exception) -> str:
    return plain(error) or type(error).__name__
