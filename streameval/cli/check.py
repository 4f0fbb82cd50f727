"""Trying a source before anything depends on it: is it reached, what does it hold, can its events be read?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streameval.events import EventBatch, JsonDecoder
from streameval.ingest.base import Source, SourceStatus

ENOUGH = 100
"""Events that tell whether the rest can be read."""
GRACE = 3.0
"""Seconds between the first answer of a source, good or bad, and the end of our patience."""
POLL = 0.2


@dataclass(frozen=True)
class Probe:
    """What a source showed: its status at the end, how many events it holds (None: not known), and the first ones."""

    status: SourceStatus
    held: int | None
    events: EventBatch

    @property
    def tried(self) -> int:
        """The number of events tried."""
        return len(self.events) + len(self.events.rejected)

    @property
    def absent(self) -> list[str]:
        """The policies that none of the first events names."""
        named = np.count_nonzero(~np.isnan(self.events.probabilities), axis=0).tolist()
        return [policy for policy, count in zip(self.events.policies, named, strict=True) if not count]


def probe(source: Source, events: JsonDecoder, timeout: float, clock: Callable[[], float] = time.monotonic) -> Probe:
    """Read the first events and close the source.

    Gives it `timeout` seconds to be reached or to tell of trouble, and then a few more to deliver or to get over it.
    """
    values: list[bytes | None] = []
    untried, patience, answered = source.status().detail, clock() + timeout, False
    try:
        while clock() < patience:
            values += [value for part in source.poll(POLL) for value in part.values]
            status = source.status()
            if status.exhausted or (status.lag is not None and (values or not status.lag)):
                break
            if not answered and (status.reached or status.detail != untried):
                patience, answered = clock() + GRACE, True
        status = source.status()
        held = None if status.lag is None else status.lag + len(values)
        return Probe(status, held, events.decode_batch(values[:ENOUGH]))
    finally:
        source.close()
