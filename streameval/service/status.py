"""Hold the status of the daemon in one immutable value, so that no reader sees half of an update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import State, from_plain, to_plain
from streameval.events import REASONS
from streameval.ingest.background import WorkerStatus
from streameval.ingest.base import SourceStatus
from streameval.ingest.stages import BufferStatus
from streameval.ope.evaluator.heaviest import HeaviestEvent
from streameval.ope.report import EventCounts, Report
from streameval.ope.report import State as CandidateState

__all__ = ["BackfillStatus", "DaemonStatus", "Histogram", "History", "SnapshotStatus"]

HISTORY_SECONDS = 12 * 3600.0
MAX_POINTS = 240
MAX_STORED_NUMBERS = 200_000
"""Numbers of a history in a snapshot, four bytes each. With many estimates, a part of the points is left out."""
MIN_SPACING_SECONDS = 0.5  # at first every Report is a point, so that a new daemon shows something at once


@cache
def own_version() -> str:
    """Return the installed version of this package."""
    try:
        return version("streameval")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"


SHOWN = ("value", "lower", "upper", "lift", "lift_lower", "lift_upper")
NUMBERS = len(SHOWN)

Label: TypeAlias = tuple[str, str, str]
"""Policy, estimator, average."""
Decided: TypeAlias = tuple[tuple[str, str, CandidateState], ...]
"""Policy, rule and state of each decision."""


@dataclass(frozen=True, slots=True)
class Point:
    """Hold all estimates at one moment.

    Args:
        at: Epoch seconds.
        rows: Row of each estimate in `numbers`.
        numbers: Value, its lower and upper bound, lift, its lower and upper bound, [estimates, 6], or NaN if not known.
        decisions: All decisions.
    """

    at: float
    rows: dict[Label, int]
    numbers: NDArray[np.float64]
    decisions: Decided = ()


@dataclass(frozen=True, slots=True)
class History:
    """Hold the estimates of the last hours at points at least `spacing` seconds apart.

    The spacing doubles when there are too many points. In the end they are 256 seconds apart and reach
    `HISTORY_SECONDS` back. They take 48 bytes x points x estimates: some megabytes for hundreds of estimates.

    >>> len(History().points)
    0
    """

    points: tuple[Point, ...] = ()
    spacing: float = MIN_SPACING_SECONDS

    def after(self, at: float, report: Report | None) -> History:
        """Return the history with a Report, or without it if the last point is too recent.

        Points in the future are dropped, in case the clock was set back.

        Args:
            at: Time of the Report in epoch seconds.
            report: The Report.
        """
        if report is None:
            return self
        last = self.points[-1] if self.points else None
        if last is not None and 0 <= at - last.at < self.spacing:
            return self
        kept = [point for point in self.points if at - HISTORY_SECONDS <= point.at <= at]
        points, spacing = (*kept, _point(at, report, last)), self.spacing
        while len(points) > MAX_POINTS:
            spacing *= 2
            points = tuple(_spaced(points, spacing))
        return History(points, spacing)

    def since(self, start: float, end: float = math.inf) -> History:
        """Return the points from one moment to another, in epoch seconds."""
        return History(tuple(point for point in self.points if start <= point.at <= end), self.spacing)

    def series(self, label: Label, is_lift: bool = False) -> NDArray[np.float64]:
        """Return the value or lift of one estimate with both bounds over time, [points, 3], or NaN if not known."""
        series, columns = np.full((len(self.points), 3), np.nan), slice(3, 6) if is_lift else slice(0, 3)
        for index, point in enumerate(self.points):
            row = point.rows.get(label)
            if row is not None:
                series[index] = point.numbers[row, columns]
        return series

    def state(self) -> State:
        """Return the points for a snapshot, as `[points, estimates, 6]` with NaN for estimates that a point lacks."""
        labels = list(dict.fromkeys(label for point in self.points for label in point.rows))
        step = max(1, math.ceil(len(self.points) * len(labels) * NUMBERS / MAX_STORED_NUMBERS))
        points = self.points[::-1][::step][::-1]
        numbers = np.full((len(points), len(labels), NUMBERS), np.nan, dtype=np.float32)
        columns = {label: column for column, label in enumerate(labels)}
        for row, point in zip(numbers, points, strict=True):
            row[[columns[label] for label in point.rows]] = point.numbers[list(point.rows.values())]
        times = np.array([point.at for point in points])
        decisions = list(dict.fromkeys(point.decisions for point in points))
        return {
            "spacing": self.spacing,
            "labels": labels,
            "at": to_plain(times),
            "numbers": to_plain(numbers),
            "decisions": decisions,
            "decided": [decisions.index(point.decisions) for point in points],
        }

    @classmethod
    def from_state(cls, state: State) -> History:
        """Return the history of a snapshot, which earlier versions wrote without one."""
        if not state:
            return cls()
        rows: dict[Label, int] = {(p, e, a): row for row, (p, e, a) in enumerate(state["labels"])}
        times, numbers = from_plain(state["at"]).tolist(), from_plain(state["numbers"]).astype(np.float64)
        # Earlier versions wrote no decisions.
        decisions = [tuple((p, r, s) for p, r, s in decided) for decided in state.get("decisions", [()])]
        points = zip(times, numbers, state.get("decided", [0] * len(times)), strict=True)
        return cls(tuple(Point(at, rows, row, decisions[decided]) for at, row, decided in points), state["spacing"])


NO_HISTORY = History()


def _spaced(points: Iterable[Point], spacing: float) -> Iterator[Point]:
    last = -np.inf
    for point in points:
        if point.at - last >= spacing:
            last = point.at
            yield point


def _point(at: float, report: Report, last: Point | None) -> Point:
    """Return the estimates of the reward that decides."""
    estimates = report.of_goal().estimates
    rows = {(estimate.policy, estimate.estimator, estimate.average): row for row, estimate in enumerate(estimates)}
    if last is not None and last.rows == rows:
        rows = last.rows  # hundreds of points share one
    numbers = [[getattr(estimate, name) for name in SHOWN] for estimate in estimates]
    decisions = tuple((decision.policy, decision.rule, decision.state) for decision in report.promotion)
    if last is not None and last.decisions == decisions:
        decisions = last.decisions
    return Point(at, rows, np.array(numbers, dtype=np.float64).reshape(-1, NUMBERS), decisions)


@dataclass(frozen=True, slots=True)
class Histogram:
    """Count observations in fixed buckets.

    Args:
        bounds: Upper bounds of the buckets, rising.
        counts: Observations in (bounds[i - 1], bounds[i]], and at last above all bounds.
        total: Sum of the observations.

    >>> Histogram.from_bounds(bounds=(1.0, 10.0)).add(np.array([-3.0, 1.0, 2.0, 50.0]))
    Histogram(bounds=(1.0, 10.0), counts=(2, 1, 1), total=53.0)
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def from_bounds(cls, bounds: tuple[float, ...]) -> Histogram:
        """Return an empty histogram."""
        return cls(bounds, (0,) * (len(bounds) + 1), 0.0)

    def add(self, values: NDArray[np.float64]) -> Histogram:
        """Return the histogram with more observations.

        NaN is left out, and negative values count as 0, so that the total never falls.
        """
        usable = np.maximum(values[~np.isnan(values)], 0.0)
        added = np.bincount(np.searchsorted(self.bounds, usable), minlength=len(self.counts)).tolist()
        return self.merged(Histogram(self.bounds, tuple(added), float(usable.sum())))

    def merged(self, other: Histogram) -> Histogram:
        """Return the observations of two histograms with equal bounds."""
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)

    @property
    def count(self) -> int:
        """Return the number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Return the mean observation, None without any."""
        return self.total / self.count if self.count else None

    def cumulative(self) -> tuple[int, ...]:
        """Return the observations up to each bound, and at last all of them."""
        return tuple(accumulate(self.counts))


