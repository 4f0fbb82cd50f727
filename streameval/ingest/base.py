"""Define what every event source has: messages with offsets, status, lost messages, backfill, and settings.

A source yields `Records`, raw bytes with their offsets in a log, and never decodes them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol, TypeAlias, TypeVar

import structlog
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from streameval.common.component import StrictModel as StrictModel
from streameval.common.text import Seconds
from streameval.errors import InputError, SourceError, StreamevalError, without_secrets
from streameval.events.records import RecordDecoder
from streameval.events.tables import ColumnNames
from streameval.ingest.stages import EventOrder, PartitionEnds
from streameval.ingest.stages import TopicPartition as TopicPartition

log = structlog.get_logger(__name__)

D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class Records:
    """Hold consecutive messages of one partition.

    Attributes:
        topic: the topic, or the path of a file
        partition: the number of the partition
        offsets: of the messages. They rise, but may have gaps (compaction, transactions)
        values: of the messages. None is a Kafka tombstone
        timestamps: when each message was written, in milliseconds since 1970, or None if the log does not record it
        unreadable: why the batch of these messages cannot be unpacked; all its values are then None
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    values: Sequence[bytes | None]
    timestamps: Sequence[int] | None = None
    unreadable: str = ""

    def __len__(self) -> int:
        return len(self.values)

    def between(self, start: int, stop: int) -> Records:
        """Return the messages of these indices."""
        times = None if self.timestamps is None else self.timestamps[start:stop]
        return replace(self, offsets=self.offsets[start:stop], values=self.values[start:stop], timestamps=times)


class NotYetReadableError(StreamevalError):
    """Report messages that cannot be decoded now, but perhaps later. No message decoded with them was taken."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Tell how far a log has been read, so that a restart continues there.

    Attributes:
        positions: by partition, the next offset
        identity: tells the log from a later one with the same name: the id of a topic, a digest of a file's content;
            None = unknown
        epochs: by partition, if known, the epoch of the leader that wrote the last message read. It reveals a log
            that was truncated and has since grown beyond the position

    >>> Offsets.from_state(Offsets({0: 12, 1: 7}, "id-1", {1: 4}).to_state())
    Offsets(positions={0: 12, 1: 7}, identity='id-1', epochs={1: 4})
    """

    positions: Mapping[int, int]
    identity: str | None = None
    epochs: Mapping[int, int] = field(default_factory=dict)

    def to_state(self) -> dict[str, Any]:
        """Return a plain value, for a snapshot."""
        positions, epochs = ([list(pair) for pair in column.items()] for column in (self.positions, self.epochs))
        return {"identity": self.identity, "positions": positions, "epochs": epochs}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Offsets:
        """Restore from `to_state`.

        Raises:
            ValueError: A number cannot be one of a partition, an offset or an epoch.
        """
        for number in chain(*state["positions"], *state["epochs"]):
            if type(number) is not int or not 0 <= number < 2**63:
                raise ValueError(f"expected a whole number from 0 among the offsets, found {number!r}")
        return cls(dict(state["positions"]), state["identity"], dict(state["epochs"]))


SourceOffsets: TypeAlias = Mapping[str, Offsets]
"""The offsets of all logs of a source, by topic or path."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """Tell how far one partition has been read.

    Attributes:
        topic: the topic, or the path of a file
        partition: the number of the partition
        position: the next offset
        lag: how many messages are still unread, or None if unknown
        ended_at: when the log was last asked for its end (epoch seconds), if all was read then and nothing came since
        written_at: when the last message read was written (epoch seconds), None if unknown
    """

    topic: str
    partition: int
    position: int
    lag: int | None
    ended_at: float | None = None
    written_at: float | None = None

    @property
    def name(self) -> str:
        """Return the topic for people: the query of a web address is hidden."""
        return without_secrets(self.topic)

    def lag_seconds(self, now: float) -> float | None:
        """Return the age of the last message read, 0 if no other message is unread, and None if unknown."""
        if not self.lag:
            return self.lag
        return None if self.written_at is None else max(0.0, now - self.written_at)


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """Describe a source, without a round trip.

    Attributes:
        reached: the log answered recently
        exhausted: nothing more will ever come (a file at its end)
        partitions: how far each partition has been read
        detail: one line for people, e.g. why the source is not reached
        rebuilds: how often the client was replaced
        lost: messages that were gone before they could be read, as far as they can be counted
        gaps: how often messages were lost, by kind (see `GAPS`)
        spanning_rows: rows of CSV that took several lines, unless that is expected
        waiting: seconds for which the log has not answered, or has had unread messages and returned none
    """

    reached: bool
    exhausted: bool = False
    partitions: tuple[PartitionStatus, ...] = ()
    detail: str = ""
    rebuilds: int = 0
    lost: int = 0
    gaps: Mapping[str, int] = field(default_factory=dict)
    spanning_rows: int = 0
    waiting: float = 0.0

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of each partition."""
        return {(part.topic, part.partition): part.position for part in self.partitions}

    @property
    def ended_at(self) -> PartitionEnds:
        """Return when each partition was found at its end, or None if it was not."""
        return {(part.topic, part.partition): part.ended_at for part in self.partitions}

    @property
    def lag(self) -> int | None:
        """Count the unread messages in all partitions, or None while the number of one is unknown."""
        lags = [partition.lag for partition in self.partitions]
        return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)


