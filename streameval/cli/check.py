"""The verb `check`: reads the first events of a source and reports what they lack."""

from __future__ import annotations

import time

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


def probe(source: Source, events: JsonDecoder) -> tuple[SourceStatus, int | None, EventBatch]:
    """The last status of a source, the number of events it holds (None: unknown), and the first events.

    Waits `PATIENCE` for the source to be reached or to report an error, then `GRACE` for events or for recovery, and
    closes the source.
    """
    values: list[bytes | None] = []
    untried, patience, answered = source.status().detail, time.monotonic() + PATIENCE, False
    try:
        while time.monotonic() < patience:
            values += [value for part in source.poll(POLL) for value in part.values]
            status = source.status()
            if status.exhausted or (status.lag is not None and (values or not status.lag)):
                break
            if not answered and (status.reached or status.detail != untried):
                patience, answered = time.monotonic() + GRACE, True
        status = source.status()
        held = None if status.lag is None else status.lag + len(values)
        return status, held, events.decode_batch(values[:ENOUGH])
    finally:
        source.close()


def try_source(config: Config) -> None:
    """Print what the source holds; SourceError if it is not reached or if none of its first events can be used."""
    status, held, events = probe(config.required_source().for_check().open(), config.event_format())
    if not status.reached:
        raise SourceError(f"the source cannot be reached: {status.detail}", hint=UNREACHED)
    number = "an unknown number of events" if held is None else counted(held, "event")
    print(f"reached: {number} in {counted(len(status.partitions), 'partition')}")
    tried = len(events) + len(events.rejected)
    if not tried:
        return
    print(f"of the first {counted(tried, 'event')} {len(events)} can be used")
    if not len(events):
        first = events.rejected[0]
        raise SourceError(
            f"none of the first events can be used, e.g. {first.reason}: {first.detail}",
            hint="`streameval schema` prints what an event looks like",
        )
    for policy, known in zip(events.policies, np.isfinite(events.probabilities).T, strict=True):
        if not known.any():
            say(f"warning: none of these events has a probability of the policy '{policy}'\nhint: check its name")
    for missing in config.evaluator().missing_fields(events):
        if missing.of_all:
            raise SourceError(str(missing), hint=missing.hint)
        say(f"warning: {missing}\nhint: {missing.hint}")
