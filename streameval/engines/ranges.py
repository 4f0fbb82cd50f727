"""The work of an executor: reads the messages of a range of offsets, decodes them, and sums them up (half 1)."""

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
from streameval.ingest.kafka.source import CONNECT_TIMEOUT, connect
from streameval.ingest.stages import ClockBehindError
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.summaries import Summariser
from streameval.service.dead_letters import MAX_DEAD_LETTERS, DeadLetter, dead_letters_of
from streameval.service.startup import pipeline_of
from streameval.service.status import NO_DELAYS, Histogram

POLL_TIMEOUT = 0.5  # seconds
EVENTS_AT_ONCE = 10_000
"""Messages that are summed up together: enough to keep numpy busy, few enough to keep an executor small."""
LITTLE_AHEAD: Mapping[str, Mapping[str, int]] = {
    "confluent": {"max.partition.fetch.bytes": 128 * 1024, "queued.min.messages": EVENTS_AT_ONCE},
    "kafka-python": {"max_partition_fetch_bytes": 128 * 1024},
}
"""Options of each client. Messages that it fetches beyond the end of a range are lost, and fetched again for the next
one: with the options of a daemon, they can be half as many as a range of 50,000 has."""
MOST_REJECTED, MOST_REJECTED_BYTES = MAX_DEAD_LETTERS, 4 * 2**20
"""Dead letters that a range returns to the driver, which writes them; further ones are dropped and counted."""


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The offsets of a partition from `start` up to, but not including, `end`.

    `epoch`: that of the leader that wrote the last message before `start`, if known.
    """

    topic: str
    partition: int
    start: int
    end: int
    epoch: int | None = None


@dataclass(frozen=True, slots=True)
class BatchTask:
    """How all ranges of a batch are evaluated.

    `config`: a pickled `Config`, which reads and decodes. `evaluator`: a pickled `EvaluatorConfig`. `knowledge` and
    `rests`: of its `PartitionedEvaluator`. `most`: the offsets that it has at most, which limits the memory for sums.
    """

    config: bytes
    evaluator: bytes
    knowledge: bytes | None = None
    rests: Mapping[int, bytes] = field(default_factory=dict)
    most: int | None = None

    def of_partition(self, partition: int) -> BatchTask:
        """The task for the ranges of a partition."""
        return replace(self, rests={number: rest for number, rest in self.rests.items() if number == partition})


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range to evaluate; `now`: the time of its batch in epoch seconds."""

    batch: BatchTask
    range: OffsetRange
    now: float


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of an executor for a range.

    `summary`: the bytes of a `Summary`. `events`: how many counted; `delays`: the
    seconds from their times to that of the batch. `rejected`: messages by reason, with one of its details in
    `examples`. `dead_letters` of them, and how many more there were. `problems`: fields that estimators need and no
    event has. `epoch`: that of the last message.
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


@dataclass(frozen=True, slots=True)
class RangeGone:
    """The log no longer has a range; `resume`: see `OffsetsGoneError`."""

    resume: Mapping[int, int | None]


def evaluate(task: RangeTask) -> RangeResult | RangeGone:
    """Read and evaluate a range; what a configuration needs is kept for the next range of this process."""
    config = task.batch.config
    if config not in _evaluators:
        for other in _evaluators.values():
            other.close()
        _evaluators.clear()
        _evaluators[config] = RangeEvaluator(pickle.loads(config))
    return _evaluators[config](task.range, task.now, task.batch)


_evaluators: dict[bytes, RangeEvaluator] = {}
"""That of the last range of this process, by its pickled configuration."""


@lru_cache(maxsize=16)
def _evaluator_config(pickled: bytes) -> EvaluatorConfig:
    found: EvaluatorConfig = pickle.loads(pickled)
    return found


