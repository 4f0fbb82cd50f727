"""A log read a second time, behind somebody who reads it live, and never beyond where that one is."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

from streameval.errors import SourceError
from streameval.ingest.base import Records, Source, TopicPartition

MOST_AHEAD = 20_000
"""Messages beyond the live reader that are kept for later; with more, nothing is read until it has come nearer."""


GONE = "what it held before cannot be read again"


class BackfillReader:
    """Hands out what lies before the live positions (next offset by partition), each message once, from `first` on.

    The live positions may move on between two calls. What was read from beyond them waits, within bounds. `of`: the
    topic whose offset `first` is; None = of all that there are.
    `knows_its_end`: where the source says that nothing waits, nothing does, as in files; a broker's word may be old.
    """

    def __init__(self, source: Source, first: int = 0, *, of: str | None = None, knows_its_end: bool = False) -> None:
        self._source, self._first, self._of, self._knows_its_end = source, first, of, knows_its_end
        self._ahead: dict[TopicPartition, deque[Records]] = {}
        self._live: dict[TopicPartition, int] = {}

    def poll(self, live: Mapping[TopicPartition, int], timeout: float) -> list[Records]:
        """The next messages before `live`, waiting for some up to `timeout` seconds.

        SourceError for trouble that will not pass, and when the live positions are not of the log that is there now.
        """
        if any(live.get(place, 0) < position for place, position in self._live.items()):
            raise SourceError("the log was made anew while it was read", hint=GONE)
        self._live = dict(live)
        records = self._release(live)
        if not records and sum(map(len, self._waiting())) < MOST_AHEAD:
            for part in self._source.poll(timeout):
                _, wanted = _cut(part, self._first if self._of in (None, part.topic) else 0)
                if wanted:
                    self._ahead.setdefault((part.topic, part.partition), deque()).append(wanted)
            records = self._release(live)
        if not records and self._knows_its_end:
            self._require(live)
        return records

    def caught_up(self, live: Mapping[TopicPartition, int]) -> bool:
        """Whether all that lies before `live` was handed out; also where messages are missing, as in compacted logs."""
        read = self._source.status().positions
        for place, parts in self._ahead.items():
            if parts:
                read[place] = parts[0].offsets[0]
        return all(read.get(place, -1) >= position for place, position in live.items())

    def behind(self, live: Mapping[TopicPartition, int]) -> int:
        """About how many messages lie between here and `live`."""
        read = self._source.status().positions
        return sum(max(0, position - read.get(place, 0)) for place, position in live.items())

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _require(self, live: Mapping[TopicPartition, int]) -> None:
        for part in self._source.status().partitions:
            if part.lag == 0 and part.position < live.get((part.topic, part.partition), 0):
                raise SourceError(
                    f"{part.topic} ends before what was read of it: it was rotated or replaced", hint=GONE
                )

    def _waiting(self) -> list[Records]:
        return [part for parts in self._ahead.values() for part in parts]

    def _release(self, live: Mapping[TopicPartition, int]) -> list[Records]:
        released = []
        for place, parts in self._ahead.items():
            limit = live.get(place, 0)
            while parts and parts[0].offsets[0] < limit:
                before, rest = _cut(parts.popleft(), limit)
                released.append(before)
                if rest:
                    parts.appendleft(rest)
        return released


def _cut(records: Records, limit: int) -> tuple[Records, Records]:
    """The records with offsets below `limit`, and the others."""
    place = bisect_left(records.offsets, limit)
    topic, partition, offsets, values = records.topic, records.partition, records.offsets, records.values
    before = Records(topic, partition, offsets[:place], values[:place])
    return before, Records(topic, partition, offsets[place:], values[place:])
