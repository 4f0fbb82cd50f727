"""Evaluate hours of a simulated recommender within seconds, as a daemon would have shown them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice

import numpy as np

from streameval import Evaluator
from streameval.config.model import Config
from streameval.events import JsonDecoder
from streameval.ingest.base import PartitionStatus, SourceStatus
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings
from streameval.service.status import NO_DELAYS, NO_SNAPSHOTS, DaemonStatus, History, SnapshotStatus
from support.ramps import DECIDED, messages

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
EVENTS_A_SECOND = 8.0
CANDIDATES = ["for-rock-fans", "for-jazz-fans", "for-metal-fans"]
BATCH = 1000


def hours(events: int, span: int = 60_000) -> Iterator[DaemonStatus]:
    """Yield the daemon's status after each thousand of the events."""
    settings = SimulatedSettings(
        events=events, rate=EVENTS_A_SECOND, candidates=CANDIDATES, span=span, exploration=0.5, start_time=START
    )
    lines = SimulatedRecommender(settings).lines()
    yield from _statuses(lines, JsonDecoder(CANDIDATES), Evaluator(CANDIDATES, promotion="paired"))


def hours_of_a_ramp(events: int) -> Iterator[DaemonStatus]:
    """Yield the daemon's status after each thousand events of a ramp with several rewards and segments."""
    config = Config.model_validate(DECIDED)
    lines = messages(1, events, started=START.timestamp(), rate=EVENTS_A_SECOND)
    yield from _statuses(lines, config.event_format(), config.evaluator())


def _statuses(lines: Iterator[bytes], decoder: JsonDecoder, evaluator: Evaluator) -> Iterator[DaemonStatus]:
    history, delays, written = History(), NO_DELAYS, NO_SNAPSHOTS
    done = 0
    while values := [*islice(lines, BATCH)]:
        batch = decoder.decode_batch(values)
        evaluator.update(batch)
        evaluator.fold_pending()
        report, done = evaluator.report(), done + len(values)
        now = float(batch.timestamp[-1]) + 0.4
        history, delays = history.after(now, report), delays.add(now - batch.timestamp[-50:])
        written = written.add(np.array([0.02]))
        yield DaemonStatus(
            source=SourceStatus(reached=True, partitions=(PartitionStatus("interactions", 0, done, 3),)),
            at=now,
            report=report,
            ready=True,
            detail="",
            accepted=done,
            event_delay=delays,
            snapshots=SnapshotStatus(now - 11.0, written),
            history=history,
            margin=evaluator.config.margin,
        )
