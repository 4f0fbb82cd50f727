"""A model of a Kafka topic that loses, truncates, replaces and withholds messages as real clusters do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import ClientError, OffsetsGoneError
from streameval.ingest.kafka.settings import Beginning, KafkaSettings

TOPIC = "clicks"


@dataclass(frozen=True)
class Message:
    """A message and the epoch of the leader that wrote it. `number` is unique over all messages ever written."""

    number: int
    value: bytes
    epoch: int


@dataclass
class PartitionLog:
    """The messages of a partition from the offset `first` on."""

    first: int = 0
    epoch: int = 0
    messages: list[Message] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The offset that the next message will get."""
        return self.first + len(self.messages)

    def append(self, number: int, value: bytes) -> None:
        """Write a message."""
        self.messages.append(Message(number, value, self.epoch))

    def cut(self, end: int) -> None:
        """Lose all messages from `end` on, as in an unclean election; the new leader has the next epoch."""
        del self.messages[max(0, end - self.first) :]
        self.epoch += 1

    def delete_before(self, first: int) -> None:
        """Delete the oldest messages, as retention does."""
        del self.messages[: first - self.first]
        self.first = first

    def between(self, start: int, stop: int) -> list[Message]:
        """The messages of these offsets."""
        return self.messages[start - self.first : stop - self.first]

    def divergence(self, position: int, epoch: int) -> int | None:
        """The first offset that a reader at `position`, whose last message had this epoch, has read differently."""
        same = self.first + sum(message.epoch <= epoch for message in self.messages)
        return same if same < position else None


class Broker:
    """One topic. `up`: requests are answered. `deaf`: partitions whose messages are not sent. `failures`: of polls."""

    def __init__(self, partitions: int) -> None:
        self.logs = {number: PartitionLog() for number in range(partitions)}
        self.generation = 1
        self.up = True
        self.deaf: set[int] = set()
        self.failures = 0

    @property
    def topic_id(self) -> str:
        """The id of the topic, which changes when it is created again."""
        return f"id-{self.generation}"

    def create_again(self) -> None:
        """Delete the topic and create it again with as many partitions."""
        self.generation += 1
        self.logs = {number: PartitionLog() for number in self.logs}

    def connect(self, settings: KafkaSettings, timeout: float, connections: ConnectionGroup) -> BrokerClient:
        """A client, as `KafkaSource` asks for one."""
        self.require_answer()
        return BrokerClient(self, settings.max_poll_records)

    def require_answer(self) -> None:
        """Raise ClientError while no broker answers."""
        if not self.up:
            raise ClientError("no broker answers")


class BrokerClient:
    """Reads the topic of a `Broker`. As in kafka-python, a fetch without messages forgets the epoch of its position."""

    def __init__(self, broker: Broker, most: int) -> None:
        self._broker, self._most, self._topic_id = broker, most, broker.topic_id
        self._positions: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._forgotten: set[int] = set()
        self._paused: frozenset[int] = frozenset()

    def topic_id(self) -> str | None:
        return self._topic_id

    def partitions(self, timeout: float) -> Collection[int]:
        self._broker.require_answer()
        self._topic_id = self._broker.topic_id
        return tuple(self._broker.logs)

    def offsets(self, partitions: Collection[int], at: Beginning, timeout: float) -> dict[int, int]:
        self._broker.require_answer()
        assert not isinstance(at, datetime), "schedules start at the first message"
        logs = {partition: self._broker.logs[partition] for partition in partitions}
        return {partition: log.first if at == "earliest" else log.end for partition, log in logs.items()}

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self._positions, self._epochs = dict(positions), dict(epochs)
        self._forgotten.clear()

    def pause(self, partitions: Collection[int]) -> None:
        self._paused = frozenset(partitions)

    def poll(self, timeout: float) -> list[Records]:
        if self._broker.failures:
            self._broker.failures -= 1
            raise ClientError("connection reset")
        if not self._broker.up:
            return []
        if self._topic_id != self._broker.topic_id:
            self._topic_id = self._broker.topic_id
            return []
        self._require_same_log()
        parts = [self._fetch(number) for number in self._positions if number not in self._broker.deaf | self._paused]
        return [part for part in parts if part.values]

    def _require_same_log(self) -> None:
        gone: dict[int, int | None] = {}
        for partition, position in self._positions.items():
            log = self._broker.logs[partition]
            epoch = self._epochs.get(partition)
            diverged_at = None if epoch is None else log.divergence(position, epoch)
            if diverged_at is not None or not log.first <= position <= log.end:
                gone[partition] = diverged_at
        if gone:
            raise OffsetsGoneError(gone)

    def _fetch(self, partition: int) -> Records:
        log, start = self._broker.logs[partition], self._positions[partition]
        messages = log.between(start, start + self._most)
        if messages:
            self._epochs[partition] = messages[-1].epoch
            self._forgotten.discard(partition)
        else:
            self._forgotten.add(partition)
        self._positions[partition] = start + len(messages)
        offsets = range(start, start + len(messages))
        return Records(TOPIC, partition, offsets, [message.value for message in messages])

    def unblock(self, partitions: Collection[int]) -> None:
        raise ClientError("no message comes")

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def epochs(self) -> dict[int, int]:
        return {number: epoch for number, epoch in self._epochs.items() if number not in self._forgotten}

    def highwater(self, partition: int) -> int | None:
        return self._broker.logs[partition].end

    def close(self) -> None:
        return
