"""Find segments that are known after the decision only, by their values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from streameval.events import EventBatch
from streameval.events.origin import NO_IDENTITY

MOST_VALUES = 1_000
"""Values of a segment that are looked at. Segments with more, such as users, are not judged."""
LEAST_EVENTS = 30
"""Events that each of two outcomes needs, without the first event of each value. Fewer may agree by chance."""


class LateSegments:
    """Find segments with values that decide the reward, or the action though it was drawn."""

    def __init__(self) -> None:
        self._rewards: dict[str, _Decided] = {}
        self._actions: dict[str, _Decided] = {}

    def add(self, batch: EventBatch) -> None:
        """Look at the next events."""
        if batch.segments is None:
            return
        rewards = np.ascontiguousarray(batch.reward, dtype=np.float64).view(np.uint64)
        actions = batch.action_identity
        for name in batch.segments.names:
            values = batch.segments.column(name)
            known = values != NO_IDENTITY
            self._rewards.setdefault(name, _Decided()).add(values[known], rewards[known])
            if actions is not None:
                drawn = known & ~(batch.propensity >= 1)
                self._actions.setdefault(name, _Decided()).add(values[drawn], actions[drawn])

    def found(self) -> Iterator[tuple[str, str]]:
        """Yield names of segments, and what they decide."""
        for outcome, segments in (("reward", self._rewards), ("action", self._actions)):
            yield from ((name, outcome) for name, decided in segments.items() if decided.holds())


class _Decided:
    """Remember the outcome of each value, until a value has two."""

    def __init__(self) -> None:
        self._outcomes: dict[int, int] = {}
        self._events: dict[int, int] = {}
        self._is_open = True

    def add(self, values: NDArray[np.uint64], outcomes: NDArray[np.uint64]) -> None:
        """Add events by their fingerprints."""
        if not self._is_open:
            return
        pairs, events = np.unique(np.stack([values, outcomes]), axis=1, return_counts=True)
        for value, outcome, number in zip(*pairs.tolist(), events.tolist(), strict=True):
            again = number - (value not in self._outcomes)
            self._is_open &= self._outcomes.setdefault(value, outcome) == outcome
            self._events[outcome] = self._events.get(outcome, 0) + again
        self._is_open &= len(self._outcomes) <= MOST_VALUES

    def holds(self) -> bool:
        """Tell whether each value has one outcome, and at least two outcomes have enough events."""
        return self._is_open and sum(number >= LEAST_EVENTS for number in self._events.values()) >= 2
