"""The work of an executor: reads the messages of a range of offsets, decodes them, and adds them up to a `Partial`."""

from __future__ import annotations

import pickle
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from streameval.ope.evaluator.merging.mergeable import MergePlan
from streameval.ope.evaluator.merging.partial import Partial
from streameval.ope.evaluator.missing_fields import missing_fields
from streameval.ope.policies.coded import fill
from streameval.service.dead_letters import MAX_DEAD_LETTERS, DeadLetter, dead_letters_of
from streameval.service.startup import pipeline_of
from streameval.service.status import NO_DELAYS, Histogram

POLL_TIMEOUT = 0.5  # seconds
EVENTS_AT_ONCE = 10_000
"""Messages that are evaluated together: enough to keep numpy busy, few enough to keep an executor small."""
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
class CohortTask:
    """A pickled `Plan` to evaluate; `lagged`: that of its `MergedEvaluator`, whose `number` this is."""

    number: int
    plan: bytes
    lagged: bytes | None = None


@dataclass(frozen=True, slots=True)
class BatchTask:
    """How all ranges of a batch are evaluated: `config` is a pickled `Config`, which reads and decodes.

    `most`: the offsets that it has at most, so that a model does not predict many more events than it has learned from.
    """

    config: bytes
    cohorts: tuple[CohortTask, ...]
    most: int | None = None


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range to evaluate; `now`: the time of its batch in epoch seconds."""

    batch: BatchTask
    range: OffsetRange
    now: float


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of an executor for a range, in as many bytes for many events as for few.

    `partials`: the bytes of a `Partial` by the number of its `CohortTask`. `events`: how many counted; `delays`: the
    seconds from their times to that of the batch. `rejected`: messages by reason, with one of its details in
    `examples`. `dead_letters` of them, and how many more there were. `problems`: fields that estimators need and no
    event has. `epoch`: that of the last message.
    """

    range: OffsetRange
    partials: Mapping[int, bytes]
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
    return _evaluators[config](task.range, task.now, task.batch.cohorts)


_evaluators: dict[bytes, RangeEvaluator] = {}
"""That of the last range of this process, by its pickled configuration."""


@lru_cache(maxsize=16)
def _plan_of(plan: bytes) -> MergePlan:
    return MergePlan.of(pickle.loads(plan))


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

    def __call__(self, range: OffsetRange, now: float, cohorts: Sequence[CohortTask]) -> RangeResult | RangeGone:
        """The result of a range.

        Raises:
            ClientError: Its messages cannot be read or decoded now; the next call connects again.
        """
        self._client = client = self._client or self._connect(self._settings, CONNECT_TIMEOUT, ConnectionGroup())
        try:
            result = self._evaluated(range, messages_of(client, range, self._settings.stall_timeout), now, cohorts)
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

    def _evaluated(
        self, range: OffsetRange, messages: Iterator[Records], now: float, cohorts: Sequence[CohortTask]
    ) -> RangeResult:
        plans = {each.number: _plan_of(each.plan) for each in cohorts}
        lagged = {each.number: each.lagged for each in cohorts}
        pipeline = pipeline_of(self._config, located=True)
        dead_letters = KeptDeadLetters(wanted=self._config.dead_letters is not None)
        whole: dict[int, Partial] = {}
        start, events, delays, rejected, examples = range.start, 0, NO_DELAYS, Counter[str](), dict[str, str]()
        problems: list[str] = []

        def decoded(part: Records) -> EventBatch:
            batch = pipeline.take([part], {}, now)
            dead_letters.add([part], batch)
            return batch

        for batch, end in _gathered(messages, range, decoded):
            places = {(range.topic, range.partition): (start, end)}
            for number, plan in plans.items():
                partial = Partial.of(plan, batch, places, lagged[number])
                whole[number] = whole[number].merge(partial) if number in whole else partial
            if len(batch) and not events:
                problems = [problem for plan in plans.values() for problem in _problems(plan, batch)]
            delays, events, start = delays.add(now - batch.timestamp), events + len(batch), end
            for each in batch.rejected:
                rejected[each.reason] += 1
                examples[each.reason] = each.detail
        partials = {number: partial.to_bytes() for number, partial in whole.items()}
        found = range, partials, events, delays, dict(rejected), examples
        return RangeResult(*found, dead_letters.kept, dead_letters.dropped, problems)


def _problems(plan: MergePlan, batch: EventBatch) -> list[str]:
    """The fields that estimators need and no event of the batch has."""
    filled, _ = fill(batch.with_policies(plan.plan.columns), plan.asks)
    return [f"{each}; {each.hint}" for each in missing_fields(plan.plan, filled)]


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


def _gathered(
    messages: Iterator[Records], range: OffsetRange, decoded: Callable[[Records], EventBatch]
) -> Iterator[tuple[EventBatch, int]]:
    """The events of at least `EVENTS_AT_ONCE` messages, each time with the next offset after them.

    The last batch may have no messages, but it has offsets. Messages are decoded as they come, while they are in the
    processor's cache.
    """
    batches: list[EventBatch] = []
    end, count = range.start, 0
    for part in messages:
        batches.append(decoded(part))
        count += len(part)
        if count >= EVENTS_AT_ONCE:
            end = part.offsets[-1] + 1
            yield EventBatch.concat(batches), end
            batches, count = [], 0
    if end < range.end:
        yield EventBatch.concat(batches), range.end
