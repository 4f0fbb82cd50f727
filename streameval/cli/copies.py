"""Find events that a log has more than once, though they may have no ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streameval.events import EventBatch
from streameval.events.origin import NO_IDENTITY

RUN = 256
"""Events of a run that is looked for among the earlier ones, a power of two."""
MOST_ALIKE = RUN - 16
"""A run tells only if it has no more events of one kind: runs like it do not recur by chance. Even if all events of the
other kinds were equal, two such runs are equal with a probability below (1 - 2 * 16 / RUN)^RUN = 2e-15."""
PIECE, LEAST_SINGLE = 16, 96
"""Events of a piece of a run, a power of two, and the pieces that a run must have only once to tell. Logs in which
actions take turns have most pieces many times, and so have tables that somebody wrote by hand and repeated."""
MOST_REMEMBERED = 100_000
"""Runs and events that are remembered. If there are more, every second one is forgotten."""
LEAST_KINDS, MOST_SINGLE, MOST_EQUAL = 100, 0.01, 6
"""A log has copies, in whatever order, if it has so many kinds of events, nearly none of them only once, and on average
fewer events of a kind. If events are drawn, a kind is expected 6.5 times before so few kinds occur only once."""
FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
HALF = np.uint64(32)

Digests = NDArray[np.uint64]


class Copies:
    """Estimate the share of events that occurred before, for example because a file or frame was read twice.

    Events are equal if their ids are. Without ids, their times, propensities, rewards, actions, units and the policies'
    probabilities are compared. Found are runs that recur, and logs in which all events recur in any order.
    """

    def __init__(self) -> None:
        self._rows, self._runs = _Sample(), _Sample()
        self._tail = np.zeros(0, dtype=np.uint64)
        self._telling: dict[int, bool] = {}
        self._repeated = 0

    @property
    def share(self) -> float:
        """Return the share of repeated events, 0 if they can be equal by chance."""
        runs = self._repeated / self._runs.size if self._runs.size else 0.0
        return max(runs, self._rows.share_of_copies())

    def add(self, batch: EventBatch) -> None:
        """Compare the next events with the earlier ones."""
        rows = _digests(batch)
        self._rows.add(rows[~np.isnan(batch.timestamp)])  # without times, events of one user may well be equal
        events = np.concatenate([self._tail, rows])
        self._tail = events[max(0, len(events) - RUN + 1) :]
        runs, size, pieces = events, 1, events
        while size < RUN:
            runs, size = _mixed(runs[: max(0, len(runs) - size)], runs[size:]), 2 * size
            pieces = runs if size == PIECE else pieces
        for start, digest in self._runs.add(runs):
            if digest not in self._telling:
                self._telling[digest] = _tells(events[start : start + RUN], pieces[start : start + RUN - PIECE + 1])
            self._repeated += self._runs.every * self._telling[digest]
        if len(self._telling) > MOST_REMEMBERED:
            self._telling = {digest: tells for digest, tells in self._telling.items() if digest in self._runs.counts}


class _Sample:
    """Count digests. All occurrences of a digest are in the sample, or none is."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.every, self.size = 1, 0

    def add(self, digests: Digests) -> list[tuple[int, int]]:
        """Count digests. Return position and digest of those that occurred before."""
        chosen = np.flatnonzero(digests % np.uint64(self.every) == 0)
        self.size += self.every * len(chosen)
        counts, repeated = self.counts, []
        for position, digest in zip(chosen.tolist(), digests[chosen].tolist(), strict=True):
            count = counts.get(digest, 0)
            counts[digest] = count + 1
            if count:
                repeated.append((position, digest))
        while len(self.counts) > MOST_REMEMBERED:
            self.every *= 2
            self.counts = {digest: count for digest, count in self.counts.items() if digest % self.every == 0}
        return repeated

    def share_of_copies(self) -> float:
        """Return the share of digests that occurred before, 0 if they can be equal by chance."""
        counts = np.fromiter(self.counts.values(), dtype=np.int64)
        if len(counts) < LEAST_KINDS or counts.mean() >= MOST_EQUAL or (counts == 1).mean() > MOST_SINGLE:
            return 0.0
        return float(1 - 1 / counts.mean())


def _digests(batch: EventBatch) -> Digests:
    """Return a number for each event [n] that is equal for equal events."""
    digests = np.zeros(len(batch), dtype=np.uint64)
    for numbers in (batch.timestamp, batch.propensity, batch.reward, *batch.probabilities.T):
        digests = _mixed(digests, np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint64))
    for identifiers in (batch.action_identity, batch.unit):
        digests = digests if identifiers is None else _mixed(digests, identifiers)
    identity = None if batch.origin is None else batch.origin.identity
    return digests if identity is None else np.where(identity == NO_IDENTITY, digests, identity.astype(np.uint64))


def _mixed(first: Digests, second: Digests) -> Digests:
    mixed = (first * FACTORS[0]) ^ second
    mixed = (mixed ^ (mixed >> HALF)) * FACTORS[1]
    return np.asarray(mixed ^ (mixed >> HALF))


def _tells(run: Digests, pieces: Digests) -> bool:
    most = np.unique(run, return_counts=True)[1].max()
    single = np.count_nonzero(np.unique(pieces, return_counts=True)[1] == 1)
    return bool(most <= MOST_ALIKE and single >= LEAST_SINGLE)
