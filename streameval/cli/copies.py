"""Find events that a log has more than once, though they may have no ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streameval.events import EventBatch
from streameval.events.origin import NO_IDENTITY

RUN = 128
"""Events of a run that is looked for among the earlier ones, a power of two."""
LEAST_KINDS, MOST_ALIKE = 4, 112
"""A run tells only if it has so many kinds of events, and no more of one kind: runs like it do not recur by chance.
Even if all events of the other kinds were equal, two such runs are equal with a probability below
(.875^2 + .125^2)^128 = 2e-14. Fewer kinds are found in tables that somebody wrote by hand and repeated."""
MOST_RUNS = 100_000
"""Runs that are remembered. If there are more, every second one is forgotten."""
FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
HALF = np.uint64(32)

Digests = NDArray[np.uint64]


class Copies:
    """Estimate the share of events in runs that occurred before, such as a file or frame that is read twice.

    Events are equal if their ids are. Without ids, their times, propensities, rewards and the policies' probabilities
    are compared. Copies that are mixed with other events are not found.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._tail = np.zeros(0, dtype=np.uint64)
        self._every, self._looked, self._repeated = 1, 0, 0

    @property
    def share(self) -> float:
        """Return the share of repeated events."""
        return self._repeated / self._looked if self._looked else 0.0

    def add(self, batch: EventBatch) -> None:
        """Compare the next events with the earlier ones."""
        events = np.concatenate([self._tail, _digests(batch)])
        self._tail = events[max(0, len(events) - RUN + 1) :]
        runs, size = events, 1
        while size < RUN:
            runs, size = _mixed(runs[: max(0, len(runs) - size)], runs[size:]), 2 * size
        chosen = np.flatnonzero(runs % np.uint64(self._every) == 0)
        self._looked += self._every * len(chosen)
        for start, digest in zip(chosen.tolist(), runs[chosen].tolist(), strict=True):
            if digest not in self._seen:
                self._seen.add(digest)
            elif _tells(events[start : start + RUN]):
                self._repeated += self._every
        while len(self._seen) > MOST_RUNS:
            self._every *= 2
            self._seen = {digest for digest in self._seen if digest % self._every == 0}


def _digests(batch: EventBatch) -> Digests:
    """Return a number for each event [n] that is equal for equal events."""
    digests = np.zeros(len(batch), dtype=np.uint64)
    for numbers in (batch.timestamp, batch.propensity, batch.reward, *batch.probabilities.T):
        digests = _mixed(digests, np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint64))
    identity = None if batch.origin is None else batch.origin.identity
    return digests if identity is None else np.where(identity == NO_IDENTITY, digests, identity.astype(np.uint64))


def _mixed(first: Digests, second: Digests) -> Digests:
    mixed = (first * FACTORS[0]) ^ second
    mixed = (mixed ^ (mixed >> HALF)) * FACTORS[1]
    return np.asarray(mixed ^ (mixed >> HALF))


def _tells(run: Digests) -> bool:
    _, counts = np.unique(run, return_counts=True)
    return bool(len(counts) >= LEAST_KINDS and counts.max() <= MOST_ALIKE)