NO_BATCHES = Histogram.from_bounds(
    bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
)
NO_DELAYS = Histogram.from_bounds(
    bounds=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
)


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """Hold the progress of a backfill: events read, and about how many are still unread."""

    policies: tuple[str, ...]
    read: int
    waiting: int | None


NO_SNAPSHOTS = Histogram.from_bounds(bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0))


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """Hold the status of snapshots.

    Args:
        written_at: Time of the newest one in epoch seconds.
        durations: Seconds that writing took.
        failures: Number of failed snapshots.
        damaged: Number of snapshots that were damaged when the process started.
    """

    written_at: float | None = None
    durations: Histogram = NO_SNAPSHOTS
    failures: int = 0
    damaged: int = 0


NO_ENGINE_BATCHES = Histogram.from_bounds(bounds=(0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0))


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Hold the status of an engine.

    Args:
        batch_duration: Seconds from the plan of a batch to its result.
        batch_events: Events of the last batch.
        age: Seconds since the last request for the end of the log up to which events count, or since the start.
        executors_lost: Executors that ended unasked during this process.
    """

    batch_duration: Histogram = NO_ENGINE_BATCHES
    batch_events: int | None = None
    age: float = math.nan
    executors_lost: int = 0


@dataclass(frozen=True, slots=True)
class PushStatus:
    """Count the pushes of metrics that arrived, and the ones that failed."""

    done: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class ReloadStatus:
    """Hold the result of the last reload of the configuration.

    Args:
        requests: Number of the last request that it answers, from 1.
        problem: Why the last one was refused, or nothing.
        succeeded_at: Time at which the configuration in use was read, in epoch seconds.
    """

    requests: int = 0
    problem: str = ""
    succeeded_at: float = math.nan

    @property
    def successful(self) -> bool:
        """Tell whether the configuration that was read last is in use."""
        return not self.problem


NO_REPORT = Report(confidence=math.nan, production="", events=EventCounts(0, {}, None), policies=(), estimates=())


@dataclass(frozen=True, slots=True, eq=False)
class DaemonStatus:
    """Hold the status of a running daemon. Only the object itself is equal to it.

    Counts and histograms start with the process, but the Report counts from the start of the state.

    Args:
        source: Status of the source.
        at: Time of this status in epoch seconds.
        report: Newest Report, None before the first one.
        ready: Whether the source answers and there is a Report.
        detail: Why the daemon is not ready, or a problem of the clock.
        accepted: Number of accepted events.
        rejected: Number of rejected events, by every reason.
        batch_duration: Seconds to process a batch.
        event_delay: Seconds from the timestamp of an event to its processing.
        backfills: Backfills of new candidates.
        snapshots: None without a state.
        dead_letters: None if rejected messages are only counted.
        decisions: None if no decisions are sent.
        ahead_of_clock: Events and rewards dated too far ahead of this machine's clock.
        repeated_events: Events that count although a recent event has their id.
        clipped_events: Events with a number beyond its range by rounding alone, which was set to the end of the range.
        buffered: None if events count as they arrive.
        history: Estimates of the last hours.
        margin: What a lift must exceed for promotion, None without promotion.
        heaviest: Event with the largest weight of each candidate since the process started, if it is known.
        engine: None if this process evaluates events itself.
        name: Name of the daemon, empty if it has none.
        reload: Result of the last reload.
        pushes: None if no metrics are pushed.
        left_out: Candidates that the Report lacks because a reader asks only for some.
    """

    source: SourceStatus
    at: float
    report: Report | None = None
    ready: bool = False
    detail: str = "starting"
    accepted: int = 0
    rejected: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    batch_duration: Histogram = NO_BATCHES
    event_delay: Histogram = NO_DELAYS
    backfills: tuple[BackfillStatus, ...] = ()
    snapshots: SnapshotStatus | None = None
    dead_letters: WorkerStatus | None = None
    decisions: WorkerStatus | None = None
    ahead_of_clock: int = 0
    repeated_events: int = 0
    clipped_events: int = 0
    buffered: BufferStatus | None = None
    history: History = NO_HISTORY
    margin: float | None = None
    heaviest: Mapping[str, HeaviestEvent] = field(default_factory=dict)
    engine: EngineStatus | None = None
    name: str = ""
    reload: ReloadStatus = ReloadStatus()
    pushes: PushStatus | None = None
    left_out: int = 0

    @property
    def reported(self) -> Report:
        """Return the newest Report, without rows before the first one."""
        return self.report or NO_REPORT
