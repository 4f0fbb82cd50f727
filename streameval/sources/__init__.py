"""Where events come from. A source yields `Records`, raw bytes with their place in a log, and never decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Records:
    """Consecutive messages of one partition, in order: `values[i]` lies at `offsets[i]`.

    A `None` value is a Kafka tombstone. Offsets rise but may have gaps (compaction, transactions).
    """

    topic: str
    partition: int
    offsets: Sequence[int]
    values: Sequence[bytes | None]

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """How far one partition has been read: the next offset, and the events still waiting (None = not known yet)."""

    topic: str
    partition: int
    position: int
    lag: int | None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """What a source knows of itself, without a round trip.

    `reached`: the log answered lately. `exhausted`: nothing more will ever come (a file at its end).
    `detail`: one line for people, e.g. why it is not reached. `lost`: messages that were gone before they could be
    read.
    """

    reached: bool
    exhausted: bool = False
    partitions: tuple[PartitionStatus, ...] = ()
    detail: str = ""
    rebuilds: int = 0
    lost: int = 0

    @property
    def lag(self) -> int | None:
        """Events waiting in all partitions; None while any of them is unknown."""
        lags = [partition.lag for partition in self.partitions]
        return None if not lags or None in lags else sum(lag for lag in lags if lag is not None)


class Source(Protocol):
    """A log of events. `poll` returns within about `timeout` seconds, with `[]` when nothing has come.

    Trouble that may pass is the source's own business: it logs, backs off, rebuilds and shows it in `status`.
    Only trouble that will not pass raises `SourceError`.
    """

    def poll(self, timeout: float) -> list[Records]: ...

    def status(self) -> SourceStatus: ...

    def close(self) -> None: ...
