"""Put back defects that the daemon once had, or might have. Schedules must find each of them.

They are put back through public names, so that the daemon's inside may change.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from faults.world import DAY
from streameval.events import EventBatch, JsonDecoder
from streameval.events.origin import Origin
from streameval.ingest.background import ConnectionGroup
from streameval.ingest.base import DataLoss
from streameval.ingest.kafka.client import ClientError
from streameval.ingest.kafka.connection import KafkaTopic
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.stages.event_order import EventOrder
from streameval.ingest.stages.watermark import PartitionClock
from streameval.service import snapshots
from support.fake_kafka import FakeClient, FakeCluster


def forget_epochs(patch: pytest.MonkeyPatch) -> None:
    """Lose the epoch of a partition with a fetch without messages. A cut log is then skipped."""
    patch.setattr(FakeClient, "epochs", lambda self: {**self.read, **dict.fromkeys(self.empty)})


def keep_clocks_ahead(patch: pytest.MonkeyPatch) -> None:
    """Let ten events dated up to a year ahead put the clock of their partition forward for good."""

    def advance(self: PartitionClock, timestamp: Any, max_lateness: float) -> None:
        windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([self.last, timestamp]), len(self.last) + 1)
        self.last, self.asked_at, self.follows = windows[-1, 1:].copy(), None, False
        self.time = max(self.time, float(windows.min(axis=1).max()))

    patch.setattr(PartitionClock, "advance", advance)
    patch.setattr(KafkaSettings, "clock_tolerance", 366 * DAY)


def reject_late_events(patch: pytest.MonkeyPatch) -> None:
    """Reject an event as too late if another partition has passed it."""
    take = EventOrder.take

    def take_in_time(self: EventOrder, events: EventBatch, *others: Any) -> EventBatch:
        timely = events.reject(events.timestamp < self.watermark, "too_late", lambda _: "timestamp: too late")
        return take(self, timely, *others)

    patch.setattr(EventOrder, "take", take_in_time)


def compare_no_states(patch: pytest.MonkeyPatch) -> None:
    """Let a state that does not fit end every start."""
    patch.setattr(snapshots, "WRONG_CONTENT", ())
    for name, module in tuple(sys.modules.items()):
        if name.startswith("streameval.") and hasattr(module, "require_fit"):
            patch.setattr(module, "require_fit", lambda *arguments: None)


def read_with_a_clock_behind(patch: pytest.MonkeyPatch) -> None:
    """Let a machine with a clock that is behind reject all events as too early, and move on."""
    decode = JsonDecoder.decode_batch

    def decode_until_now(self: JsonDecoder, values: Iterable[bytes | None], origin: Origin | None = None) -> EventBatch:
        events = decode(self, values, origin)
        return events.reject(events.timestamp > time.time() + 300.0, "too_late", lambda _: "timestamp: too early")

    patch.setattr(JsonDecoder, "decode_batch", decode_until_now)


def count_nothing_lost(patch: pytest.MonkeyPatch) -> None:
    """Report gaps without the number of messages in them."""
    record = DataLoss.record
    patch.setattr(DataLoss, "record", lambda self, kind, lost, **numbers: record(self, kind, 0, **numbers))


def count_lost_twice(patch: pytest.MonkeyPatch) -> None:
    """Count lost messages twice."""
    record = DataLoss.record
    patch.setattr(DataLoss, "record", lambda self, kind, lost, **numbers: record(self, kind, 2 * lost, **numbers))


def break_clients_for_good(patch: pytest.MonkeyPatch) -> None:
    """Let no further client of a process connect after the first one, as if its library had lost a class."""
    connect, groups = FakeCluster.connect, list[ConnectionGroup]()

    def connect_once(self: FakeCluster, settings: KafkaTopic, timeout: float, connections: ConnectionGroup) -> Any:
        if any(group is connections for group in groups):  # each source of a process has its own
            raise ClientError("ReferenceError('weakly-referenced object no longer exists')")
        groups.append(connections)
        return connect(self, settings, timeout, connections)

    patch.setattr(FakeCluster, "connect", connect_once)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    defect.__name__: defect
    for defect in (
        forget_epochs,
        keep_clocks_ahead,
        reject_late_events,
        compare_no_states,
        read_with_a_clock_behind,
        count_nothing_lost,
        count_lost_twice,
        break_clients_for_good,
    )
}

FAULTS_AROUND = {"forget_epochs": ["pause_producers", "cut_log", "cut_log_and_kill", "kill", "stop"]}
"""Faults that reveal a defect, if schedules with all faults rarely have them in a row."""
