"""Detect changes in the mean of several streams by windows of adaptive length: ADWIN.

A window holds the newest values in buckets: row r has at most `max_buckets` buckets of 2^r values each, oldest first. A
bucket is the sum and the sum of squared deviations of its values. While the means of an older and a newer part of the
window differ by more than chance explains, the oldest bucket is dropped, and a change is detected. The next value then
starts a new window, as in river.

Source: Bifet & Gavalda, SIAM Data Mining 2007; for the deviations, Babcock, Datar, Motwani & O'Callaghan, PODS 2003.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.math import fabs, log, sqrt

from streameval.common.arrays import Array, Integers


@cython.cclass
class Windows:
    """Update the windows of several policies in place.

    Every policy has two windows: one in use, and the next one. After `longest` values, the next window replaces the one
    in use. It has seen the last `kept` of these values. Results agree to the last bit with river's ADWIN, if that
    restarts in the same way.

    Args:
        delta: the probability of a false detection, above 0
        clock: number of values between two searches for a change
        max_buckets: largest number of buckets in a row
        min_window_length: smallest number of values on either side of a cut
        grace_period: largest number of values in a window that is not searched
        seen: [policies] values since the last restart, `kept` included
        ticks: [windows] values since the start of a window; -1 after a change
        totals: [windows, 3] number, sum, and sum of squared deviations of the values in a window
        sizes: [windows, rows] number of buckets
        sums: [windows, rows, max_buckets + 1] sum of the values in a bucket
        deviations: the sum of squared deviations, in the same shape
    """

    delta: cython.double
    clock: cython.Py_ssize_t
    max_buckets: cython.Py_ssize_t
    min_window_length: cython.Py_ssize_t
    grace_period: cython.Py_ssize_t
    seen: cython.longlong[::1]
    ticks: cython.longlong[::1]
    totals: cython.double[:, ::1]
    sizes: cython.longlong[:, ::1]
    sums: cython.double[:, :, ::1]
    deviations: cython.double[:, :, ::1]

    def __init__(
        self,
        delta: cython.double,
        clock: cython.Py_ssize_t,
        max_buckets: cython.Py_ssize_t,
        min_window_length: cython.Py_ssize_t,
        grace_period: cython.Py_ssize_t,
        seen: Integers,
        ticks: Integers,
        totals: Array,
        sizes: Integers,
        sums: Array,
        deviations: Array,
    ) -> None:
        self.delta = delta
        self.clock = clock
        self.max_buckets = max_buckets
        self.min_window_length = min_window_length
        self.grace_period = grace_period
        self.seen = seen.data  # in the uncompiled form, a memoryview has Python's own numbers, faster than numpy's
        self.ticks = ticks.data
        self.totals = totals.data
        self.sizes = sizes.data
        self.sums = sums.data
        self.deviations = deviations.data

    def update(
        self,
        means: Array,
        detections: Integers,
        longest: cython.Py_ssize_t,
        kept: cython.Py_ssize_t,
        silent: cython.Py_ssize_t,
    ) -> None:
        """Take the next values, and add the number of changes to `detections`.

        Args:
            means: [values, policies]; NaN or infinite if a policy has none
            detections: [policies]
            longest: number of values after which the next window replaces the one in use
            kept: number of values that the next window has seen then
            silent: changes within this number of values since the start are not counted
        """
        policy: cython.Py_ssize_t
        index: cython.Py_ssize_t
        value: cython.double
        values: cython.double[:, ::1] = means.data
        for policy in range(values.shape[1]):
            for index in range(values.shape[0]):
                value = values[index, policy]
                if value - value != 0.0:
                    continue
                if self.seen[policy] == longest:
                    self._replace(2 * policy)
                    self.seen[policy] = kept
                self.seen[policy] += 1
                if self._observe(2 * policy, value) and self.seen[policy] > silent:
                    detections[policy] += 1
                if self.seen[policy] > longest - kept:
                    self._observe(2 * policy + 1, value)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _observe(self, window: cython.Py_ssize_t, value: cython.double) -> cython.bint:
        """Add a value to a window, and return whether there is a change."""
        changed: cython.bint = False
        if self.ticks[window] < 0:
            self._clear(window)
        self._insert(window, value)
        self.ticks[window] += 1
        if self.ticks[window] % self.clock == 0 and self.totals[window, 0] > self.grace_period:
            while self._has_cut(window):
                self._drop_oldest(window)
                changed = True
        if changed:
            self.ticks[window] = -1
        return changed

    @cython.cfunc
    @cython.exceptval(check=False)
    def _insert(self, window: cython.Py_ssize_t, value: cython.double) -> cython.void:
        """Add a bucket with one value, and merge buckets of rows that are too long."""
        width: cython.double = self.totals[window, 0] + 1.0
        difference: cython.double
        bucket: cython.Py_ssize_t = self.sizes[window, 0]
        self.sums[window, 0, bucket] = value
        self.deviations[window, 0, bucket] = 0.0
        self.sizes[window, 0] = bucket + 1
        if width > 1.0:
            difference = value - self.totals[window, 1] / (width - 1.0)
            self.totals[window, 2] += (width - 1.0) * difference * difference / width
        self.totals[window, 0] = width
        self.totals[window, 1] += value
        if bucket == self.max_buckets:
            self._merge(window)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _merge(self, window: cython.Py_ssize_t) -> cython.void:
        """Merge the two oldest buckets of each row that is too long into one of the next row."""
        row: cython.Py_ssize_t = 0
        bucket: cython.Py_ssize_t
        size: cython.double = 1.0
        first: cython.double
        second: cython.double
        difference: cython.double
        while self.sizes[window, row] > self.max_buckets:
            first = self.sums[window, row, 0]
            second = self.sums[window, row, 1]
            difference = first / size - second / size
            bucket = self.sizes[window, row + 1]
            self.sums[window, row + 1, bucket] = first + second
            self.deviations[window, row + 1, bucket] = (
                self.deviations[window, row, 0] + self.deviations[window, row, 1] + size * 0.5 * difference * difference
            )
            self.sizes[window, row + 1] = bucket + 1
            self._remove(window, row, 2)
            size *= 2.0
            row += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _remove(self, window: cython.Py_ssize_t, row: cython.Py_ssize_t, count: cython.Py_ssize_t) -> cython.void:
        """Remove the oldest buckets of a row."""
        bucket: cython.Py_ssize_t
        left: cython.Py_ssize_t = self.sizes[window, row] - count
        for bucket in range(left):
            self.sums[window, row, bucket] = self.sums[window, row, bucket + count]
            self.deviations[window, row, bucket] = self.deviations[window, row, bucket + count]
        self.sizes[window, row] = left

    @cython.cfunc
    @cython.exceptval(check=False)
    def _has_cut(self, window: cython.Py_ssize_t) -> cython.bint:
        """Return whether the means of an older and a newer part differ by more than chance explains."""
        row: cython.Py_ssize_t
        bucket: cython.Py_ssize_t
        width: cython.double = self.totals[window, 0]
        size: cython.double = 2.0 ** (self.sizes.shape[1] - 1)
        older: cython.double = 0.0
        newer: cython.double = width
        older_sum: cython.double = 0.0
        newer_sum: cython.double = self.totals[window, 1]
        harmonic: cython.double
        variance: cython.double
        if width <= 1.0:
            return False
        error: cython.double = log(2.0 * log(width) / self.delta)
        for row in range(self.sizes.shape[1] - 1, -1, -1):
            for bucket in range(self.sizes[window, row]):
                older += size
                newer -= size
                older_sum += self.sums[window, row, bucket]
                newer_sum -= self.sums[window, row, bucket]
                if newer <= 0.0 or newer < self.min_window_length:
                    return False
                if older < self.min_window_length:
                    continue
                harmonic = 1.0 / (older - self.min_window_length + 1.0) + 1.0 / (newer - self.min_window_length + 1.0)
                variance = 2.0 * harmonic * (self.totals[window, 2] / width) * error
                if variance >= 0.0 and fabs(older_sum / older - newer_sum / newer) > (
                    sqrt(variance) + 2.0 / 3.0 * error * harmonic
                ):
                    return True
            size *= 0.5
        return False

    @cython.cfunc
    @cython.exceptval(check=False)
    def _drop_oldest(self, window: cython.Py_ssize_t) -> cython.void:
        """Remove the oldest bucket from a window that has others."""
        row: cython.Py_ssize_t = self.sizes.shape[1] - 1
        while self.sizes[window, row] == 0:
            row -= 1
        size: cython.double = 2.0**row
        width: cython.double = self.totals[window, 0] - size
        total: cython.double = self.totals[window, 1] - self.sums[window, row, 0]
        difference: cython.double = self.sums[window, row, 0] / size - total / width
        self.totals[window, 0] = width
        self.totals[window, 1] = total
        self.totals[window, 2] -= self.deviations[window, row, 0] + size * width * difference * difference / (
            size + width
        )
        self._remove(window, row, 1)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _replace(self, window: cython.Py_ssize_t) -> cython.void:
        """Replace a window by the next one, which becomes empty."""
        row: cython.Py_ssize_t
        column: cython.Py_ssize_t
        bucket: cython.Py_ssize_t
        self.ticks[window] = self.ticks[window + 1]
        for column in range(3):
            self.totals[window, column] = self.totals[window + 1, column]
        for row in range(self.sizes.shape[1]):
            self.sizes[window, row] = self.sizes[window + 1, row]
            for bucket in range(self.sizes[window, row]):
                self.sums[window, row, bucket] = self.sums[window + 1, row, bucket]
                self.deviations[window, row, bucket] = self.deviations[window + 1, row, bucket]
        self._clear(window + 1)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _clear(self, window: cython.Py_ssize_t) -> cython.void:
        """Remove all values from a window."""
        row: cython.Py_ssize_t
        self.ticks[window] = 0
        self.totals[window, 0] = self.totals[window, 1] = self.totals[window, 2] = 0.0
        for row in range(self.sizes.shape[1]):
            self.sizes[window, row] = 0
