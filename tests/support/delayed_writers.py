"""Simulate topics with writers that send events in batches and truncate their timestamps."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from streameval.config.model import Config
from streameval.events import EventBatch
from streameval.ingest.base import Records
from streameval.ingest.pipeline import EventPipeline
from streameval.ingest.stages import BufferStatus
from support.messages import message

TOPIC = "interactions"
START = 1_700_000_000.0
PROBE_INTERVAL = 3.0
"""Seconds between two requests for the ends of the partitions, as the source makes them."""


@dataclass(frozen=True)
class Writers:
    """Describe how events reach the log.

    Attributes:
        rate: Events per second, over all partitions.
        partitions: Number of partitions.
        idle: Number of partitions that get no events.
        flush: Seconds between two flushes of a writer. 0 sends each event at once.
        stagger: Seconds between the flushes of two partitions, or of two hosts.
        hosts: Writers to each partition.
        coarseness: Seconds to which timestamps are truncated.
    """

    rate: float = 10.0
    partitions: int = 4
    idle: int = 0
    flush: float = 0.0
    stagger: float = 0.0
    hosts: int = 1
    coarseness: float = 0.0

    def log(self, events: int, seed: int) -> Iterator[tuple[float, int, float]]:
        """Return the time of writing, the partition and the timestamp of each event, in the order of writing."""
        random, now, written = Random(seed), START, []
        for _ in range(events):
            now += random.expovariate(self.rate)
            partition = random.randrange(self.partitions - self.idle)
            host = random.randrange(self.hosts)
            sent = now
            if self.flush:
                phase = self.stagger * (partition + self.partitions * host)
                sent = START + phase + self.flush * (1 + (now - START - phase) // self.flush)
            written.append((sent, now, partition, now - now % self.coarseness if self.coarseness else now))
        written.sort()
        return ((sent, partition, timestamp) for sent, _, partition, timestamp in written)


class LiveReading:
    """Read a log while it is written, twice a second, with a pipeline that has default settings.

    If the settings of the source have `rewards`, each event gets a reward of 1 in that topic, two seconds after the
    event.

    Attributes:
        batches: All batches that the pipeline released.
    """

    def __init__(self, writers: Writers, events: int, seed: int = 0, **source: Any) -> None:
        config = Config.model_validate(
            {"source": {"kind": "kafka", "topic": TOPIC} | source, "policies": {"candidates": ["challenger"]}}
        )
        self._pipeline = EventPipeline(config.event_format(), config.required_source(), reward_range=(0.0, 1.0))
        self._positions = {(TOPIC, number): 0 for number in range(writers.partitions)}
        self._ended: dict[tuple[str, int], float] = {}
        log = [
            (sent, (TOPIC, partition), message(number, timestamp=timestamp, policies={"challenger": 0.5}))
            for number, (sent, partition, timestamp) in enumerate(writers.log(events, seed))
        ]
        if "rewards" in source:
            rewards = (source["rewards"]["topic"], 0)
            self._positions[rewards] = 0
            log += [(json.loads(value)["timestamp"] + 2.0, rewards, _reward(value)) for _, _, value in log]
        self.batches = [*self._read(deque(sorted(log))), self._pipeline.flush()]

    def _read(self, log: deque[tuple[float, tuple[str, int], bytes]]) -> Iterator[EventBatch]:
        now, probed, until = START, START, log[-1][0] + 100.0
        while now < until:
            now += 0.5
            polled: dict[tuple[str, int], list[bytes]] = {}
            while log and log[0][0] <= now:
                _, partition, value = log.popleft()
                polled.setdefault(partition, []).append(value)
            self._ended = {partition: at for partition, at in self._ended.items() if partition not in polled}
            if now >= probed + PROBE_INTERVAL:
                probed = now
                self._ended = dict.fromkeys(self._positions.keys() - polled.keys(), now)
            records = [self._records(*part) for part in polled.items()]
            yield self._pipeline.take(
                records, {partition: self._ended.get(partition) for partition in self._positions}, now
            )

    def _records(self, partition: tuple[str, int], values: list[bytes]) -> Records:
        first = self._positions[partition]
        self._positions[partition] += len(values)
        return Records(*partition, range(first, first + len(values)), values)

    @property
    def times(self) -> list[float]:
        """Return the timestamps of the accepted events, in the order of counting."""
        return [time for batch in self.batches for time in batch.timestamp.tolist()]

    @property
    def lost_share(self) -> float:
        """Return the share of events that are rejected."""
        rejected = sum(len(batch.rejected) for batch in self.batches)
        return rejected / (rejected + len(self.times))

    @property
    def buffered(self) -> BufferStatus:
        """Return the state of the buffers after the last event."""
        return self._pipeline.buffered() or BufferStatus(0)

    @property
    def lateness(self) -> float:
        """Return the lateness of the latest partition, in seconds."""
        return max(self.buffered.lateness.values(), default=0.0)


def _reward(message: bytes) -> bytes:
    event = json.loads(message)
    return json.dumps({"event_id": event["event_id"], "timestamp": event["timestamp"] + 2.0, "reward": 1}).encode()
