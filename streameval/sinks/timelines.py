"""Pictures of the last hours: a line with its band for a candidate, and production's line, in one frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streameval.history import History, Series
from streameval.report import Estimate
from streameval.sinks.charts import Scale

WIDTH, HEIGHT = 1000, 200  # units of the frame, which is stretched to its place on the page
CENTRAL = (5, 95)  # per cent of the band's ends that must fit; the first estimates are anywhere


@dataclass(frozen=True)
class Timeline:
    """One candidate: points of lines and of bands as SVG wants them, in pieces where nothing was known between.

    `first` and `last` are the values at both ends, `lowest` and `highest` those in between, as text.
    """

    policy: str
    lines: tuple[str, ...]
    bands: tuple[str, ...]
    production: tuple[str, ...]
    first: str
    last: str
    lowest: str
    highest: str


@dataclass(frozen=True)
class Timelines:
    """All candidates on the same axes; `seconds` is how far they reach back, `ticks` the values to write beside."""

    seconds: float
    ticks: tuple[tuple[float, str], ...]
    pictures: tuple[Timeline, ...]


def make_timelines(
    history: History, now: float, candidates: Sequence[Estimate], production: Estimate | None
) -> Timelines | None:
    """The last hours of `candidates` up to this moment; None while there is nothing to draw."""
    all_series = [_series(history, now, each) for each in candidates]
    base = None if production is None else _series(history, now, production)
    scale = _scale([*all_series, *([base] if base else [])])
    begin = history.points[0].at if history.points else now
    if scale is None or now <= begin:
        return None
    frame = _Frame(begin, now, scale)
    beside = () if base is None else tuple(frame.lines(base.at, base.value))
    pictures = tuple(
        frame.timeline(each.policy, series, beside) for each, series in zip(candidates, all_series, strict=True)
    )
    return Timelines(now - begin, tuple((100 - at, text) for at, text in scale.tick_texts()), pictures)


def _series(history: History, now: float, each: Estimate) -> Series:
    """The history of an estimate, with its present value at the end."""
    past = history.series((each.policy, each.estimator, each.average))
    ends = [np.nan if end is None else end for end in (each.value, each.lower, each.upper)]
    columns = zip((past.at, past.value, past.lower, past.upper), (now, *ends), strict=True)
    return Series(*(np.append(column, end) for column, end in columns))


def _scale(all_series: Sequence[Series]) -> Scale | None:
    ends = [_known(column) for series in all_series for column in (series.lower, series.upper, series.value)]
    shown = [value for column in ends if len(column) for value in np.percentile(column, CENTRAL)]
    return Scale.over(shown) if shown else None


@dataclass(frozen=True)
class _Frame:
    begin: float
    end: float
    scale: Scale

    def timeline(self, policy: str, series: Series, production: tuple[str, ...]) -> Timeline:
        known = _known(series.value)
        return Timeline(
            policy,
            tuple(self.lines(series.at, series.value)),
            tuple(self.bands(series)),
            production,
            *(self.scale.text(float(value)) for value in (known[0], known[-1], known.min(), known.max()))
            if len(known)
            else ("–",) * 4,
        )

    def lines(self, at: NDArray[np.float64], value: NDArray[np.float64]) -> Iterator[str]:
        for piece in _pieces(np.isfinite(value)):
            yield self._points(at[piece], value[piece])

    def bands(self, series: Series) -> Iterator[str]:
        for piece in _pieces(np.isfinite(series.lower) & np.isfinite(series.upper)):
            at, lower, upper = series.at[piece], series.lower[piece], series.upper[piece]
            yield f"{self._points(at, upper)} {self._points(at[::-1], lower[::-1])}"

    def _points(self, at: NDArray[np.float64], value: NDArray[np.float64]) -> str:
        x = np.rint((at - self.begin) / (self.end - self.begin) * WIDTH).astype(int)
        share = (value - self.scale.low) / (self.scale.high - self.scale.low)
        y = np.rint(HEIGHT * (1 - np.clip(share, 0.0, 1.0))).astype(int)
        return " ".join(f"{across},{down}" for across, down in zip(x.tolist(), y.tolist(), strict=True))


def _pieces(known: NDArray[np.bool_]) -> Iterator[slice]:
    """The stretches of two or more moments at which something is known."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], known, [False]]).astype(int)))
    for begin, end in edges.reshape(-1, 2).tolist():
        if end - begin > 1:
            yield slice(begin, end)


def _known(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values[np.isfinite(values)]
