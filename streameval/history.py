"""The last hours in a small ring: estimates at some hundred moments, which grow rarer as they reach farther back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from streameval.report import Report

SPAN = 12 * 3600.0  # seconds
MOST_POINTS = 240
SHORTEST_SPACING = 0.5  # seconds: at first every Report is a point, so that a new daemon shows something at once

Label: TypeAlias = tuple[str, str, str]
"""Policy, estimator, average."""


@dataclass(frozen=True, slots=True)
class Point:
    """All estimates at one moment: `numbers[places[label]]` are value, lower and upper, NaN where not known."""

    at: float
    places: dict[Label, int]
    numbers: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Series:
    """One estimate over time, oldest first; times in epoch seconds, NaN where nothing was known."""

    at: NDArray[np.float64]
    value: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class History:
    """Points that lie at least `spacing` seconds apart, which doubles whenever there are too many.

    At the end they lie 256 seconds apart and reach `SPAN` back, in `24 bytes x points x estimates`: some megabytes for
    hundreds of estimates.

    >>> len(History().points)
    0
    """

    points: tuple[Point, ...] = ()
    spacing: float = SHORTEST_SPACING

    def after(self, at: float, report: Report | None) -> History:
        """This history and a Report made at `at` (epoch seconds), if the last point is long enough ago.

        A clock that was set back takes the points with it that now lie in the future.
        """
        if report is None:
            return self
        last = self.points[-1] if self.points else None
        if last is not None and 0 <= at - last.at < self.spacing:
            return self
        kept = [point for point in self.points if at - SPAN <= point.at <= at]
        points, spacing = (*kept, _point(at, report, last)), self.spacing
        while len(points) > MOST_POINTS:
            spacing *= 2
            points = tuple(_spaced(points, spacing))
        return History(points, spacing)

    def series(self, label: Label) -> Series:
        """What is remembered of one estimate."""
        numbers = np.full((len(self.points), 3), np.nan)
        for row, point in enumerate(self.points):
            place = point.places.get(label)
            if place is not None:
                numbers[row] = point.numbers[place]
        return Series(np.array([point.at for point in self.points]), *numbers.T)


NO_HISTORY = History()


def _spaced(points: Iterable[Point], spacing: float) -> Iterator[Point]:
    last = -np.inf
    for point in points:
        if point.at - last >= spacing:
            last = point.at
            yield point


def _point(at: float, report: Report, last: Point | None) -> Point:
    places = {(each.policy, each.estimator, each.average): row for row, each in enumerate(report.estimates)}
    if last is not None and last.places == places:
        places = last.places  # hundreds of points share one
    numbers = [(each.value, each.lower, each.upper) for each in report.estimates]
    return Point(at, places, np.array(numbers, dtype=np.float64).reshape(-1, 3))
