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
MOST_DIFFERENT, MOST_NEIGHBOURS = 0.01, 0.75
"""Copies do not differ. If more runs recur with other rewards, policies take turns, and if more events of one time
differ, times are coarse. Times tell nothing if more neighbours are alike: events of one time may be so by chance."""
FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)
HALF = np.uint64(32)

Digests = NDArray[np.uint64]


class Copies:
    """Estimate the share of events that occurred before, for example because a file or frame was read twice.

    Events are equal if their ids are. Without ids, their times, propensities, rewards, actions, units and the policies'
    probabilities are compared. Found are runs that recur, and logs in which all events recur in any order.
    """

    def __init__(self) -> None:
        self._rows, self._times, self._runs = _Sample(), _Sample(), _Sample()
        self._tail = np.zeros((2, 0), dtype=np.uint64)
        self._telling: dict[int, bool] = {}
        self._repeated = self._different = 0
        self._events = self._alike = 0

    @property
    def share(self) -> float:
        """Return the share of repeated events, 0 if they can be equal by chance."""
        have_turns = self._different > MOST_DIFFERENT * (self._repeated + self._different)
        runs = 0.0 if have_turns or not self._runs.size else self._repeated / self._runs.size
        times = self._times.share_of_equals() if self._alike <= MOST_NEIGHBOURS * self._events else 0.0
        return max(runs, times, self._rows.share_of_copies())

    def add(self, batch: EventBatch) -> None:
        """Compare the next events with the earlier ones."""
        contents, times = _digests(batch), _bits(batch.timestamp)
        rewarded, have_times = _mixed(contents, _bits(batch.reward)), ~np.isnan(batch.timestamp)
        contents, rows = _mixed(contents, times), _mixed(rewarded, times)
        if batch.origin is not None and batch.origin.identity is not None:
            have_ids = batch.origin.identity != NO_IDENTITY
            contents, rows = (np.where(have_ids, batch.origin.identity.astype(np.uint64), x) for x in (contents, rows))
        self._events += len(batch)
        self._alike += int(np.count_nonzero(rewarded[1:] == rewarded[:-1]))
        self._rows.add(rows[have_times], rows[have_times])  # without times, events of one user may well be equal
        self._times.add(times[have_times], rows[have_times])
        self._add_runs(np.concatenate([self._tail, [contents, rows]], axis=1))

    def _add_runs(self, events: Digests) -> None:
        """Compare runs of events, given without and with their rewards [2, n]."""
        self._tail = events[:, max(0, events.shape[1] - RUN + 1) :]
        runs, size, pieces = events, 1, events
        while size < RUN:
            runs, size = _mixed(runs[:, : max(0, runs.shape[1] - size)], runs[:, size:]), 2 * size
            pieces = runs if size == PIECE else pieces
        for start, digest, is_equal in self._runs.add(*runs):
            if digest not in self._telling:
                run, its_pieces = events[1, start : start + RUN], pieces[1, start : start + RUN - PIECE + 1]
                self._telling[digest] = _tells(run, its_pieces)
            if self._telling[digest]:
                self._repeated += self._runs.every * is_equal
                self._different += self._runs.every * (not is_equal)
        if len(self._telling) > MOST_REMEMBERED:
            self._telling = {digest: tells for digest, tells in self._telling.items() if digest in self._runs.found}


class _Sample:
    """Count digests and compare their values. The sample has all occurrences of a digest, or no occurrence."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[int, int, bool]] = {}  # how often, the first value, whether all are equal
        self.every, self.size = 1, 0

    def add(self, digests: Digests, values: Digests) -> list[tuple[int, int, bool]]:
        """Return position and digest of those that occurred before, and whether they had the same value."""
        chosen = np.flatnonzero(_mixed(digests, digests) % np.uint64(self.every) == 0)
        self.size += self.every * len(chosen)
        found, repeated = self.found, []
        parts = chosen.tolist(), digests[chosen].tolist(), values[chosen].tolist()
        for position, digest, value in zip(*parts, strict=True):
            count, first, all_equal = found.get(digest, (0, value, True))
            is_equal = value == first
            found[digest] = count + 1, first, all_equal and is_equal
            if count:
                repeated.append((position, digest, is_equal))
        while len(self.found) > MOST_REMEMBERED:
            self.every *= 2
            kept = np.fromiter(self.found, dtype=np.uint64)
            are_kept = _mixed(kept, kept) % np.uint64(self.every) == 0
            self.found = {digest: self.found[digest] for digest in kept[are_kept].tolist()}
        return repeated

    def share_of_copies(self) -> float:
        """Return the share of digests that occurred before, 0 if they can be equal by chance."""
        counts = np.array([count for count, _, _ in self.found.values()])
        if len(counts) < LEAST_KINDS or counts.mean() >= MOST_EQUAL or (counts == 1).mean() > MOST_SINGLE:
            return 0.0
        return float(1 - 1 / counts.mean())

    def share_of_equals(self) -> float:
        """Return the share of digests that occurred before, 0 if some of them have several values."""
        several = [(count, equal) for count, _, equal in self.found.values() if count > 1]
        if sum(not equal for _, equal in several) > MOST_DIFFERENT * len(several):
            return 0.0
        return self.every * sum(count - 1 for count, _ in several) / max(self.size, 1)


def _digests(batch: EventBatch) -> Digests:
    """Return a number for each event [n] that is equal for equal events, without their rewards and times."""
    digests = np.zeros(len(batch), dtype=np.uint64)
    for numbers in (batch.propensity, *batch.probabilities.T):
        digests = _mixed(digests, _bits(numbers))
    for identifiers in (batch.action_identity, batch.unit):
        digests = digests if identifiers is None else _mixed(digests, identifiers)
    return digests


def _bits(numbers: NDArray[np.float64]) -> Digests:
    return np.ascontiguousarray(numbers, dtype=np.float64).view(np.uint64)


def _mixed(first: Digests, second: Digests) -> Digests:
    mixed = (first * FACTORS[0]) ^ second
    mixed = (mixed ^ (mixed >> HALF)) * FACTORS[1]
    return np.asarray(mixed ^ (mixed >> HALF))


def _tells(run: Digests, pieces: Digests) -> bool:
    most = np.unique(run, return_counts=True)[1].max()
    single = np.count_nonzero(np.unique(pieces, return_counts=True)[1] == 1)
    return bool(most <= MOST_ALIKE and single >= LEAST_SINGLE)
