"""Several sources as one: decisions and rewards in topics of their own, each with a client of its own."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence

from streameval.errors import SourceError
from streameval.ingest.base import Offsets, Records, Source, SourceOffsets, SourceStatus, TopicPartition

SLICE = 0.05
"""Seconds to wait for one of them while the others are not looked at."""


class MultiSource:
    """Hands out what comes from any of `sources`; an error of one is an error of all.

    Each looks after itself: one that is away does not keep the others from being read. Whoever needs them in step
    pauses those that are ahead.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._failure: SourceError | None = None

    def poll(self, timeout: float) -> list[Records]:
        """What has come to each of them, waiting in turn for one after another."""
        if self._failure is not None:
            raise self._failure
        deadline = time.monotonic() + timeout
        records = self._ask(0.0)
        while not records and (left := deadline - time.monotonic()) > 0:
            records = self._ask(min(SLICE, left))
        return records

    def _ask(self, timeout: float) -> list[Records]:
        """What each of them has now; what came before an error is handed out first: it would not be read again."""
        records: list[Records] = []
        try:
            for source in self._sources:
                records += source.poll(timeout)
        except SourceError as error:
            if not records:
                raise
            self._failure = error
        return records

    def status(self) -> SourceStatus:
        """Reached when all are; the detail is of those that are not, or of all."""
        states = [source.status() for source in self._sources]
        unreached = [status for status in states if not status.reached]
        gaps: Counter[str] = Counter()
        for status in states:
            gaps.update(status.gaps)
        return SourceStatus(
            reached=not unreached,
            exhausted=all(status.exhausted for status in states),
            partitions=tuple(partition for status in states for partition in status.partitions),
            detail="; ".join(dict.fromkeys(status.detail for status in unreached or states)),
            rebuilds=sum(status.rebuilds for status in states),
            lost=sum(status.lost for status in states),
            gaps=dict(gaps),
        )

    def bookmarks(self) -> SourceOffsets:
        """Those of all."""
        marks: dict[str, Offsets] = {}
        for source in self._sources:
            marks |= source.bookmarks()
        return marks

    def pause(self, places: Collection[TopicPartition]) -> None:
        """Each of them knows its own."""
        for source in self._sources:
            source.pause(places)

    def commit(self, bookmarks: SourceOffsets) -> None:
        """Each of them knows its own."""
        for source in self._sources:
            source.commit(bookmarks)

    def close(self) -> None:
        """Close all."""
        for source in self._sources:
            source.close()
