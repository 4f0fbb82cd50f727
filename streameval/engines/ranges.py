"""Do the work of an executor: read the messages of a range of offsets, decode them, and sum them up (half 1)."""

from __future__ import annotations

import pickle
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from streameval.config.model import Config
from streameval.events import EventBatch
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import NotYetReadableError, Records
from streameval.ingest.kafka.client import Client, ClientError, OffsetsGoneError
from streameval.ingest.kafka.connection import KafkaTopic
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import CONNECT_TIMEOUT, STALL_TIMEOUT, connect
from streameval.ingest.stages import ClockBehindError
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.summaries import Summariser
from streameval.service.dead_letters import DeadLetter, dead_letters_of
from streameval.service.startup import pipeline_of
from streameval.service.status import NO_DELAYS, Histogram

POLL_TIMEOUT = 0.5  # seconds
EVENTS_AT_ONCE = 10_000
"""Set the number of messages summed up together: enough to keep numpy busy, few enough to keep an executor small."""
LITTLE_AHEAD: Mapping[str, Mapping[str, int]] = {
    "confluent": {"max.partition.fetch.bytes": 128 * 1024, "queued.min.messages": EVENTS_AT_ONCE},
    "kafka-python": {"max_partition_fetch_bytes": 128 * 1024},
}
"""Let each client fetch little ahead.

Messages beyond the end of a range are thrown away and fetched again for the next range. With the options of a daemon
they can be half as many as in a range of 50,000.
"""
MAX_REJECTED_BYTES = 8 * 2**20
"""Memory of dead letters that a range returns to the driver, which writes them. Others are dropped and counted."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Hold the offsets of a partition from `start` up to, but not including, `end`.

    Attributes:
        topic: the topic
        partition: the number of the partition
        start: the first offset
        end: the offset after the last one
        epoch: the epoch of the leader that wrote the last message before `start`, None if unknown
    """

    topic: str
    partition: int
    start: int
    end: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class BatchTask:
    """Tell executors how to evaluate all ranges of a batch.

    Attributes:
        config: a pickled `Config`, for reading and decoding
        evaluator: a pickled `EvaluatorConfig`
        knowledge: see `PartitionedEvaluator.knowledge`
        rests: see `PartitionedEvaluator.rests`, by partition
        most: the largest number of offsets of the batch, which limits the memory for sums
    """

    config: bytes
    evaluator: bytes
    knowledge: bytes | None = None
    rests: Mapping[int, bytes] = field(default_factory=dict)
    most: int | None = None

    def select_partition(self, partition: int) -> BatchTask:
        """Return the task for the ranges of one partition."""
        return replace(self, rests={number: rest for number, rest in self.rests.items() if number == partition})


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Hold a range to evaluate.

    Attributes:
        batch: the task of the batch
        range: the offsets
        now: the time of the batch in epoch seconds
    """

    batch: BatchTask
    range: OffsetRange
    now: float


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Hold the result of an executor for a range.

    Attributes:
        range: the offsets
        summary: the bytes of a `Summary`
        events: the number of counted events
        delays: seconds from the times of events to the time of the batch
        rejected: the number of rejected messages by reason
        examples: one detail for each reason
        dead_letters: rejected messages, up to a limit
        dropped: how many further rejected messages are beyond the limit
        problems: fields that estimators need and no event has
        epoch: the epoch of the last message, None if unknown
        written_at: when the last message was written, in milliseconds since 1970, None if unknown
    """

    range: OffsetRange
    summary: bytes
    events: int
    delays: Histogram
    rejected: Mapping[str, int]
    examples: Mapping[str, str]
    dead_letters: Sequence[DeadLetter]
    dropped: int
    problems: Sequence[str]
    epoch: int | None = None
    written_at: int | None = None


@dataclass(frozen=True, slots=True)
class RangeGone:
    """Report that the log no longer has a range.

    Attributes:
        resume: see `OffsetsGoneError`
    """

    resume: Mapping[int, int | None]


def evaluate(task: RangeTask) -> RangeResult | RangeGone:
    """Read and evaluate a range. The process keeps what the configuration needs for its next range."""
    config = task.batch.config
    if config not in _evaluators:
        for other in _evaluators.values():
            other.close()
        _evaluators.clear()
        _evaluators[config] = RangeEvaluator(pickle.loads(config))
    return _evaluators[config](task.range, task.now, task.batch)


_evaluators: dict[bytes, RangeEvaluator] = {}
"""Hold the evaluator of the last range of this process, by its pickled configuration."""


@lru_cache(maxsize=16)
def _evaluator_config(pickled: bytes) -> EvaluatorConfig:
    config: EvaluatorConfig = pickle.loads(pickled)
    return config


