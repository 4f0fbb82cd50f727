"""Defects that the daemon once had, to be put back: schedules must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streameval.events import EventBatch, batch
from streameval.ingest import pipeline
from streameval.ingest.kafka.source import KafkaSource
from streameval.ingest.stages import ReaderClock
from streameval.ingest.stages.event_order import EventOrder
from streameval.ingest.stages.watermark import PartitionClock
from streameval.ope.evaluator import cohorts, evaluator
from streameval.service import snapshots


def forget_epochs(patch: pytest.MonkeyPatch) -> None:
    """The epoch of a partition is lost with a fetch without messages, and a cut log is then skipped."""

    def take_over(self: KafkaSource, client: Any) -> None:
        known = client.epochs()
        for number, progress in self._partitions.items():
            progress.epoch = known.get(number)

    patch.setattr(KafkaSource, "_see_epochs", take_over)


def keep_clocks_ahead(patch: pytest.MonkeyPatch) -> None:
    """Ten events dated ahead make all later ones of their partition too late."""

    def advance(self: PartitionClock, timestamp: Any, max_lateness: float) -> None:
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([self.last, timestamp]), len(self.last) + 1)
        self.last, self.asked_at, self.follows = windows[-1, 1:].copy(), None, False
        self.time = max(self.time, float(windows.min(axis=1).max()))

    patch.setattr(PartitionClock, "advance", advance)
    patch.setattr(ReaderClock, "redated", lambda self, events, now: events)
    patch.setattr(EventOrder, "redate", lambda self, latest, now: 0)
    reject_late_events(patch)


def reject_late_events(patch: pytest.MonkeyPatch) -> None:
    """An event is too late where another partition has passed it."""
    take = EventOrder.take

    def take_in_time(self: EventOrder, events: EventBatch) -> EventBatch:
        kept = events.reject(events.timestamp < self.watermark, "too_late", lambda _: "timestamp: too late")
        return take(self, kept)

    patch.setattr(EventOrder, "take", take_in_time)


def compare_no_states(patch: pytest.MonkeyPatch) -> None:
    """A state that does not fit ends every start."""
    patch.setattr(snapshots, "WRONG_CONTENT", ())
    for module in (batch, cohorts, evaluator, pipeline, snapshots):
        patch.setattr(module, "require_fit", lambda *arguments: None)


def read_with_a_clock_behind(patch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is behind rejects all events as too early, and moves on."""

    def reject_ahead(self: ReaderClock, events: Any, now: float) -> Any:
        if not isinstance(events, EventBatch):
            return events
        return events.reject(events.timestamp > now + 300.0, "too_late", lambda _: "timestamp: too early")

    patch.setattr(ReaderClock, "require", lambda *arguments: None)
    patch.setattr(ReaderClock, "redated", reject_ahead)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        forget_epochs,
        keep_clocks_ahead,
        reject_late_events,
        compare_no_states,
        read_with_a_clock_behind,
    )
}
