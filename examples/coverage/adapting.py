"""Recover which events an adaptive average covers at each look of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from readings import BLOCK
from worlds import Floats

from streameval.ope.core import Decay, Reading

Kernel = Callable[[Floats], Floats]
"""Averages a quantity per event [columns, events] over the kernel of an average, and returns [columns, looks]."""


def window_kernel(readings: Sequence[Reading], every: int) -> Kernel:
    """Return the kernel of an adaptive window at the looks.

    Args:
        readings: Readings at the looks.
        every: Blocks between two looks.
    """
    events = np.stack([reading.details["window_events"] for reading in readings], axis=1).astype(np.int64)
    ends = np.arange(1, len(readings) + 1) * every * BLOCK

    def kernel(values: Floats) -> Floats:
        so_far = np.concatenate([np.zeros((len(values), 1)), np.cumsum(values, axis=1)], axis=1)
        count = events[-len(values) :]
        before = np.take_along_axis(so_far, ends - count, axis=1)
        return np.asarray((so_far[:, ends] - before) / count)

    return kernel


def decay_kernel(readings: Sequence[Reading], every: int) -> Kernel:
    """Return the kernel of an adaptive decay at the looks.

    Args:
        readings: Readings after every block.
        every: Blocks between two looks.
    """
    chosen = np.stack([reading.details["alpha"] for reading in readings], axis=1)
    factors = np.concatenate([np.full_like(chosen[:, :1], Decay().decay), chosen[:, :-1]], axis=1) ** BLOCK

    def kernel(values: Floats) -> Floats:
        means = values.reshape(len(values), -1, BLOCK).mean(axis=2)
        sums, path = np.zeros((2, len(values))), []
        for mean, factor in zip(means.T, factors[-len(values) :].T, strict=True):
            sums = sums * factor + (1 - factor) * np.array([mean, np.ones_like(mean)])
            path.append(sums[0] / sums[1])
        return np.array(path[every - 1 :: every]).T

    return kernel
