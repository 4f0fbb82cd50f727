"""Imitate a Kafka cluster of one topic in memory, with failures and losses of real clusters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import ClientError, OffsetsGoneError
from streameval.ingest.kafka.connection import KafkaTopic, Start

TOPIC = "clicks"


@dataclass
class FakeCluster:
    """Hold the log of each partition, with all messages ever written, and faults.

    Attributes:
        logs: Messages by partition.
        first: First offset that is left of each partition.
        topic_id: Identifier of the topic.
        up: Whether brokers answer.
        deaf: Partitions with fetches that are never sent.
        hidden: Number of messages at the end of each partition inside an open transaction.
        markers: Number of offsets after the last message that hold no messages.
        faults: Errors to raise, one for each of the next polls.
        clients: All clients made by `connect`.
        attempts: Number of calls of `connect`.
        epochs: Epoch of each message, by partition, if brokers report it.
        forgetful: Whether a client forgets the epoch of a partition at a fetch without messages, as kafka-python does.
        before_connect: Function called at each `connect`.
        wait: Function called with the timeout of each poll without messages.
        topic: Name of the topic.
        leader: Epoch of each partition's leader, given to messages by `append`.
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
    wait: Callable[[float], object] = lambda _: None
    topic: str = TOPIC
    leader: dict[int, int] = field(default_factory=dict)

    def connect(self, settings: KafkaTopic, timeout: float, connections: ConnectionGroup) -> Any:
        self.attempts += 1
        self.before_connect()
        self.require_answer()
        client = FakeClient(self, settings.max_poll_records)
        self.clients.append(client)
        return client

    def require_answer(self) -> None:
        if not self.up:
            raise ClientError("no broker answers")

    def fill(self, partition: int, count: int, first: int = 0) -> None:
        log = self.logs.setdefault(partition, [])
        log += [f"{partition}:{number}".encode() for number in range(first, first + count)]

    def append(self, partition: int, value: bytes) -> None:
        """Write a message under the present leader."""
        self.logs[partition].append(value)
        self.epochs.setdefault(partition, []).append(self.leader.get(partition, 0))

    def cut(self, partition: int, end: int) -> None:
        """Lose all messages from `end` on, as in an unclean election. The new leader has the next epoch."""
        del self.logs[partition][end:], self.epochs.get(partition, [])[end:]
        self.leader[partition] = self.leader.get(partition, 0) + 1

    def create_again(self) -> None:
        """Delete the topic and create it again with as many partitions."""
        self.topic_id = f"id-{self.attempts}-{self.topic_id}"[:40]
        self.logs, self.epochs = {partition: [] for partition in self.logs}, {}
        self.first, self.leader = {}, {}

    def first_offset(self, partition: int) -> int:
        return self.first.get(partition, 0)

    def readable_end(self, partition: int) -> int:
        return len(self.logs[partition]) - self.hidden + self.markers


class FakeClient:
    """Read from a `FakeCluster` with the methods of a `Client`."""

    def __init__(self, cluster: FakeCluster, most: int) -> None:
        self.cluster = cluster
        self.most = most
        self.positions: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.empty: set[int] = set()
        self.ends: dict[int, int] = {}
        self.paused: frozenset[int] = frozenset()
        self.closed = False
        self._topic_id = cluster.topic_id

    def topic_id(self) -> str | None:
        return self._topic_id

    def partitions(self, timeout: float) -> Collection[int]:
        self.cluster.require_answer()
        self._topic_id = self.cluster.topic_id
        return self.cluster.logs.keys()

    def offsets(self, partitions: Collection[int], at: Start, timeout: float) -> dict[int, int]:
        self.cluster.require_answer()
        if not set(partitions) <= self.cluster.logs.keys():
            raise ClientError("no such partition")
        if isinstance(at, datetime):
            return dict.fromkeys(partitions, int(at.timestamp()))
        offset = self.cluster.first_offset if at == "earliest" else self.cluster.readable_end
        return {partition: offset(partition) for partition in partitions}

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self.positions, self.read, self.ends = dict(positions), dict(epochs), {}
        self.empty.clear()

    def pause(self, partitions: Collection[int]) -> None:
        self.paused = frozenset(partitions)

    def poll(self, timeout: float) -> list[Records]:
        if self.cluster.faults:
            raise self.cluster.faults.pop(0)
        records = self._fetched() if self.cluster.up else []
        if not records:
            self.cluster.wait(timeout)
        return records

    def _fetched(self) -> list[Records]:
        if self._topic_id != self.cluster.topic_id:  # fetches address the topic by its id
            self._topic_id = self.cluster.topic_id
            return []
        self._require_positions_in_range()
        heard = (self.positions.keys() & self.cluster.logs.keys()) - self.cluster.deaf - self.paused
        self.ends |= {partition: len(self.cluster.logs[partition]) + self.cluster.markers for partition in heard}
        parts = [self._read(partition) for partition in sorted(heard)]
        return [part for part in parts if part.values]

    def _require_positions_in_range(self) -> None:
        gone: dict[int, int | None] = {}
        for partition in self.positions.keys() & self.cluster.logs.keys():
            position = self.positions[partition]
            if not self.cluster.first_offset(partition) <= position <= self.cluster.readable_end(partition):
                gone[partition] = None
            if partition in self.read and partition in self.cluster.epochs:
                same = bisect_right(self.cluster.epochs[partition], self.read[partition])
                if same < position:
                    gone[partition] = same
        if gone:
            raise OffsetsGoneError(gone)

    def _read(self, partition: int) -> Records:
        start = self.positions[partition]
        end = min(start + self.most, len(self.cluster.logs[partition]) - self.cluster.hidden)
        self.positions[partition] = max(start, end)
        if end > start:
            self.empty.discard(partition)
            if partition in self.cluster.epochs:
                self.read[partition] = self.cluster.epochs[partition][end - 1]
            else:
                self.read.pop(partition, None)
        else:
            self.empty.add(partition)
        offsets = range(start, end)
        values, written = self.cluster.logs[partition][start:end], [1000 * offset for offset in offsets]
        return Records(self.cluster.topic, partition, offsets, values, written)

    def unblock(self, partitions: Collection[int]) -> None:
        raise ClientError("no message comes")

    def position(self, partition: int) -> int:
        read_all = self.positions[partition] >= len(self.cluster.logs[partition]) - self.cluster.hidden
        return self.cluster.readable_end(partition) if read_all else self.positions[partition]

    def epochs(self) -> dict[int, int]:
        forgotten = self.empty if self.cluster.forgetful else ()
        return {partition: epoch for partition, epoch in self.read.items() if partition not in forgotten}

    def highwater(self, partition: int) -> int | None:
        return self.ends.get(partition)

    def close(self) -> None:
        self.closed = True
