"""Run a process that sees the clock, the brokers and the disk of a schedule."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import structlog

from faults.world import Clock
from streameval.config.model import Config
from streameval.ingest import background
from streameval.ingest.base import Records, Source, SourceOffsets
from streameval.ingest.kafka import source as kafka_source
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ingest.kafka.source import KafkaSource, MultiSource
from streameval.service import snapshots, startup
from streameval.service.daemon import Daemon
from streameval.service.reload import Change, Reload
from streameval.service.snapshots import SnapshotStore
from support.disk import observed_calls

if TYPE_CHECKING:
    from faults.simulator import Schedule


PUBLISH_INTERVAL = 2.5
"""Seconds between two Reports while messages arrive."""
SLICE_SECONDS = 0.25
"""Seconds of waiting for one of two topics."""


class ObservedSource:
    """Turn each poll of a source into a turn of the schedule."""

    def __init__(self, schedule: Schedule, source: Source) -> None:
        self._schedule, self._source = schedule, source
        self.status, self.offsets, self.pause = source.status, source.offsets, source.pause
        self.commit, self.close = source.commit, source.close

    def poll(self, timeout: float) -> list[Records]:
        self._schedule.turn()
        records = self._source.poll(timeout)
        self._schedule.see(records, self._source.status())
        return records


class VirtualEvent:
    """Wait for an event in virtual time."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._is_set = clock, False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float) -> bool:
        self._clock.sleep(timeout)
        return self._is_set


class RecordedStore(SnapshotStore):
    """Register the store with the schedule. The lock of a process that was killed goes with the process."""

    def __init__(self, schedule: Schedule, directory: Path, *arguments: Any) -> None:
        super().__init__(directory, *arguments)
        schedule.stores = [self]


class RecordedReload(Reload):
    """Tell the schedule when a reload changes the candidates of the daemon."""

    def __init__(self, schedule: Schedule, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._schedule = schedule

    def __call__(self) -> Change | None:
        change = super().__call__()
        if change is not None:
            self._schedule.see_candidates(self._schedule.candidates)
        return change


def run_at_once(self: Any, call: Callable[[], Any]) -> None:
    """Replace `Background.__init__`, so that the call ends before the next line."""
    self._future = Future()
    self._run(call)


class InlineExecutor(Executor):
    """Run each call before `submit` returns."""

    def __init__(self, *_: Any) -> None:
        super().__init__()

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:  # noqa: BLE001 - `result` raises it
            future.set_exception(error)
        return future


def open_source(schedule: Schedule, settings: KafkaSettings, offsets: SourceOffsets | None = None) -> Source:
    """Replace `KafkaSettings.open`, so that it reads the topics of the schedule."""
    stored = offsets or {}
    sources = [
        KafkaSource(
            settings.model_copy(update={"topic": topic}),
            stored.get(topic),
            connect=schedule.topics[topic].connect,
            clock=schedule.clock.monotonic,
            chance=schedule.random.random,
        )
        for topic in settings.topics
    ]
    source = MultiSource(sources) if len(sources) > 1 else sources[0]
    return source if offsets is None else ObservedSource(schedule, source)  # backfills have no offsets


@contextmanager
def simulated(schedule: Schedule) -> Iterator[None]:
    """Let the process see the clock, the brokers and the disk of a schedule, and run its background calls at once."""
    clock = schedule.clock
    changed = [
        *((time, name, getattr(clock, name)) for name in ("time", "monotonic", "sleep")),
        (background.Background, "__init__", run_at_once),
        (kafka_source, "Event", partial(VirtualEvent, clock)),
        (kafka_source, "SLICE_SECONDS", SLICE_SECONDS),
        (KafkaSettings, "open", lambda *arguments: open_source(schedule, *arguments)),
        (startup, "SnapshotStore", partial(RecordedStore, schedule)),
        (startup, "Reload", partial(RecordedReload, schedule)),
        (Config, "load", lambda _: schedule.configuration()),
        *((os, name, call) for name, call in observed_calls(schedule.step).items()),
        (snapshots, "ThreadPoolExecutor", InlineExecutor),
    ]
    defaults = {"clock": clock.time, "publish_interval": PUBLISH_INTERVAL}
    with ExitStack() as stack:
        for target, name, value in changed:
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(patch.dict(Daemon.__init__.__kwdefaults__, defaults))
        stack.enter_context(structlog.testing.capture_logs())
        yield
