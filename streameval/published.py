"""What the daemon shows to the outside: one immutable value, replaced as a whole, so that no reader sees half of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from streameval.events import REASONS
from streameval.history import NO_HISTORY, History
from streameval.report import Report
from streameval.sources import SourceStatus
from streameval.stages import RewardCounts


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
class Backfilling:
    """Candidates that came late and are given what has happened: events read, and about how many still wait."""

    policies: tuple[str, ...]
    read: int
    waiting: int | None


NO_SNAPSHOTS = Histogram.of(bounds=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0))


@dataclass(frozen=True, slots=True)
class Snapshotting:
    """When the newest snapshot was made (epoch seconds), how long writing took, how many could not be written."""

    written_at: float | None = None
    durations: Histogram = NO_SNAPSHOTS
    failures: int = 0

    def after(self, written_at: float, seconds: float) -> Snapshotting:
        """The same after one more was written."""
        return Snapshotting(written_at, self.durations.add(np.array([seconds])), self.failures)

    def failed(self) -> Snapshotting:
        """The same after one could not be written."""
        return Snapshotting(self.written_at, self.durations, self.failures + 1)


NEVER = Snapshotting()


@dataclass(frozen=True, slots=True)
class Holding:
    """Events that wait for their turn, or for their rewards.

    `watermark`: the time (epoch seconds) before which nothing is waited for any more; None before there is one.
    `hurried`: events that were passed on before their time because memory was full. `rewards`: what has become of those
    that came apart. Both count since the state began. `window`: seconds that an event waits for its rewards.
    """

    events: int
    watermark: float | None = None
    hurried: int = 0
    rewards: RewardCounts | None = None
    window: float = 0.0


@dataclass(frozen=True, slots=True)
class LettersStatus:
    """Rejected messages put aside: written and dropped in the life of this process, waiting, and what keeps them."""

    written: int = 0
    dropped: int = 0
    waiting: int = 0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Published:
    """The state of a running daemon at the moment `at` (epoch seconds).

    `report` is None until the first one is made. `ready`: the source answers and there is a report; if not, `detail`
    says why. `accepted` and `rejected` count this process's life, from 0, every reason being there from the beginning;
    the Report counts from the start of the state. Histograms are of this process's life, in seconds. `snapshots` is
    None where no state is kept, `dead_letters` where none are, `holding` where events count as they arrive. `history`
    holds Reports of the last hours, since the process began.
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
    backfills: tuple[Backfilling, ...] = ()
    snapshots: Snapshotting | None = None
    dead_letters: LettersStatus | None = None
    holding: Holding | None = None
    history: History = NO_HISTORY
