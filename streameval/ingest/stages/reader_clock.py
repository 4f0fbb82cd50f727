"""Compare the clock of the machine that reads with the times of events."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from streameval.common.arrays import Array, State
from streameval.common.text import duration_text
from streameval.events import EventBatch, RewardBatch

CLOCK_BEHIND = 86_400.0
"""Seconds. If events are dated further ahead of the reader's clock, that clock is wrong."""
CLOCK_EVIDENCE = 20
"""Events that decide which clock is wrong. Fewer may all come from one producer with a wrong clock."""
CLOCK_PATIENCE = 600.0
"""Seconds to withhold fewer events: the few events of a quiet topic must not stop the daemon for ever."""
CLOCKS_AHEAD = 0.9
"""Share of events that one producer with a wrong clock may write; when more are ahead, the reader's clock is behind."""

B = TypeVar("B", EventBatch, RewardBatch)


class ClockBehindError(Exception):
    """Report a clock of this machine that is this many seconds behind the events. No event was taken."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the clock of this machine is {duration_text(seconds)} behind the events")


class ReaderClock:
    """Date events and rewards at the time of the reader's clock if they are too far ahead of it.

    Args:
        tolerance: seconds that an event may be ahead

    Attributes:
        ahead: how many events and rewards were too far ahead
        mostly_ahead: more of the last ones were ahead than one producer with a wrong clock may write
        newest: the time that events so far have shown
        last: times of the last events and rewards, which decide together whether it is later; the events of one poll
            may all come from one producer with a wrong clock
    """

    def __init__(self, tolerance: float) -> None:
        self._tolerance = tolerance
        self.ahead, self.mostly_ahead = 0, False
        self.newest, self.last, self._behind_since = -math.inf, np.empty(0), math.inf
        self._judged = np.zeros(2)  # events and rewards since `mostly_ahead` was set, and how many were ahead

    def latest(self, now: float) -> float:
        """Return the latest time that an event may be dated at."""
        return now + self._tolerance

    def require(self, batches: Sequence[EventBatch | RewardBatch], now: float) -> None:
        """Refuse the messages of a poll if they show that it is not the time of `now`, but much later.

        Messages of this poll and of earlier ones must both show it, if there are both: either may have a wrong clock.
        If there are few of both, `now` is right after all once they have waited long.

        Raises:
            ClockBehindError: It is much later. No message is taken.
        """
        times = np.concatenate([batch.timestamp for batch in batches])
        times = times[~np.isnan(times)]
        if self._tolerance == math.inf or (not len(times) and self.newest - now <= CLOCK_BEHIND):
            return
        all_times = np.concatenate([self.last, times])
        seen = _reached_by_most(times) if len(times) else math.inf
        shown = seen if self.newest == -math.inf else min(seen, self.newest)
        self._behind_since = min(self._behind_since, now) if shown - now > CLOCK_BEHIND else math.inf
        has_waited = len(all_times) < CLOCK_EVIDENCE and now - self._behind_since >= CLOCK_PATIENCE
        if shown - now > CLOCK_BEHIND and not has_waited:
            raise ClockBehindError(shown - now)
        self.newest = min(max(_reached_by_most(all_times), self.newest), now)
        self.last = all_times[-CLOCK_EVIDENCE:].copy()

    def state(self) -> State:
        """Return the times that events have shown, as plain values."""
        return {"newest": self.newest, "last": self.last.tolist()}

    def restore(self, state: State) -> None:
        """Continue from a state.

        Raises:
            ValueError: A time is a text.
        """
        self.newest, self.last = float(state["newest"]), np.array(state["last"], dtype=float)

    def redated(self, batch: B, now: float) -> B:
        """Return events or rewards, dated at `now` if they were too far ahead."""
        is_ahead = batch.timestamp > self.latest(now)
        self._judged += np.array([len(batch), np.count_nonzero(is_ahead)], dtype=np.float64)
        if self._judged[0] >= CLOCK_EVIDENCE:
            self.mostly_ahead = bool(self._judged[1] > CLOCKS_AHEAD * self._judged[0])
            self._judged[:] = 0.0
        if not is_ahead.any():
            return batch
        self.ahead += int(np.count_nonzero(is_ahead))
        return replace(batch, timestamp=np.where(is_ahead, now, batch.timestamp))


def _reached_by_most(times: Array) -> float:
    """Return the time that all have reached but one producer with a wrong clock."""
    rank = int((1.0 - CLOCKS_AHEAD) * len(times))
    return float(np.partition(times, rank)[rank])
