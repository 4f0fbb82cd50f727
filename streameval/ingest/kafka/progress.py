"""How far each partition of a topic has been read, and whether reading stands still although events wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streameval.ingest.base import PartitionStatus, Records


@dataclass
class ReadProgress:
    """The next offset of each partition, what is known of the end of its log, and when it last moved (seconds).

    `ends` tells what waits, `readable` what could be had: they differ while a transaction is open. `paused`: partitions
    that nobody wants to have now. `ended`: for partitions that were found at their end when somebody asked last, when
    that was (epoch seconds). What waits in an open transaction is yet to come: there the end has not been reached.

    `epochs`: those of a `Bookmark`.

    >>> progress = ReadProgress()
    >>> progress.place({0: 10}, now=0.0)
    >>> progress.see_readable({0: 12})
    >>> progress.lag(0), progress.stalled(now=31.0, after=30.0)
    (2, [0])
    """

    positions: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    readable: dict[int, int] = field(default_factory=dict)
    moved_at: dict[int, float] = field(default_factory=dict)
    paused: frozenset[int] = frozenset()
    ended: dict[int, float] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)

    def place(self, positions: Mapping[int, int], now: float) -> None:
        """Put partitions at these offsets; what was known of the end of their logs is forgotten."""
        for partition, offset in positions.items():
            self.positions[partition] = offset
            self.moved_at[partition] = now
            self.ends.pop(partition, None)
            self.readable.pop(partition, None)
            self.ended.pop(partition, None)
            self.epochs.pop(partition, None)

    def take(self, records: Iterable[Records], now: float) -> None:
        """These records are handed out: they will not be read again."""
        for part in records:
            if part.offsets:
                self.move(part.partition, part.offsets[-1] + 1, now)

    def move(self, partition: int, offset: int, now: float) -> None:
        """The partition has been read up to `offset`."""
        if offset > self.positions[partition]:
            self.positions[partition] = offset
            self.moved_at[partition] = now
            self.ended.pop(partition, None)

    def see_ends(self, ends: Mapping[int, int | None]) -> None:
        """The offsets that the next messages will get; None tells nothing. A log that was cut has an earlier one."""
        self.ends.update({partition: end for partition, end in ends.items() if end is not None})

    def see_readable(self, ends: Mapping[int, int], asked_at: float = 0.0) -> None:
        """The offsets up to which messages may be read now, asked for at this time (epoch seconds)."""
        self.readable.update(ends)
        self.ended = {partition: asked_at for partition in ends if self.lag(partition) == 0}

    def lag(self, partition: int) -> int | None:
        """Events that wait in the partition; None while the end of its log is unknown."""
        ends = [known[partition] for known in (self.ends, self.readable) if partition in known]
        return max(0, max(ends) - self.positions[partition]) if ends else None

    @property
    def known_lag(self) -> int:
        """Events that are known to wait, in all partitions."""
        return sum(self.lag(partition) or 0 for partition in self.positions)

    def stalled(self, now: float, after: float) -> list[int]:
        """Partitions where events could be read and were wanted, and none has come for `after` seconds."""
        for partition, position in self.positions.items():
            if self.readable.get(partition, 0) <= position or partition in self.paused:
                self.moved_at[partition] = now
        return [partition for partition, moved in self.moved_at.items() if now - moved > after]

    def status(self, topic: str) -> tuple[PartitionStatus, ...]:
        """The partitions in order, for people and metrics."""
        return tuple(
            PartitionStatus(topic, partition, position, self.lag(partition), self.ended.get(partition))
            for partition, position in sorted(self.positions.items())
        )
