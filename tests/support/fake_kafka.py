"""A Kafka cluster of one topic in memory, with the troubles of a real one at a word."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import ClientError, OffsetsGoneError
from streameval.ingest.kafka.settings import Beginning, KafkaSettings

TOPIC = "clicks"


@dataclass
class FakeCluster:
    """The log of each partition, the first offset that is left of it, and faults.

    `up`: brokers answer. `deaf`: partitions whose fetches are never sent. `hidden`: messages at the end of each
    partition inside an open transaction. `markers`: offsets after the last message that hold no messages. `faults`:
    raised by the next polls, one each. `epochs`: by partition that of each message, where brokers report it.
    `forgetful`: a client forgets the epoch of a partition when a fetch finds no message, as kafka-python by itself.
    """

    logs: dict[int, list[bytes]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    topic_id: str | None = "id-1"
    up: bool = True
    deaf: set[int] = field(default_factory=set)
    hidden: int = 0
    markers: int = 0
    faults: list[Exception] = field(default_factory=list)
    clients: list[FakeClient] = field(default_factory=list)
    attempts: int = 0
    epochs: dict[int, list[int]] = field(default_factory=dict)
    forgetful: bool = False
    before_connect: Callable[[], object] = lambda: None

    def connect(self, settings: KafkaSettings, timeout: float, connections: ConnectionGroup) -> Any:
        self.attempts += 1
        self.before_connect()
        self.require_answer()
        client = FakeClient(self, settings.max_poll_records)
        self.clients.append(client)
        return client

    def require_answer(self) -> None:
        if not self.up:
            raise ClientError("no broker answers")

    def fill(self, partition: int, count: int, begin: int = 0) -> None:
        log = self.logs.setdefault(partition, [])
        log += [f"{partition}:{number}".encode() for number in range(begin, begin + count)]

    def first_offset(self, partition: int) -> int:
        return self.first.get(partition, 0)

    def readable_end(self, partition: int) -> int:
        return len(self.logs[partition]) - self.hidden + self.markers


class FakeClient:
    """A client of a `FakeCluster`, with the methods of a `Client`."""

    def __init__(self, cluster: FakeCluster, most: int) -> None:
        self.cluster = cluster
        self.most = most
        self.positions: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.paused: frozenset[int] = frozenset()
        self.closed = False

    def topic_id(self) -> str | None:
        return self.cluster.topic_id

    def partitions(self, timeout: float) -> Collection[int]:
        self.cluster.require_answer()
        return self.cluster.logs.keys()

    def offsets(self, partitions: Collection[int], at: Beginning, timeout: float) -> dict[int, int]:
        self.cluster.require_answer()
        if not set(partitions) <= self.cluster.logs.keys():
            raise ClientError("no such partition")
        if isinstance(at, datetime):
            return dict.fromkeys(partitions, int(at.timestamp()))
        place = self.cluster.first_offset if at == "earliest" else self.cluster.readable_end
        return {partition: place(partition) for partition in partitions}

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self.positions, self.read = dict(positions), dict(epochs)

    def pause(self, partitions: Collection[int]) -> None:
        self.paused = frozenset(partitions)

    def poll(self, timeout: float) -> list[Records]:
        if self.cluster.faults:
            raise self.cluster.faults.pop(0)
        if not self.cluster.up:
            return []
        self._require_positions_in_range()
        heard = (self.positions.keys() & self.cluster.logs.keys()) - self.cluster.deaf - self.paused
        parts = [self._read(partition) for partition in sorted(heard)]
        return [part for part in parts if part.values]

    def _require_positions_in_range(self) -> None:
        for partition in self.positions.keys() & self.cluster.logs.keys():
            position = self.positions[partition]
            if not self.cluster.first_offset(partition) <= position <= self.cluster.readable_end(partition):
                raise OffsetsGoneError({partition: None})
            if partition in self.read:
                same = sum(epoch <= self.read[partition] for epoch in self.cluster.epochs[partition])
                if same < position:
                    raise OffsetsGoneError({partition: same})

    def _read(self, partition: int) -> Records:
        begin = self.positions[partition]
        end = min(begin + self.most, len(self.cluster.logs[partition]) - self.cluster.hidden)
        self.positions[partition] = max(begin, end)
        if end > begin and partition in self.cluster.epochs:
            self.read[partition] = self.cluster.epochs[partition][end - 1]
        elif self.cluster.forgetful:
            self.read.pop(partition, None)
        return Records(TOPIC, partition, range(begin, end), self.cluster.logs[partition][begin:end])

    def unblock(self, partitions: Collection[int]) -> None:
        raise ClientError("no message comes")

    def position(self, partition: int) -> int:
        read_all = self.positions[partition] >= len(self.cluster.logs[partition]) - self.cluster.hidden
        return self.cluster.readable_end(partition) if read_all else self.positions[partition]

    def epochs(self) -> dict[int, int]:
        return dict(self.read)

    def highwater(self, partition: int) -> int | None:
        known = partition in self.cluster.logs and partition not in self.cluster.deaf
        return len(self.cluster.logs[partition]) + self.cluster.markers if known else None

    def close(self) -> None:
        self.closed = True
