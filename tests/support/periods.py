"""Simulate the lifts of candidates by the hour, and follow them with the table of whole periods.

The unit of a lift is the standard error of its mean over one day of usual traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streameval.ope.promotion.rules import phases
from streameval.ope.promotion.rules.phases import Bucket, Limits, Period

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
EVENTS = 60_000.0
"""Events of a usual day."""
DAY, WEEK = Period(86_400.0, 24, 14.0, 2), Period(604_800.0, 168, 8.0, 1)
HOURS = np.arange(24)
TRAFFIC = 1.0 + 0.6 * np.sin(2 * np.pi * (HOURS - 14) / 24)
EVENING = np.where((HOURS >= 18) & (HOURS < 22), 1.0, 0.0)
SINE = np.sin(2 * np.pi * (HOURS - 12) / 24)


def balanced(profile: Array, traffic: Array = TRAFFIC) -> Array:
    """Return a profile without its mean over the events of a period."""
    return profile - (profile * traffic).sum() / traffic.sum()


@dataclass(frozen=True)
class Stream:
    """Hold the lift of candidates and the traffic, by the hour.

    Attributes:
        lift: in each hour [hours, ..., candidates]
        traffic: relative to the mean over a usual day [hours]
        first: the hour of the day, or the week, at which the stream starts
        correlation: of the noise of candidates
    """

    lift: Array
    traffic: Array
    first: int = 0
    correlation: float = 0.0

    def buckets(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """Return the number of events [hours] and the total of the lift [hours, ..., candidates]."""
        weight = np.round(EVENTS / 24 * self.traffic)
        shape = self.lift.shape
        shared = rng.standard_normal((*shape[:-1], 1)) * np.sqrt(self.correlation)
        noise = shared + rng.standard_normal(shape) * np.sqrt(1 - self.correlation)
        scale = np.sqrt(EVENTS * weight).reshape(-1, *[1] * (self.lift.ndim - 1))
        return weight, weight.reshape(scale.shape) * self.lift + scale * noise


@dataclass(frozen=True)
class Run:
    """Hold the decisions after each hour [hours, ..., candidates]."""

    promotable: Mask
    worse: Mask
    lift: Array
    error: Array
    alarm: Array


def limits(candidates: int, margin: float = 0.0) -> Limits:
    """Return limits at 95 % for this many candidates."""
    return Limits(1.0, margin, min(margin, 0.0), candidates)


def follow(
    stream: Stream, rng: np.random.Generator, periods: Sequence[Period] = (DAY,), candidates: int | None = None
) -> Run:
    """Follow a stream with the tables of some periods. The longest decides as soon as it knows the lift."""
    weights, totals = stream.buckets(rng)
    shape = stream.lift.shape[1:]
    noise = np.full(shape, EVENTS)
    bounds = limits(shape[-1] if candidates is None else candidates)
    tables = [phases.start(shape, period.phases) for period in periods]
    columns: dict[str, list[Array]] = {name: [] for name in Run.__dataclass_fields__}
    for hour, (weight, total) in enumerate(zip(weights, totals, strict=True), start=stream.first):
        verdicts = []
        for index, period in enumerate(periods):
            own = bounds._replace(differing=tables[0].excess[..., 0]) if index else bounds
            phase = hour % period.phases
            if weight:
                count = np.full(shape, weight)
                tables[index] = phases.close(
                    tables[index], phase, Bucket(count, count, total, noise, 0 * noise), period, own
                )
            else:
                tables[index] = phases.skip(tables[index], phase, 1, period, own)
            verdicts.append(phases.verdict(tables[index], bounds))
        decided = verdicts[0]
        for other in verdicts[1:]:
            decided = phases.preferred(decided, other)
        columns["promotable"].append(decided.promotable)
        columns["worse"].append(decided.worse)
        columns["lift"].append(decided.lift)
        columns["error"].append(decided.error)
        columns["alarm"].append(tables[0].alarm)
    return Run(**{name: np.array(column) for name, column in columns.items()})


def first(mask: Mask) -> Array:
    """Return the day of the first hour at which a mask is true, infinite if never [..., candidates]."""
    return np.where(mask.any(axis=0), (np.argmax(mask, axis=0) + 1) / 24, np.inf)


def later(mask: Mask) -> Array:
    """Return the share of the hours after the first true one that are true, NaN if there is none."""
    started = np.logical_or.accumulate(mask, axis=0)
    with np.errstate(invalid="ignore"):
        return (mask & started).sum(axis=0) / started.sum(axis=0)
