"""The verb `check`: reads the first events of a source and reports what they lack."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from streameval.cli.terminal import say
from streameval.common.text import counted
from streameval.config.model import Config
from streameval.errors import SourceError
from streameval.events import EventBatch, JsonDecoder
from streameval.ingest.base import Source, SourceStatus

PATIENCE = 15.0
"""Seconds in which `check` must reach a source."""
GRACE = 3.0
"""Seconds between the first answer of a source, good or bad, and giving up."""
POLL = 0.2
ENOUGH = 100
"""Events that show whether the rest can be read."""
UNREACHED = "check that it runs, and the address, the topic and the security options"


@dataclass(frozen=True)
class Probe:
    """The last status of a source, the number of events it holds (None: unknown), and the first events."""

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

    Waits `timeout` seconds for the source to be reached or to report an error, then `GRACE` seconds for events or for
    recovery.
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


def try_source(config: Config) -> None:
    """Print what the source holds; SourceError if it is not reached or if none of its first events can be used."""
    found = probe(config.required_source().for_check().open(), config.event_format(), timeout=PATIENCE)
    if not found.status.reached:
        raise SourceError(f"the source cannot be reached: {found.status.detail}", hint=UNREACHED)
    held = "an unknown number of events" if found.held is None else counted(found.held, "event")
    print(f"reached: {held} in {counted(len(found.status.partitions), 'partition')}")
    if not found.tried:
        return
    print(f"of the first {counted(found.tried, 'event')} {len(found.events)} can be used")
    if not len(found.events):
        first = found.events.rejected[0]
        raise SourceError(
            f"none of the first events can be used, e.g. {first.reason}: {first.detail}",
            hint="`streameval schema` prints what an event looks like",
        )
    for policy in found.absent:
        say(f"warning: none of these events has a probability of the policy '{policy}'\nhint: check its name")
    for missing in config.evaluator().missing_fields(found.events):
        if missing.of_all:
            raise SourceError(str(missing), hint=missing.hint)
        say(f"warning: {missing}\nhint: {missing.hint}")