class Source(Protocol):
    """Read a log of events.

    A source handles transient failures itself: it retries with backoff, reconnects, and reports the state in `status`.
    `pause`, `commit` and `close` may do nothing.
    """

    def poll(self, timeout: float) -> list[Records]:
        """Return the next messages, within about `timeout` seconds, or none if nothing has come.

        Raises:
            SourceError: A failure that does not pass.
        """

    def status(self) -> SourceStatus:
        """Describe the source, without a round trip."""

    def offsets(self) -> SourceOffsets:
        """Return where a restart continues after everything that `poll` has returned. Snapshots contain it."""

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        """Return no messages of these partitions, and resume all others, until the next call.

        Events that are too far ahead of other partitions then stay in the log, not in memory. The lag of a paused
        partition stays visible. A source that reads one partition after another ignores the call.
        """
        return

    def commit(self, offsets: SourceOffsets) -> None:
        """Publish the offsets of a snapshot for tools that show lag, without waiting or raising. Nothing reads them."""
        return

    def close(self) -> None:
        """Release what is open. `status` and `offsets` can still be called."""
        return


# --- Lost messages ---

GAPS = {
    "deleted": (
        "messages of {log} were deleted before they were read",
        "keep messages longer (retention.ms, retention.bytes)",
    ),
    "cut": (
        "{log} was truncated: its end offset is below the position already read",
        "find out why the log lost its end (an unclean leader election, a restored disk)",
    ),
    "replaced": (
        "{log} was deleted and recreated: another log has its name now",
        "find out who recreated it",
    ),
}
"""Kinds of lost messages, with the reason and what to do. A file that was rotated is replaced, too."""

OnLostOffsets: TypeAlias = Literal["continue", "fail"]


class DataLoss:
    """Count and log the gaps of a log.

    Args:
        name: the log, for people
        reaction: `fail` stops with an error at the first gap, and `continue` reads on behind it

    Attributes:
        lost: messages known to be lost
        gaps: gaps by kind
    """

    def __init__(self, name: str, reaction: OnLostOffsets) -> None:
        self._name, self._reaction = name, reaction
        self.lost = 0
        self.gaps: Counter[str] = Counter()

    def record(self, kind: str, lost: int, **numbers: object) -> None:
        """Count a gap.

        Args:
            kind: one of `GAPS`
            lost: how many messages are known to be lost
            numbers: locate the gap, for people

        Raises:
            SourceError: The reaction is `fail`.
        """
        self.gaps[kind] += 1
        self.lost += lost
        reason, remedy = GAPS[kind]
        reason = reason.format(log=self._name)
        if self._reaction == "fail":
            located = ", ".join(f"{name} {value}" for name, value in numbers.items())
            raise SourceError(
                f"{reason}; known to be lost: {lost} ({located})",
                hint=f"{remedy}; to continue without them, set source.on_lost_offsets to continue",
            )
        log.warning("messages_lost", kind=kind, log=self._name, lost=lost, reason=reason, **numbers)


# --- Backfill ---

MAX_AHEAD = 20_000
"""Messages beyond the live positions that are kept; with more, nothing is polled until these have advanced."""

NOT_REPEATABLE = "its earlier messages cannot be read again"


