"""The verb `check`: reads the first events of a source and reports what they lack."""

from __future__ import annotations

import math
import time

import numpy as np

from streameval.cli.terminal import say
from streameval.common.text import counted, in_words
from streameval.config.model import Config
from streameval.errors import SourceError
from streameval.events import EventBatch, JsonDecoder
from streameval.ingest.base import Source, SourceStatus
from streameval.ingest.kafka.connection import CONFLUENT
from streameval.ingest.kafka.settings import KafkaSettings

PATIENCE = 15.0
"""Seconds in which `check` must reach a source."""
GRACE = 3.0
"""Seconds between the first answer of a source, good or bad, and giving up."""
POLL = 0.2
ENOUGH = 100
"""Events that show whether the rest can be read."""
MANY = 1_000_000
"""Events for which another client saves noticeable time."""
UNREACHED = "check that it runs, and the address, the topic and the security options"


def probe(source: Source, events: JsonDecoder) -> tuple[SourceStatus, int | None, EventBatch, float]:
    """The last status of a source, the number of events it holds (None: unknown), the first events, and their delay.

    The delay is the longest time in seconds from the timestamp of an event until it was written, 0 where the log does
    not record when.

    Waits `PATIENCE` for the source to be reached or to report an error, then `GRACE` for events or for recovery, and
    closes the source.
    """
    values: list[bytes | None] = []
    written: list[float] = []
    untried, patience, answered = source.status().detail, time.monotonic() + PATIENCE, False
    try:
        while time.monotonic() < patience:
            for part in source.poll(POLL):
                values += part.values
                times = [math.nan] * len(part) if part.timestamps is None else part.timestamps
                written += [time / 1000.0 for time in times]
            status = source.status()
            if status.exhausted or (status.lag is not None and (values or not status.lag)):
                break
            if not answered and (status.reached or status.detail != untried):
                patience, answered = time.monotonic() + GRACE, True
        status = source.status()
        held = None if status.lag is None else status.lag + len(values)
        first = events.decode_batch(values[:ENOUGH])
        delays = np.array(written[: len(first)]) - first.timestamp if not first.rejected else np.empty(0)
        return status, held, first, float(np.nanmax(delays, initial=0.0))
    finally:
        source.close()


def try_source(config: Config) -> None:
    """Print what the source holds; SourceError if it is not reached or if none of its first events can be used."""
    source = config.required_source()
    status, held, events, delay = probe(source.for_check().open(), config.event_format())
    if not status.reached:
        raise SourceError(f"the source cannot be reached: {status.detail}", hint=UNREACHED)
    number = "an unknown number of events" if held is None else counted(held, "event")
    print(f"reached: {number} in {counted(len(status.partitions), 'partition')}")
    if isinstance(source, KafkaSettings) and source.client != "confluent" and (held or 0) >= MANY:
        say(f"hint: source.client: confluent reads so many events several times faster ({CONFLUENT})")
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
    order = source.event_order(len(status.partitions))
    if order is not None and delay > order.patience:
        say(
            f"warning: events are written up to {in_words(delay)} after their timestamp; some count out of order\n"
            f"hint: source.idle_timeout: {math.ceil(delay)}s keeps the order"
        )
    for policy, known in zip(events.policies, np.isfinite(events.probabilities).T, strict=True):
        if not known.any():
            say(f"warning: none of these events has a probability of the policy '{policy}'\nhint: check its name")
    for missing in config.evaluator().missing_fields(events):
        if missing.of_all:
            raise SourceError(str(missing), hint=missing.hint)
        say(f"warning: {missing}\nhint: {missing.hint}")
