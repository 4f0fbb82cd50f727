"""Several sources as one: a topic of decisions and a topic of rewards, each read by its own client."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence

from streameval.errors import SourceError
from streameval.ingest.base import Offsets, Records, Source, SourceOffsets, SourceStatus, TopicPartition

SLICE = 0.05
"""Seconds to wait for one source while the others are not polled."""


class MultiSource:
    """Returns the messages of all `sources`; an error of one is an error of all.

    A source that is not reached does not keep the others from being read: pause those that are ahead.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._failure: SourceError | None = None

    def poll(self, timeout: float) -> list[Records]:
        """The messages that have come to any source, waiting for each in turn."""
        if self._failure is not None:
            raise self._failure
        deadline = time.monotonic() + timeout
        records = self._poll_each(0.0)
        while not records and (left := deadline - time.monotonic()) > 0:
            records = self._poll_each(min(SLICE, left))
        return records

    def _poll_each(self, timeout: float) -> list[Records]:
        """Messages polled before an error come first: they would not be read again."""
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
        """Reached when all sources are; the detail is of those that are not, or of all."""
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

    def offsets(self) -> SourceOffsets:
        offsets: dict[str, Offsets] = {}
        for source in self._sources:
            offsets |= source.offsets()
        return offsets

    def pause(self, partitions: Collection[TopicPartition]) -> None:
        for source in self._sources:
            source.pause(partitions)

    def commit(self, offsets: SourceOffsets) -> None:
        for source in self._sources:
            source.commit(offsets)

    def close(self) -> None:
        for source in self._sources:
            source.close()