class BackfillReader:
    """Return each message before the live positions once. The live positions may advance between two calls.

    Args:
        source: reads the log again
        first: the offset to start at
        first_of: the topic to which `first` applies, or None for all
        ends_are_certain: see `SourceSettings`
    """

    def __init__(
        self, source: Source, first: int = 0, *, first_of: str | None = None, ends_are_certain: bool = False
    ) -> None:
        self._source, self._first, self._first_of = source, first, first_of
        self._ends_are_certain = ends_are_certain
        self._ahead: list[Records] = []
        self._live: dict[TopicPartition, int] = {}

    def poll(self, live: Mapping[TopicPartition, int], timeout: float) -> list[Records]:
        """Return the next messages before `live`, waiting up to `timeout` seconds for some.

        Args:
            live: by partition, the next offset of the live reader
            timeout: in seconds

        Raises:
            SourceError: The source has failed for good, or the live positions belong to another log.
        """
        if any(live.get(partition, 0) < position for partition, position in self._live.items()):
            raise SourceError("the log was deleted and recreated while it was read", hint=NOT_REPEATABLE)
        self._live = dict(live)
        records = self._release(live)
        if not records and sum(map(len, self._ahead)) < MAX_AHEAD:
            for part in self._source.poll(timeout):
                _, wanted = _split(part, self._first if self._first_of in (None, part.topic) else 0)
                if wanted:
                    self._ahead.append(wanted)
            records = self._release(live)
        if not records and self._ends_are_certain:
            for status in self._source.status().partitions:
                if status.lag == 0 and status.position < live.get((status.topic, status.partition), 0):
                    reason = f"{status.topic} ends before the live position: it was rotated or replaced"
                    raise SourceError(reason, hint=NOT_REPEATABLE)
        return records

    def caught_up(self, live: Mapping[TopicPartition, int]) -> bool:
        """Tell whether everything before `live` was returned. Offsets may be missing, as in compacted logs."""
        read = self._source.status().positions
        for part in reversed(self._ahead):
            read[part.topic, part.partition] = part.offsets[0]
        return all(read.get(partition, -1) >= position for partition, position in live.items())

    def behind(self, live: Mapping[TopicPartition, int]) -> int:
        """Estimate how many messages before `live` are still to be read."""
        read = self._source.status().positions
        return sum(max(0, position - read.get(partition, 0)) for partition, position in live.items())

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _release(self, live: Mapping[TopicPartition, int]) -> list[Records]:
        parts = [_split(part, live.get((part.topic, part.partition), 0)) for part in self._ahead]
        self._ahead = [rest for _, rest in parts if rest]
        return [before for before, _ in parts if before]


def _split(records: Records, limit: int) -> tuple[Records, Records]:
    """Split records into those with offsets below `limit`, and the others."""
    row = bisect_left(records.offsets, limit)
    return records.between(0, row), records.between(row, len(records))


# --- Settings ---


def _existing(value: str) -> str:
    if not Path(value).is_file():
        raise ValueError("expected a file that exists")
    return value


ExistingFile = Annotated[str, AfterValidator(_existing)]
"""A pydantic type: the path of a file that exists."""

WireFormat = Literal["json", "dsjson", "csv", "avro", "protobuf"]
"""How events are encoded: streameval's own JSON, decision logs of Vowpal Wabbit, rows of CSV, or Avro or Protobuf."""
JSON_FORMATS = "How events are encoded: json, or dsjson (Vowpal Wabbit)"

DedupeWindow = Annotated[
    int,
    BeforeValidator(lambda value: 0 if value is False or value == "off" or value is None else value),
    Field(ge=0, le=100_000_000),
]
"""A pydantic type: a number of events, or `off`."""
DEDUPE_WINDOW = "Drop events whose event_id is among the last N events; `off` keeps duplicates."

BackfillStart: TypeAlias = Literal["earliest"] | int | datetime
"""Where a backfill starts: at the first message there is, at an offset of each partition, or at a time."""


class JoinedTopic(StrictModel):
    """Configure a topic of messages that are joined to their decisions."""

    topic: str = Field(min_length=1, description="The topic of the messages, in the same cluster.")
    window: Seconds = Field(default=600.0, description="How long after a decision its messages count.")


class ScoreColumns(StrictModel):
    """Name the values of messages with probabilities of candidates. A dot steps into an object: `request.id`."""

    event_id: str | None = Field(default=None, description="The event_id of the decision.")
    timestamp: str | None = Field(default=None, description="The time of the message.")


class RewardColumns(ScoreColumns):
    """Name the values of reward messages. A dot steps into an object: `request.id`."""

    reward: str | None = Field(default=None, description="The reward; by default the one named in `reward.field`.")
    reward_id: str | None = Field(default=None, description="What tells a reward from a copy.")


class CandidatesTopic(JoinedTopic):
    """Configure a topic of probabilities of candidates that come separately from the decisions.

    >>> CandidatesTopic(topic="scores", window="10m").window
    600.0
    """

    columns: ScoreColumns = Field(
        default=ScoreColumns(), description="The names of fields in its messages, e.g. {event_id: requestId}."
    )


class RewardTopic(JoinedTopic):
    """Configure a topic of rewards that come separately from their decisions.

    >>> RewardTopic(topic="clicks", window="30m").window
    1800.0
    """

    default: float = Field(default=0.0, description="The reward of a decision without a reward message.")
    combine: Literal["first", "sum", "last"] = Field(
        default="first",
        description="Which of several rewards of a decision counts, or their sum (a reward sent twice then counts "
        "once if it has a `reward_id`, else twice).",
    )
    columns: RewardColumns = Field(
        default=RewardColumns(), description="The names of fields in its messages, e.g. {event_id: requestId}."
    )