class RangeEvaluator:
    """Evaluate ranges one after another by one configuration and through one client."""

    def __init__(
        self, config: Config, connect: Callable[[KafkaTopic, float, ConnectionGroup], Client] = connect
    ) -> None:
        source = config.required_source()
        assert isinstance(source, KafkaSettings)
        self._config, self._connect = config, connect
        options = {**LITTLE_AHEAD[source.client], **source.client_options}
        self._settings = source.model_copy(update={"client_options": options})
        self._client: Client | None = None

    def __call__(self, range: OffsetRange, now: float, batch: BatchTask) -> RangeResult | RangeGone:
        """Return the result of a range.

        Raises:
            ClientError: The messages cannot be read or decoded now. The next call connects again.
        """
        self._client = client = self._client or self._connect(self._settings, CONNECT_TIMEOUT, ConnectionGroup())
        try:
            result = self._evaluated(range, messages_of(client, range, STALL_TIMEOUT), now, batch)
            return replace(result, epoch=client.epochs().get(range.partition))
        except OffsetsGoneError as gone:
            return RangeGone(dict(gone.resume))
        except (ClockBehindError, NotYetReadableError) as error:
            raise ClientError(str(error)) from error
        except ClientError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections. The next range opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _evaluated(self, range: OffsetRange, messages: Iterator[Records], now: float, task: BatchTask) -> RangeResult:
        position = range.partition, range.start
        summariser = Summariser(
            _evaluator_config(task.evaluator), *position, task.knowledge, task.rests.get(range.partition)
        )
        pipeline = pipeline_of(self._config)
        dead_letters, dropped, room = list[DeadLetter](), 0, MAX_REJECTED_BYTES
        events, delays, rejected, examples = 0, NO_DELAYS, Counter[str](), dict[str, str]()
        problems: list[str] = []
        written_at: int | None = None

        def decoded(records: Records) -> EventBatch:
            nonlocal dropped, room, written_at
            written_at = records.timestamps[-1] if records.timestamps else written_at
            batch = pipeline.take([records], {}, now)
            for dead_letter in dead_letters_of([records], batch.rejected) if self._config.dead_letters else ():
                room -= dead_letter.nbytes
                if room >= 0:
                    dead_letters.append(dead_letter)
                else:
                    dropped += 1
            return batch

        parts = (part for records in messages for group in pipeline.groups([records], {}) for part in group)
        for batch in _gathered(parts, decoded):
            if len(batch) and not events:
                problems += [f"{missing}; {missing.hint}" for missing in summariser.missing_fields(batch)]
            summariser.update(batch)
            delays, events = delays.add(now - batch.timestamp), events + len(batch)
            for rejection in batch.rejected:
                rejected[rejection.reason] += 1
                examples[rejection.reason] = rejection.detail
        columns = range, summariser.summary(range.end).to_bytes(), events, delays, dict(rejected), examples
        return RangeResult(*columns, dead_letters, dropped, problems, written_at=written_at)


def messages_of(client: Client, range: OffsetRange, patience: float) -> Iterator[Records]:
    """Yield the messages of a range. Its last offsets may be transaction markers, which have no message.

    Args:
        client: reads the messages
        range: the offsets
        patience: seconds without a message after which the client is unblocked

    Raises:
        OffsetsGoneError: The log no longer has the range.
        ClientError: The range cannot be read, or nothing has come for `patience` seconds.
    """
    partition, reached, moved_at = range.partition, range.start, time.monotonic()
    client.pause([])
    client.assign({partition: range.start}, {} if range.epoch is None else {partition: range.epoch})
    while reached < range.end:
        parts, position = client.poll(POLL_TIMEOUT), client.position(partition)
        if position >= range.end:
            client.pause([partition])  # nothing more is fetched while the last messages are evaluated
        for records in parts:
            row = bisect_left(records.offsets, range.end)
            if row:
                yield records.between(0, row)
        if position > reached:
            reached, moved_at = position, time.monotonic()
        elif time.monotonic() > moved_at + patience:
            client.unblock([partition])
            moved_at = time.monotonic()


def _gathered(messages: Iterator[Records], decoded: Callable[[Records], EventBatch]) -> Iterator[EventBatch]:
    """Yield events in batches of at least `EVENTS_AT_ONCE` messages or events, then the remaining ones.

    Messages are decoded as they come, while they are in the processor's cache.
    """
    batches: list[EventBatch] = []
    count = 0
    for records in messages:
        batches.append(decoded(records))
        count += max(len(records), len(batches[-1]))
        if count >= EVENTS_AT_ONCE:
            yield EventBatch.concat(batches)
            batches, count = [], 0
    if batches:
        yield EventBatch.concat(batches)
