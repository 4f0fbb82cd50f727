"""What a lower confidence sequence is: sums that are added up, and the evidence they are against a mean."""

from __future__ import annotations

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask

COUNT, TOTAL = 0, 1
"""The first two sums of every row: how many observations were present, and what they add up to."""

Places = NDArray[np.int64]


class WealthProcess(Protocol):
    """A lower confidence sequence for the running mean of observations `X >= 0` whose means lie in [0, 1], or near it.

    It keeps `width` sums a row; the first two are the count and the total. Sums of consecutive stretches add up to
    those of both, wherever the centres came from, as long as each centre was known before its observation.
    """

    @property
    def width(self) -> int:
        """How many sums are kept of each row."""
        ...

    def sums(self, observed: Array, centre: Array, present: Mask | None) -> Array:
        """The sums [..., width] of observations [..., n] around centres in [0, 1]; absent ones are 0."""
        ...

    order: ClassVar[int]
    """The highest power of small observations that is asked for."""
    limit: ClassVar[float]
    """Observations above it are not small."""

    def costs(self, squares: Array, observed: Array, centre: Array, row: Places) -> Array:
        """The sums but for the count and the total, [..., width - 2], from sums over whole blocks.

        `squares` [..., order - 1]: sums of the second to the last power of deviations from the centre of the block,
        over small observations. `observed`, `centre`, `row`: other ones, and to which of the rows they belong.
        """
        ...

    def log_wealth(self, sums: Array, mean: Array) -> Array:
        """Logarithm of the evidence that the running mean is above `mean`: decreasing in it.

        Against the true running mean it ever reaches `ln(1 / error)` with probability at most `error`.
        """
        ...

    def lower(self, sums: Array, error: Array) -> Array:
        """The mean against which the evidence is `1 / error`, NaN without observations."""
        ...


def running_centre(observed: Array, present: Mask | None, before: Array) -> tuple[Array, Array]:
    """Of every observation [rows, n] a centre from what came before it: `min(1, (S + 1/2) / (count + 1))`; and the
    count and total [rows, 2] after them all.

    Sums run from event to event, so that the same stream gives the same bits however it is cut.

    >>> running_centre(np.array([[0.0, 1.0, 4.0]]), None, np.zeros((1, 2)))
    (array([[0.5 , 0.25, 0.5 ]]), array([[3., 5.]]))
    """
    rows, events = observed.shape
    path = np.empty((rows, events + 1))
    path[:, 0] = before[:, TOTAL]
    path[:, 1:] = observed
    np.cumsum(path, axis=1, out=path)
    counts = before[:, COUNT, None]
    if present is not None:
        counts = np.cumsum(np.concatenate([counts, present], axis=1), axis=1)
    else:
        counts = (counts[:1] if (counts == counts[:1]).all() else counts) + np.arange(events + 1.0)
    after = np.stack([np.broadcast_to(counts[:, -1], rows), path[:, -1]], axis=1)
    centre = path[:, :-1]
    centre += 0.5
    centre /= counts[:, :-1] + 1.0
    return np.minimum(centre, 1.0, out=centre), after