class StageSettings(StrictModel):
    """Decide which stages events pass. By default they count as they arrive."""

    @property
    def dedupe_window(self) -> int:
        """Return how many event ids are remembered to drop duplicates, 0 for none."""
        return 0

    @property
    def clock_tolerance(self) -> float:
        """Return how many seconds an event may be dated ahead of the reader's clock. Later ones count as of now."""
        return math.inf

    @property
    def reward_topic(self) -> RewardTopic | None:
        """Return the topic of rewards that come separately from their decisions."""
        return None

    @property
    def candidates_topic(self) -> CandidatesTopic | None:
        """Return the topic of probabilities of candidates that come separately from the decisions."""
        return None

    def of_batches(self, decoder: D, columns: ColumnNames) -> D:
        """Return a decoder also of messages that hold many events, if the source may have such.

        Args:
            decoder: decodes messages of one event or reward
            columns: the column of each field of events

        Raises:
            InputError: The library that it needs is not installed.
        """
        return decoder

    def event_order(self, partitions: int) -> EventOrder | None:
        """Return the stage that orders the events of this many partitions, or None if they count as they arrive."""
        return None


class SourceSettings(StageSettings):
    """Configure a kind of event source, and answer everything that the rest of the program asks about that kind.

    A new source is one module with a subclass, and its name in `AnySource` of `config/model.py`. A subclass has a field
    `kind` and implements `open`, `identity` and `description`. The defaults of the other answers fit a log of JSON
    events that are counted as they arrive, and that a restart reads from its start.
    """

    keeps_position: ClassVar[bool] = False
    """Whether a restart continues where the last run stopped, also if the configuration has no section `state`."""
    ends_are_certain: ClassVar[bool] = False
    """Whether a lag of 0 means that nothing more can be read, as in files; the answer of a broker may be old."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Describe the source in one line for people."""

    @property
    def name(self) -> str:
        """Return the name of a daemon that has none of its own."""
        return self.description.partition(",")[0]

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return the options that decide which events are read. Snapshots with others are refused."""

    @abstractmethod
    def open(self, offsets: SourceOffsets | None = None) -> Source:
        """Open the source at `offsets`. A log that these do not contain is read from its start.

        If another log has the name now, or the next messages are lost, the source logs and counts that (see `DataLoss`)
        and does what `on_lost_offsets` demands.
        """

    @property
    def longest_wait(self) -> float:
        """Return the seconds of `SourceStatus.waiting` after which a new process should try."""
        return math.inf

    @property
    def wire_format(self) -> WireFormat:
        """Return how events are encoded."""
        return "json"

    def record_decoder(self, columns: ColumnNames) -> Callable[..., RecordDecoder] | None:
        """Return what makes a decoder, by its options, of events with the field names `columns`, or None for JSON."""
        return None

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the Kafka topics that are read."""
        return ()

    def for_check(self) -> SourceSettings:
        """Return settings that read the first events there are, for a check of the configuration."""
        return self

    def backfill_start(self, text: str) -> BackfillStart:
        """Parse where a backfill starts.

        Args:
            text: `earliest`, an offset, or (in Kafka) a time, as on the command line

        Raises:
            InputError: The source cannot be read from there.
        """
        if text != "earliest" and not text.isdecimal():
            raise InputError(
                f"--backfill: found '{text}', and only a Kafka topic can be read from a point in time",
                hint="write earliest, or the number of a line",
            )
        return int(text) if text.isdecimal() else "earliest"

    def open_backfill(self, start: BackfillStart, live: Mapping[TopicPartition, int]) -> BackfillReader:
        """Open a second reader of the source, from `start` to `live`, the next offsets of the first reader."""
        first = start if isinstance(start, int) else 0
        return BackfillReader(self.open(), first, ends_are_certain=self.ends_are_certain)


class LogSettings(SourceSettings):
    """Configure a log of messages that may hold a message twice."""

    duplicates: DedupeWindow = Field(0, description=DEDUPE_WINDOW)
    policies_of: dict[str, Annotated[list[str], Field(min_length=1)]] = Field(
        default={},
        description="Names of policies by header: `policies` of an event with `policies_of: v7` may be a list in this "
        "order, e.g. {v7: [challenger, bandit]}.",
    )

    @model_validator(mode="after")
    def _headers_name_lists(self) -> LogSettings:
        if self.policies_of and self.wire_format != "json":
            raise ValueError("policies_of names lists in events of JSON")
        for header, names in self.policies_of.items():
            if len(set(names)) < len(names):
                raise ValueError(f"policies_of.{header} contains a name twice")
        return self

    @property
    def dedupe_window(self) -> int:
        return self.duplicates
