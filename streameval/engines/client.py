"""Plan ranges of offsets for an engine, and return the results as a Kafka client returns messages."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from streameval.config.model import Config
from streameval.engines.ranges import BatchTask, OffsetRange, RangeGone, RangeResult, RangeTask
from streameval.errors import SourceError
from streameval.ingest.background import Background
from streameval.ingest.base import Records
from streameval.ingest.kafka.client import Client, OffsetsGoneError
from streameval.ingest.kafka.connection import Start
from streameval.ingest.kafka.settings import KafkaSettings

REQUEST_TIMEOUT = 5.0
"""Limit the wait for the ends of the log before a batch, in seconds."""


class Engine(Protocol):
    """Evaluate ranges."""

    def run(self, tasks: Sequence[RangeTask]) -> list[RangeResult | RangeGone]:
        """Return the results of all tasks.

        Raises:
            ClientError: A task has failed repeatedly, or the batch was cancelled.
        """

    def cancel(self) -> None:
        """Let a running `run` fail soon. Another thread calls this."""

    def executors_lost(self) -> int:
        """Return how many executors have ended unasked."""

    def has_ended(self) -> bool:
        """Tell whether the engine has ended unasked and cannot start again."""

    def close(self) -> None:
        """End the executors."""


@dataclass(frozen=True, slots=True)
class EvaluatedRange(Records):
    """Hold the result of a range of offsets that an executor has read, without its messages.

    Attributes:
        result: the result of the executor
        read_at: when the end of the range was looked up, in epoch seconds
        seconds: how long the batch took
    """

    result: RangeResult = field(kw_only=True)
    read_at: float = field(kw_only=True)
    seconds: float = field(kw_only=True)


class EngineClient:
    """Return ranges of offsets that an engine evaluates in batches, as a `Client`.

    A batch has at most `most_per_partition` offsets of each partition. The next batch starts `trigger` seconds after
    the start of this one, or at its end if that is later. It starts at once if a limit of `BatchTask` has left offsets
    over. Positions advance by whole batches, so a failed batch has read nothing.

    Args:
        config: the configuration, with an engine
        engine: evaluates the ranges
        requests: the client that answers all other requests and reads nothing
        task: makes the task at the start of each batch
        clock: returns monotonic seconds
    """

    def __init__(
        self,
        config: Config,
        engine: Engine,
        requests: Client,
        task: Callable[[], BatchTask],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        source, settings = config.required_source(), config.engine
        assert isinstance(source, KafkaSettings)
        assert settings is not None
        self._topic, self._trigger, self._most = source.topic, settings.trigger, settings.most_per_partition
        self._engine, self._requests, self._clock = engine, requests, clock
        self._task = task
        self._positions: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._ends: dict[int, int] = {}
        self._paused: frozenset[int] = frozenset()
        self._batch: Background[list[RangeResult | RangeGone]] | None = None
        self._due = self._started = clock()
        self._planned_at = 0.0

    def topic_id(self) -> str | None:
        return self._requests.topic_id()

    def partitions(self, timeout: float) -> Collection[int]:
        return self._requests.partitions(timeout)

    def offsets(self, partitions: Collection[int], at: Start, timeout: float) -> dict[int, int]:
        return self._requests.offsets(partitions, at, timeout)

    def assign(self, positions: Mapping[int, int], epochs: Mapping[int, int]) -> None:
        self.cancel()
        self._positions, self._epochs, self._ends = dict(positions), dict(epochs), {}

    def pause(self, partitions: Collection[int]) -> None:
        self._paused = frozenset(partitions)

    def poll(self, timeout: float) -> list[Records]:
        if self._engine.has_ended():
            hint = "start the program again: it continues with the events after its last snapshot"
            raise SourceError("the engine has ended", hint=hint)
        deadline = self._clock() + timeout
        if self._batch is None:
            time.sleep(max(0.0, min(self._due - self._clock(), timeout)))
            tasks = list(self._planned()) if self._clock() >= self._due else []
            if not tasks:
                time.sleep(max(0.0, min(self._trigger, deadline - self._clock())))
                return []
            self._started = self._clock()
            self._batch = Background(lambda: self._engine.run(tasks))
        results = self._batch.result(max(0.0, deadline - self._clock()))
        if results is None:
            return []
        self._batch = None
        return self._taken(results)

    def _planned(self) -> Iterator[RangeTask]:
        """Yield the tasks of the next batch, up to the last message that can be read.

        Raises:
            OffsetsGoneError: A partition starts after the position of the client, or ends before it.
        """
        self._due = self._clock() + self._trigger
        self._planned_at = time.time()
        first = self._requests.offsets(self._positions, "earliest", REQUEST_TIMEOUT)
        self._ends = self._requests.offsets(self._positions, "latest", REQUEST_TIMEOUT)
        gone = [number for number, at in self._positions.items() if not first[number] <= at <= self._ends[number]]
        if gone:
            raise OffsetsGoneError(dict.fromkeys(gone))
        batch, most = self._task(), self._most
        if batch.most is not None:
            most = min(most, math.ceil(batch.most / max(1, len(self._positions))))
        for number, start in self._positions.items():
            end = min(self._ends[number], start + most)
            if end < self._ends[number] and most < self._most:
                self._due = self._clock()
            if end > start and number not in self._paused:
                offsets = OffsetRange(self._topic, number, start, end, self._epochs.get(number))
                yield RangeTask(batch.select_partition(number), offsets, self._planned_at)

    def _taken(self, results: Sequence[RangeResult | RangeGone]) -> list[Records]:
        resume = {number: at for gone in results if isinstance(gone, RangeGone) for number, at in gone.resume.items()}
        if resume:
            raise OffsetsGoneError(resume)
        seconds = self._clock() - self._started
        records: list[Records] = []
        for result in results:
            assert isinstance(result, RangeResult)
            number, start, end = result.range.partition, result.range.start, result.range.end
            self._positions[number] = end
            self._epochs |= {} if result.epoch is None else {number: result.epoch}
            records.append(
                EvaluatedRange(
                    *(self._topic, number, range(start, end), ()),
                    timestamps=None if result.written_at is None else [result.written_at],
                    result=result,
                    read_at=self._planned_at,
                    seconds=seconds,
                )
            )
        return records

    def unblock(self, partitions: Collection[int]) -> None:
        """Do nothing, because a running batch may take long and each executor unblocks its own client."""

    def position(self, partition: int) -> int:
        return self._positions[partition]

    def epochs(self) -> dict[int, int]:
        return dict(self._epochs)

    def highwater(self, partition: int) -> int | None:
        return self._ends.get(partition)

    def close(self) -> None:
        self.cancel()
        self._requests.close()

    def cancel(self) -> None:
        """Give up the running batch. Its offsets are read again."""
        batch, self._batch = self._batch, None
        if batch is not None:
            self._engine.cancel()
