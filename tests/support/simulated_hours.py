"""Hours of a simulated recommender, evaluated within seconds, as a daemon would have shown them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import numpy as np

from streameval import Evaluator
from streameval.events import JsonDecoder
from streameval.ingest.base import PartitionStatus, SourceStatus
from streameval.ingest.simulated import SimulatedRecommender, SimulatedSettings
from streameval.service.status import NO_DELAYS, NO_SNAPSHOTS, DaemonStatus, History, SnapshotStatus

START = datetime(2026, 1, 31, 9, tzinfo=UTC)
EVENTS_A_SECOND = 8.0
CANDIDATES = ["for-rock-fans", "for-jazz-fans", "for-metal-fans"]
BATCH = 1000


def hours(events: int, span: int = 60_000) -> Iterator[DaemonStatus]:
    """The daemon's status after each thousand of the events."""
    settings = SimulatedSettings(
        events=events, rate=EVENTS_A_SECOND, candidates=CANDIDATES, span=span, exploration=0.5, start_time=START
    )
    lines = SimulatedRecommender(settings).lines()
    decoder, evaluator = JsonDecoder(CANDIDATES), Evaluator(CANDIDATES)
    history, delays, written = History(), NO_DELAYS, NO_SNAPSHOTS
    for done in range(BATCH, events + 1, BATCH):
        batch = decoder.decode_batch([next(lines) for _ in range(BATCH)])
        evaluator.update(batch)
        report = evaluator.report()
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
            margin=evaluator.plan.margin,
        )
