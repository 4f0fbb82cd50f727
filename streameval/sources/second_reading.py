"""A log read a second time, behind somebody who reads it live, and never beyond where that one is."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping

from streameval.errors import SourceError
from streameval.sources import Records, Source

MOST_AHEAD = 20_000
"""Messages beyond the live reader that are kept for later; with more, nothing is read until it has come nearer."""


GONE = "what it held before cannot be read again"


class SecondReading:
    """Hands out what lies before the live positions (next offset by partition), each message once, from `first` on.

    The live positions may move on between two calls. What was read from beyond them waits, within bounds.
    `knows_its_end`: where the source says that nothing waits, nothing does, as in files; a broker's word may be old.
    """

    def __init__(self, source: Source, first: int = 0, *, knows_its_end: bool = False) -> None:
        self._source, self._first, self._knows_its_end = source, first, knows_its_end
        self._ahead: dict[int, deque[Records]] = {}
        self._live: dict[int, int] = {}

    def poll(self, live: Mapping[int, int], timeout: float) -> list[Records]:
        """The next messages before `live`, waiting for some up to `timeout` seconds.

        SourceError for trouble that will not pass, and when the live positions are not of the log that is there now.
        """
        if any(live.get(partition, 0) < position for partition, position in self._live.items()):
            raise SourceError("the log was made anew while it was read", hint=GONE)
        self._live = dict(live)
        records = self._release(live)
        if not records and sum(map(len, self._waiting())) < MOST_AHEAD:
            for part in self._source.poll(timeout):
                _, wanted = _cut(part, self._first)
                if wanted:
                    self._ahead.setdefault(part.partition, deque()).append(wanted)
            records = self._release(live)
        if not records and self._knows_its_end:
            self._require(live)
        return records

    def caught_up(self, live: Mapping[int, int]) -> bool:
        """Whether all that lies before `live` was handed out; also where messages are missing, as in compacted logs."""
        read = {part.partition: part.position for part in self._source.status().partitions}
        for partition, parts in self._ahead.items():
            if parts:
                read[partition] = parts[0].offsets[0]
        return all(read.get(partition, -1) >= position for partition, position in live.items())

    def behind(self, live: Mapping[int, int]) -> int:
        """About how many messages lie between here and `live`."""
        read = {part.partition: part.position for part in self._source.status().partitions}
        return sum(max(0, position - read.get(partition, 0)) for partition, position in live.items())

    def close(self) -> None:
        """Close the source."""
        self._source.close()

    def _require(self, live: Mapping[int, int]) -> None:
        for part in self._source.status().partitions:
            if part.lag == 0 and part.position < live.get(part.partition, 0):
                raise SourceError(
                    f"{part.topic} ends before what was read of it: it was rotated or replaced", hint=GONE
                )

    def _waiting(self) -> list[Records]:
        return [part for parts in self._ahead.values() for part in parts]

    def _release(self, live: Mapping[int, int]) -> list[Records]:
        released = []
        for partition, parts in self._ahead.items():
            limit = live.get(partition, 0)
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
