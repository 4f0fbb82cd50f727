"""The status of the daemon: one immutable value, replaced as a whole, so that no reader sees a part of an update."""

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

from streameval.events import REASONS
from streameval.ingest.background import WorkerStatus
from streameval.ingest.base import SourceStatus
from streameval.ingest.stages import BufferStatus
from streameval.ope.report import Report

__all__ = ["BackfillStatus", "DaemonStatus", "Histogram", "History", "SnapshotStatus"]

HISTORY_SPAN = 12 * 3600.0  # seconds
MOST_POINTS = 240
SHORTEST_SPACING = 0.5  # seconds: at first every Report is a point, so that a new daemon shows something at once


@cache
def own_version() -> str:
    """The installed version of this package."""
    try:
        return version("streameval")
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "unknown"


Label: TypeAlias = tuple[str, str, str]
"""Policy, estimator, average."""


@dataclass(frozen=True, slots=True)
class Point:
    """All estimates at one moment, NaN where not known.

    `numbers[places[label]]` are the value, its lower and upper bound, and then the same of the lift.
    """

    at: float
    places: dict[Label, int]
    numbers: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """Estimates of the last hours at points at least `spacing` seconds apart, which doubles when there are too many.

    In the end points are 256 seconds apart and reach `HISTORY_SPAN` back, in `48 bytes x points x estimates`: some
    megabytes for hundreds of estimates.

    >>> len(History().points)
    0
    """

    points: tuple[Point, ...] = ()
    spacing: float = SHORTEST_SPACING

    def after(self, at: float, report: Report | None) -> History:
        """This history and a Report made at `at` (epoch seconds), if the last point is old enough.

        When the clock was set back, points in the future are dropped.
        """
        if report is None:
            return self
        last = self.points[-1] if self.points else None
        if last is not None and 0 <= at - last.at < self.spacing:
            return self
        kept = [point for point in self.points if at - HISTORY_SPAN <= point.at <= at]
        points, spacing = (*kept, _point(at, report, last)), self.spacing
        while len(points) > MOST_POINTS:
            spacing *= 2
            points = tuple(_spaced(points, spacing))
        return History(points, spacing)

    def since(self, start: float) -> History:
        """The points from this moment on, in epoch seconds."""
        return History(tuple(point for point in self.points if point.at >= start), self.spacing)

    def series(self, label: Label, of_lift: bool = False) -> NDArray[np.float64]:
        """The value or the lift of one estimate, with both bounds, at each point, [points, 3]; NaN where not known."""
        numbers, shown = np.full((len(self.points), 3), np.nan), slice(3, 6) if of_lift else slice(0, 3)
        for row, point in enumerate(self.points):
            place = point.places.get(label)
            if place is not None:
                numbers[row] = point.numbers[place, shown]
        return numbers


NO_HISTORY = History()


def _spaced(points: Iterable[Point], spacing: float) -> Iterator[Point]:
    last = -np.inf
    for point in points:
        if point.at - last >= spacing:
            last = point.at
            yield point


def _point(at: float, report: Report, last: Point | None) -> Point:
    """The estimates of the goal."""
    estimates = report.of_goal().estimates
    places = {(each.policy, each.estimator, each.average): row for row, each in enumerate(estimates)}
    if last is not None and last.places == places:
        places = last.places  # hundreds of points share one
    numbers = [(each.value, each.lower, each.upper, each.lift, each.lift_lower, each.lift_upper) for each in estimates]
    return Point(at, places, np.array(numbers, dtype=np.float64).reshape(-1, 6))


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations counted in fixed buckets: `counts[i]` lie in `(bounds[i-1], bounds[i]]`, the last above all bounds.

    >>> Histogram.of(bounds=(1.0, 10.0)).add(np.array([-3.0, 1.0, 2.0, 50.0]))
    Histogram(bounds=(1.0, 10.0), counts=(2, 1, 1), total=53.0)
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @classmethod
    def of(cls, bounds: tuple[float, ...]) -> Histogram:
        """An empty histogram over rising `bounds`."""
        return cls(bounds, (0,) * (len(bounds) + 1), 0.0)

    def add(self, values: NDArray[np.float64]) -> Histogram:
        """This histogram and `values`; negative ones count as 0, so that the total never falls; NaN are left out."""
        known = np.maximum(values[~np.isnan(values)], 0.0)
        added = np.bincount(np.searchsorted(self.bounds, known), minlength=len(self.counts)).tolist()
        counts = tuple(old + new for old, new in zip(self.counts, added, strict=True))
        return Histogram(self.bounds, counts, self.total + float(known.sum()))

    def merged(self, other: Histogram) -> Histogram:
        """The observations of both, which have the same buckets."""
        counts = tuple(mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True))
        return Histogram(self.bounds, counts, self.total + other.total)

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """The mean observation; None without any."""
        return self.total / self.count if self.count else None

    def cumulative(self) -> tuple[int, ...]:
        """Observations up to each bound, and at last all of them."""
        return tuple(accumulate(self.counts))


NO_BATCHES = Histogram.of(bounds=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0))
NO_DELAYS = Histogram.of(
    bounds=(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21600.0, 86400.0)
)


@dataclass(frozen=True, slots=True)
class BackfillStatus:
    """The backfill of new candidates: events read, and approximately how many are still unread."""

    policies: tuple[str, ...]
    read: int
    waiting: int | None


NO_SNAPSHOTS = Histogram.of(bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0))


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """Time of the newest snapshot (epoch seconds), seconds that writing took, and the number of failed snapshots.

    `damaged`: snapshots that this process found damaged when it started.
    """

    written_at: float | None = None
    durations: Histogram = NO_SNAPSHOTS
    failures: int = 0
    damaged: int = 0


NO_ENGINE_BATCHES = Histogram.of(bounds=(0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0))


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Batches that an engine has evaluated: seconds from plan to result, and the events of the last one.

    `age`: seconds since the end of the log was asked for, up to which events count; before the first batch, those since
    the start.
    `executors_lost`: how many executors have ended unasked in the life of this process.
    """

    batch_duration: Histogram = NO_ENGINE_BATCHES
    batch_events: int | None = None
    age: float = math.nan
    executors_lost: int = 0


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """The status of a running daemon at the moment `at` (epoch seconds).

    `report` is None until the first one is made. `ready`: the source answers and there is a report; if not, `detail` is
    the reason; else a problem of the clock, if any. `accepted`, `rejected` (with every reason) and the histograms (in
    seconds) count from the start of the process; the Report counts from the start of the state. `snapshots` is None
    without a state, `dead_letters` and `decisions` where none are written, `buffered` where events count as they
    arrive. `ahead_of_clock` counts events and rewards dated too far ahead of this machine's clock. `history` holds
    Reports since the start of the process. `margin`: what a lift must exceed for promotion, None without promotion.
    `engine` is None where this process evaluates events itself.
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
    buffered: BufferStatus | None = None
    history: History = NO_HISTORY
    margin: float | None = None
    engine: EngineStatus | None = None
