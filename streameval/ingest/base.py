"""Where events come from. A source yields `Records`, raw bytes with their place in a log, and never decodes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

TopicPartition: TypeAlias = tuple[str, int]
"""A partition: its topic (or the path of its file), and its number."""


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive messages of one partition, in order: `values[i]` lies at `offsets[i]`.

    A `None` value is a Kafka tombstone. Offsets rise but may have gaps (compaction, transactions). `timestamps`: when
    each was written, in milliseconds since 1970; None where the log does not say.
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    values: Sequence[bytes | None]
    timestamps: Sequence[int] | None = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class Offsets:
    """How far a log has been handed out, to go on there in another life: the next offset of each partition.

    `identity` tells the log from a successor of the same name: the id of a topic, a mark of what a file holds. None =
    the log does not say. `epochs`: by partition, where the log says so, the number of the leader that wrote the last
    message that was read: it tells a log that was cut behind us and has grown beyond the position since.

    >>> Offsets.from_state(Offsets({0: 12, 1: 7}, "id-1", {1: 4}).to_state())
    Offsets(positions={0: 12, 1: 7}, identity='id-1', epochs={1: 4})
    """

    positions: Mapping[int, int]
    identity: str | None = None
    epochs: Mapping[int, int] = field(default_factory=dict)

    def to_state(self) -> dict[str, Any]:
        """A plain value, for a snapshot."""
        positions, epochs = ([list(pair) for pair in each.items()] for each in (self.positions, self.epochs))
        return {"identity": self.identity, "positions": positions, "epochs": epochs}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Offsets:
        """The bookmark that gave this state."""
        return cls(dict(state["positions"]), state["identity"], dict(state.get("epochs", [])))


SourceOffsets: TypeAlias = Mapping[str, Offsets]
"""Those of all logs of a source, by topic; for files, by path."""


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How far one partition has been read: the next offset, and the events still waiting (None = not known yet).

    `ended_at`: when the log was last asked (epoch seconds), if nothing was waiting then and nothing has come since.
    """

    topic: str
    partition: int
    position: int
    lag: int | None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What a source knows of itself, without a round trip.

    `reached`: the log answered lately. `exhausted`: nothing more will ever come (a file at its end).
    `detail`: one line for people, e.g. why it is not reached. `lost`: messages that were gone before they could be
    read, as far as they can be counted. `gaps`: how often that happened, by kind (see `GAPS`).
    """

    reached: bool
    exhausted: bool = False
    partitions: tuple[PartitionStatus, ...] = ()
    detail: str = ""
    rebuilds: int = 0
    lost: int = 0
    gaps: Mapping[str, int] = field(default_factory=dict)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition."""
        return {(part.topic, part.partition): part.position for part in self.partitions}

    @property
    def lag(self) -> int | None:
        """Events waiting in all partitions; None while any of them is unknown."""
        lags = [partition.lag for partition in self.partitions]
        return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)


GAPS = ("deleted", "cut", "replaced")
"""What may have become of messages we wanted next: deleted before we came (retention), the log was cut behind us (it
ends before our position), or another log took its name (a topic deleted and made anew, a file that was rotated)."""


class Source(Protocol):
    """A log of events. `poll` returns within about `timeout` seconds, with `[]` when nothing has come.

    Trouble that may pass is the source's own business: it logs, backs off, rebuilds and shows it in `status`.
    Only trouble that will not pass raises `SourceError`.
    """

    def poll(self, timeout: float) -> list[Records]: ...

    def status(self) -> SourceStatus: ...

    def bookmarks(self) -> SourceOffsets:
        """Where to go on, in another life, after all that `poll` has returned so far; part of a snapshot."""

    def pause(self, places: Collection[TopicPartition]) -> None:
        """Hand out nothing of these partitions, and of all others again, until the next call.

        For who reads several partitions in step: what is ahead waits in the log, not in memory. Their lag stays
        visible. A source that reads one partition after another may ignore it.
        """

    def commit(self, bookmarks: SourceOffsets) -> None:
        """Tell the log what a snapshot holds, for tools that show lag; never read back. Neither waits nor raises."""

    def close(self) -> None: ...
