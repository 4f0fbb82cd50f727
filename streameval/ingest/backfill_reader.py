"""A second reader of a log, for a backfill: it follows the live reader and never passes it."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping
from dataclasses import replace

from streameval.errors import SourceError
from streameval.ingest.base import Records, Source, TopicPartition

MOST_AHEAD = 20_000
"""Messages beyond the live positions that are kept; with more, nothing is polled until these have advanced."""

NOT_REPEATABLE = "what it held before cannot be read again"


class BackfillReader:
    """Returns each message before the live positions (next offset by partition) once, from the offset `first` on.

    The live positions may advance between two calls. `first_of`: the topic to which `first` applies; None = all.
    `ends_are_certain`: see `SourceSettings`.
    """

    def __init__(
        self, source: Source, first: int = 0, *, first_of: str | None = None, ends_are_certain: bool = False
    ) -> None:
        self._source, self._first, self._first_of = source, first, first_of
        self._ends_are_certain = ends_are_certain
        self._ahead: dict[TopicPartition, deque[Records]] = {}
        self._live: dict[TopicPartition, int] = {}

    def poll(self, live: Mapping[TopicPartition, int], timeout: float) -> list[Records]:
        """The next messages before `live`, waiting up to `timeout` seconds for some.

        Raises SourceError for a failure that does not pass, and when the live positions are not those of this log.
        """
        if any(live.get(partition, 0) < position for partition, position in self._live.items()):
            raise SourceError("the log was deleted and created again while it was read", hint=NOT_REPEATABLE)
        self._live = dict(live)
        records = self._release(live)
        if not records and sum(len(part) for parts in self._ahead.values() for part in parts) < MOST_AHEAD:
            for part in self._source.poll(timeout):
                _, wanted = _split(part, self._first if self._first_of in (None, part.topic) else 0)
                if wanted:
                    self._ahead.setdefault((part.topic, part.partition), deque()).append(wanted)
            records = self._release(live)
        if not records and self._ends_are_certain:
            for status in self._source.status().partitions:
                if status.lag == 0 and status.position < live.get((status.topic, status.partition), 0):
                    reason = f"{status.topic} ends before the live position: it was rotated or replaced"
                    raise SourceError(reason, hint=NOT_REPEATABLE)
        return records

    def caught_up(self, live: Mapping[TopicPartition, int]) -> bool:
        """Whether everything before `live` was returned; offsets may be missing, as in compacted logs."""
        read = self._source.status().positions
        for partition, parts in self._ahead.items():
            if parts:
                read[partition] = parts[0].offsets[0]
        return all(read.get(partition, -1) >= position for partition, position in live.items())

    def behind(self, live: Mapping[TopicPartition, int]) -> int:
        """About how many messages before `live` are still to be read."""
        read = self._source.status().positions
        return sum(max(0, position - read.get(partition, 0)) for partition, position in live.items())

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _release(self, live: Mapping[TopicPartition, int]) -> list[Records]:
        released = []
        for partition, parts in self._ahead.items():
            limit = live.get(partition, 0)
            while parts and parts[0].offsets[0] < limit:
                before, rest = _split(parts.popleft(), limit)
                released.append(before)
                if rest:
                    parts.appendleft(rest)
        return released


def _split(records: Records, limit: int) -> tuple[Records, Records]:
    """The records with offsets below `limit`, and the others."""
    row = bisect_left(records.offsets, limit)
    offsets, values = records.offsets, records.values
    before = replace(records, offsets=offsets[:row], values=values[:row], timestamps=None)
    return before, replace(records, offsets=offsets[row:], values=values[row:], timestamps=None)