class RangeEvaluator:
    """Evaluates ranges one after another by one configuration and through one client."""

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
        """The result of a range.

        Raises:
            ClientError: Its messages cannot be read or decoded now; the next call connects again.
        """
        self._client = client = self._client or self._connect(self._settings, CONNECT_TIMEOUT, ConnectionGroup())
        try:
            result = self._evaluated(range, messages_of(client, range, self._settings.stall_timeout), now, batch)
            return replace(result, epoch=client.epochs().get(range.partition))
        except OffsetsGoneError as gone:
            return RangeGone(dict(gone.resume))
        except (ClockBehindError, NotYetReadableError) as error:
            raise ClientError(str(error)) from error
        except ClientError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections; the next range opens others."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _evaluated(self, range: OffsetRange, messages: Iterator[Records], now: float, task: BatchTask) -> RangeResult:
        place = range.partition, range.start
        summariser = Summariser(
            _evaluator_config(task.evaluator), *place, task.knowledge, task.rests.get(range.partition)
        )
        pipeline = pipeline_of(self._config, located=True)
        dead_letters = KeptDeadLetters(wanted=self._config.dead_letters is not None)
        events, delays, rejected, examples = 0, NO_DELAYS, Counter[str](), dict[str, str]()
        problems: list[str] = []

        def decoded(part: Records) -> EventBatch:
            batch = pipeline.take([part], {}, now)
            dead_letters.add([part], batch)
            return batch

        for batch in _gathered(messages, decoded):
            if len(batch) and not events:
                problems += [f"{each}; {each.hint}" for each in summariser.missing_fields(batch)]
            summariser.update(batch)
            delays, events = delays.add(now - batch.timestamp), events + len(batch)
            for each in batch.rejected:
                rejected[each.reason] += 1
                examples[each.reason] = each.detail
        found = range, summariser.summary(range.end).to_bytes(), events, delays, dict(rejected), examples
        return RangeResult(*found, dead_letters.kept, dead_letters.dropped, problems)


class KeptDeadLetters:
    """Dead letters up to a number and a size."""

    def __init__(self, *, wanted: bool) -> None:
        self.kept: list[DeadLetter] = []
        self.dropped, self._bytes, self._wanted = 0, 0, wanted

    def add(self, records: Sequence[Records], batch: EventBatch) -> None:
        """Keep a dead letter of each rejected message of these records."""
        for dead_letter in dead_letters_of(records, batch.rejected) if self._wanted else ():
            self._bytes += len(dead_letter.value)
            if self._bytes > MOST_REJECTED_BYTES or len(self.kept) == MOST_REJECTED:
                self.dropped += 1
            else:
                self.kept.append(dead_letter)


def messages_of(client: Client, range: OffsetRange, patience: float) -> Iterator[Records]:
    """The messages of a range; its last offsets may be transaction markers, which have none.

    Raises:
        OffsetsGoneError: The log no longer has the range.
        ClientError: It cannot be read, or nothing has come for `patience` seconds.
    """
    partition, reached, moved_at = range.partition, range.start, time.monotonic()
    client.pause([])
    client.assign({partition: range.start}, {} if range.epoch is None else {partition: range.epoch})
    while reached < range.end:
        parts, position = client.poll(POLL_TIMEOUT), client.position(partition)
        if position >= range.end:
            client.pause([partition])  # nothing more is fetched while the last messages are evaluated
        for part in parts:
            row = bisect_left(part.offsets, range.end)
            if row:
                yield _first(part, row)
        if position > reached:
            reached, moved_at = position, time.monotonic()
        elif time.monotonic() > moved_at + patience:
            client.unblock([partition])
            moved_at = time.monotonic()


def _first(part: Records, rows: int) -> Records:
    times = None if part.timestamps is None else part.timestamps[:rows]
    return replace(part, offsets=part.offsets[:rows], values=part.values[:rows], timestamps=times)


def _gathered(messages: Iterator[Records], decoded: Callable[[Records], EventBatch]) -> Iterator[EventBatch]:
    """The events of at least `EVENTS_AT_ONCE` messages each time, and last those of all others.

    Messages are decoded as they come, while they are in the processor's cache.
    """
    batches: list[EventBatch] = []
    count = 0
    for part in messages:
        batches.append(decoded(part))
        count += len(part)
        if count >= EVENTS_AT_ONCE:
            yield EventBatch.concat(batches)
            batches, count = [], 0
    if batches:
        yield EventBatch.concat(batches)
