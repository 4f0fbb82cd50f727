"""Compare candidates over whole periods: a table with a row of sums for each hour of the day, or of the week.

A period, such as a day, has phases, such as its hours. A bucket is one phase of one period. For each phase the table
keeps the lift that the phase used to have, in sums that fade by `1 - 1 / m` from period to period. When a bucket with n
events and the mean lift y closes, with the mean x of its phase before and the variance s2 of one event,

    e = y - x,   u = s2 Q / N^2 + s2 / n
    N, Q, W, W2, S  <-  lam N + n,  lam^2 Q + n,  lam W + 1,  lam^2 W2 + 1,  lam S + n y

An empty bucket changes no sum, so gaps, quiet hours and late starts need no special case. With the share of traffic
`f ~ N / W` of each phase, the lift of a whole period is `L = sum f S / N`, at any time of the day. Its sampling
variance is `v = s2 sum f^2 Q / N^2`, and `om = sum f W2 / W^2` is the sum of the squared weights of periods.

Days differ by more than sampling. At the end of each period, with `R = sum n e / M`, `M = sum n` and the variance `vv`
of R, the score `Z = R / sqrt(vv)` shows by how much: `xF`, the mean of `Z^2 - 1`, is the excess over chance, and `xC`,
the mean of `Z Z_before`, is the part of it that persists, a level that moves. Both are means over periods and
candidates, for which `k` counts the periods. Days that differ at random average out, a moving level does not:

    e^2 = v + (q - l) om + l,   q = xF vv,   l = xC vv

A week has no score before its second one ends. Until then its own days tell how much weeks differ, which is all that
one week knows. With the variance D of the means of the days of a week, around those of Monday to Friday and of Saturday
and Sunday, less sampling, the mean of seven of them has the variance `D sum f^2`, with the share f of each day. It
counts as one more week, `xF = (F + x) / (k + 1)` with `x = D sum f^2 / vv`, so it fades as weeks are scored.

Changes for the worse show in the mean residual r of the last buckets, over an eighth of the period to the whole of it,
in units of its standard error: `z = r / sqrt(variance of r + q)`. A large one is an alarm: the whole profile moves by
r, and its sums lose the weight that an estimate from these buckets alone would not have. Hours and days of a week
differ by more than weeks do. If a table of days is at hand, its q takes the place of a smaller one of the week.

All is vectorised over candidates and has no clock: buckets close in the order in which `close` is called.

Source: Holt & Smith, Post stratification, JRSS A 1979, for the weighted mean of phases. The constants were found by
simulation (tests/statistical/test_periods.py). The rule is calibrated and not proven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from msgspec import Struct, structs

from streameval.common.arrays import Array, Mask

ENTERING, STAYING = 3.0, 0.9
"""Multiples of the error that a lift must exceed to be proven, for one candidate, and to stay so, at 95 %.

With K candidates the first is `sqrt(3.0^2 + 2 ln K)`: the most that K errors reach by chance grows like that, however
they depend on each other. Looks at all hours of 30 days cost 3.0 in place of 1.645.
"""
DOWN, ALARM = 3.5, 4.0
"""Multiples of its error at which a mean residual counts as a change for the worse, and as a new level."""
SCORE_MEMORY = 14.0
"""Periods after which scores fade."""
MAX_SCORE = 5.0
"""Largest score that counts, so that one incident does not pass for days that differ."""
COVERED = 0.95
"""Share of the phases that must have had events before the lift of a whole period is known."""
ENOUGH = 0.5
"""Share of the events of some buckets that must have residuals."""
PERIODS_BEFORE_RISE = 3.0
"""Scored periods, faded, before a change for the better can move the level."""
DAY_PHASES, WEEK = 24, 604_800.0
"""Phases of a day in the table of a week, and the seconds of a week."""
KINDS_OF_DAYS = ((4, 5, 6, 0, 1), (2, 3))
"""Monday to Friday, and Saturday and Sunday, in days from the start of a week of 1970, a Thursday."""

N, Q, W, W2, S = range(5)
"""Rows of `Table.sums`."""
EVENTS, COUNTED, RESIDUAL, VARIANCE, BEFORE = range(5)
"""Rows of `Table.buckets`."""
K, F, C, SCORE = range(4)
"""Rows of `Table.scores`."""


@dataclass(frozen=True)
class Period:
    """Divide a period into phases.

    Attributes:
        seconds: the length of the period
        phases: the number of phases
        memory: the number of periods m that sums remember
        least: the number of periods before the lift of a whole period is known
    """

    seconds: float
    phases: int
    memory: float
    least: int

    @property
    def width(self) -> float:
        """Return the seconds of a phase."""
        return self.seconds / self.phases

    @cached_property
    def spans(self) -> tuple[int, ...]:
        """Return the numbers of buckets over which changes are looked for.

        >>> Period(86_400.0, 24, 14.0, 2).spans, Period(604_800.0, 168, 8.0, 1).spans
        ((3, 6, 12, 24), (6, 12, 24, 84, 168))
        """
        parts = (8, 4, 2, 1) if self.phases <= 24 else (28, 14, 7, 2, 1)
        return tuple(max(1, self.phases // part) for part in parts)


class Limits(NamedTuple):
    """Hold the limits of decisions.

    Attributes:
        scale: the two-sided normal quantile of the confidence over 1.96
        margin: the lift that a candidate must exceed
        floor: the lift below which a candidate is worse
        candidates: the number K of candidates ever added
        differing: the variance q of days that differ, from a table of days beside the one of weeks [..., candidates]
    """

    scale: float
    margin: float
    floor: float
    candidates: int
    differing: Array | None = None

    @property
    def entering(self) -> float:
        """Return the multiple of the error at which a lift is proven.

        >>> [round(Limits(1.0, 0.0, 0.0, candidates).entering, 2) for candidates in (1, 5, 20)]
        [3.0, 3.5, 3.87]
        """
        return self.scale * self._among_all(ENTERING)

    @property
    def staying(self) -> float:
        """Return the multiple of the error at which a proven lift stays so."""
        return self.scale * STAYING

    @property
    def down(self) -> float:
        """Return the score of a change for the worse."""
        return self._among_all(DOWN)

    @property
    def alarm(self) -> float:
        """Return the score of a new level."""
        return self._among_all(ALARM)

    def _among_all(self, multiple: float) -> float:
        return math.sqrt(multiple**2 + 2.0 * math.log(max(self.candidates, 1)))


class Bucket(NamedTuple):
    """Hold the events of a bucket [..., candidates].

    Attributes:
        weight: the sum of the averaging weights, the number n of events if all are 1
        square: the sum of their squares
        total: the weighted sum of lifts
        noise: the variance s2 of one event's lift
        shared: the variance of an error that all buckets share, which adds to e^2
    """

    weight: Array
    square: Array
    total: Array
    noise: Array
    shared: Array


class Table(Struct, frozen=True, eq=False):
    """Hold the table of one period [..., candidates, ...].

    Attributes:
        sums: N, Q, W, W2 and S of each phase [5, phases]
        buckets: of the last bucket of each phase, the weight of its events, the same if it has a residual and
            otherwise 0, the residual, its variance, and the mean x before it [5, phases]
        scores: k, the sums F and C, and the last score
        age: the number of buckets since the start
        noise: the variance of one event's lift, and of an error that all buckets share [2]
        excess: q, the variance of days that differ, and l, its part that persists [2]
        level: the lift of a whole period L and its error e, NaN until they are known [2]
        dip: the mean residual of the last buckets and their number, 0 unless it counts as a change for the worse [2]
        alarm: the age at the last alarm, NaN before the first
        entered: whether the lift is proven to exceed the margin
        worse: whether it is proven to be below the floor
    """

    sums: Array
    buckets: Array
    scores: Array
    age: Array
    noise: Array
    excess: Array
    level: Array
    dip: Array
    alarm: Array
    entered: Mask
    worse: Mask


class Verdict(NamedTuple):
    """Hold the verdict of a table, and the numbers that explain it [..., candidates].

    Attributes:
        lift: the lift of a whole period, NaN until it is known
        error: its standard error e
        entered: whether it is proven to exceed the margin
        worse: whether it is proven to be below the floor
        hurt: whether a change for the worse suspends it
    """

    lift: Array
    error: Array
    entered: Mask
    worse: Mask
    hurt: Mask

    @property
    def promotable(self) -> Mask:
        """Return whether the lift is proven, without a change for the worse at present."""
        return self.entered & ~self.hurt


class Profile(NamedTuple):
    """Hold the lift in each part of a period [..., candidates, parts]. NaN is unknown.

    Attributes:
        lift: the lift that the part used to have
        error: its standard error, from sampling and from periods that differ
        share: the share of the traffic
        latest: the lift in the newest buckets
    """

    lift: Array
    error: Array
    share: Array
    latest: Array


def preferred(shorter: Verdict, longer: Verdict) -> Verdict:
    """Combine the verdicts of a period and of a longer one, which decides as soon as it knows its lift.

    A change for the worse in either of them suspends a candidate, and a candidate is worse if either says so.
    """
    is_known = ~np.isnan(longer.lift)
    lift, error, entered = (
        np.where(is_known, getattr(longer, name), getattr(shorter, name)) for name in ("lift", "error", "entered")
    )
    return Verdict(lift, error, entered, shorter.worse | longer.worse, shorter.hurt | longer.hurt)


def start(shape: tuple[int, ...], phases: int) -> Table:
    """Start before the first event. `shape`: of the axes of streams and candidates."""
    unknown, never = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    return Table(
        sums=np.zeros((*shape, 5, phases)),
        buckets=np.zeros((*shape, 5, phases)),
        scores=np.zeros((*shape, 4)),
        age=np.zeros(shape),
        noise=np.zeros((*shape, 2)),
        excess=np.zeros((*shape, 2)),
        level=np.full((*shape, 2), np.nan),
        dip=np.zeros((*shape, 2)),
        alarm=unknown,
        entered=never,
        worse=never.copy(),
    )


def close(table: Table, phase: int, bucket: Bucket, period: Period, limits: Limits) -> Table:
    """Return the table after a bucket has ended, with new decisions."""
    weight, square, total, noise, shared = bucket
    noises = np.where(weight[..., None] > 0, np.stack([noise, shared], axis=-1), table.noise)
    sums, buckets = table.sums.copy(), table.buckets.copy()
    own = sums[..., phase]
    has_events, had_events = weight > 0, own[..., N] > 0
    is_compared = has_events & had_events
    mean = _quotient(total, weight)
    before = np.where(had_events, _quotient(own[..., S], own[..., N]), mean)
    variance = noise * (_quotient(own[..., Q], own[..., N] ** 2) + _quotient(square, weight**2))
    buckets[..., EVENTS, phase] = weight
    buckets[..., COUNTED, phase] = np.where(is_compared, weight, 0.0)
    buckets[..., RESIDUAL, phase] = np.where(is_compared, mean - before, 0.0)
    buckets[..., VARIANCE, phase] = np.where(is_compared, variance, 0.0)
    buckets[..., BEFORE, phase] = np.where(is_compared, before, 0.0)
    fading = 1.0 - 1.0 / period.memory
    factors = np.array([fading, fading**2, fading, fading**2, fading])
    added = np.stack([weight, square, np.ones_like(weight), np.ones_like(weight), total], axis=-1)
    sums[..., phase] = np.where(has_events[..., None], factors * own + added, own)
    closed = structs.replace(table, sums=sums, buckets=buckets, age=table.age + 1.0, noise=noises)
    return _decide(_end_periods(closed, period), phase, period, limits)


def skip(table: Table, phase: int, count: int, period: Period, limits: Limits) -> Table:
    """Return the table after some empty buckets in a row, with decisions after the last of them.

    Args:
        table: the table before
        phase: the phase of the first of them
        count: their number
        period: the period
        limits: the limits of decisions
    """
    buckets = table.buckets.copy()
    skipped = structs.replace(table, buckets=buckets)
    single = min(count, 2 * period.phases)  # after that the table has no events and no last score
    for index in range(single):
        buckets[..., (phase + index) % period.phases] = 0.0
        skipped = _end_periods(structs.replace(skipped, age=skipped.age + 1.0), period)
    skipped = structs.replace(skipped, age=skipped.age + (count - single))
    return _decide(skipped, (phase + count - 1) % period.phases, period, limits)


def add_late(table: Table, phase: int, bucket: Bucket) -> Table:
    """Return the table with events that came after their bucket had ended. They have no residual."""
    weight, square, total, *_ = bucket
    sums = table.sums.copy()
    own = sums[..., phase]
    is_first = (own[..., W] == 0) & (weight > 0)
    own = own + np.stack([weight, square, is_first, is_first, total], axis=-1)
    sums[..., phase] = own
    return structs.replace(table, sums=sums)


def verdict(table: Table, limits: Limits) -> Verdict:
    """Return the decisions after the last bucket."""
    hurt = hurts(table, limits)
    return Verdict(table.level[..., 0], table.level[..., 1], table.entered, table.worse, hurt)


def hurts(table: Table, limits: Limits) -> Mask:
    """Return whether the lift of a whole period would not pass if it went on like the last buckets."""
    lift, error = table.level[..., 0], table.level[..., 1]
    residual, length = table.dip[..., 0], table.dip[..., 1]
    return np.asarray((length > 0) & ~(lift + residual - limits.staying * error > limits.margin))


def is_quarantined(table: Table, period: Period) -> Mask:
    """Return whether the last alarm is less than a period ago."""
    return np.asarray(table.age - table.alarm < period.phases)


def _end_periods(table: Table, period: Period) -> Table:
    """Score the period of the candidates that have finished one.

    A period counts if half of its events have residuals and it had no alarm. Otherwise the next one has no neighbour.
    """
    ends = table.age % period.phases == 0
    if not ends.any():
        return table
    events, counted, residual, variances, _ = _rows(table.buckets)
    total = counted.sum(axis=-1)
    share = _quotient(counted, total[..., None])
    mean, variance = (share * residual).sum(axis=-1), (share**2 * variances).sum(axis=-1)
    is_sound = ends & (total > 0) & (total >= ENOUGH * events.sum(axis=-1)) & ~is_quarantined(table, period)
    is_sound &= variance > 0
    score = np.clip(_quotient(mean, np.sqrt(variance)), -MAX_SCORE, MAX_SCORE)
    number, squares, products, before = np.moveaxis(table.scores, -1, 0)
    fading = 1.0 - 1.0 / SCORE_MEMORY
    products_now = fading * products + score * before + 1.0 / (2.0 * period.memory)
    scored = np.stack([fading * number + 1.0, fading * squares + score**2 - 1.0, products_now, score], axis=-1)
    unscored = np.stack([number, squares, products, np.where(ends, 0.0, before)], axis=-1)
    scores = np.where(is_sound[..., None], scored, unscored)
    is_first, days = np.zeros(ends.shape, dtype=bool), np.zeros(ends.shape)
    if period.seconds == WEEK:
        is_first = ends & (scores[..., K] == 0)
        variance = np.where(is_first, level(table)[1], variance)
        days = np.where(ends, _quotient(_differing_days(table), variance), 0.0)
    is_new = (is_sound | is_first)[..., None]
    excess = np.where(is_new, variance[..., None] * _excess(scores, days), table.excess)
    return structs.replace(table, scores=scores, excess=excess)


def _differing_days(table: Table) -> Array:
    """Return the variance of the mean of a week that its days show, 0 if a day has no events. It can be negative.

    The usual lift of each hour is subtracted, so that days with gaps do not differ by their other hours alone.
    """
    columns = table.sums.reshape(*table.sums.shape[:-1], -1, DAY_PHASES)
    weight, square, periods, _, total = np.moveaxis(columns, -3, 0)
    traffic, mean = _quotient(weight, periods), _quotient(total, weight)
    hours = _quotient((traffic * mean).sum(axis=-2), traffic.sum(axis=-2))
    own = traffic.sum(axis=-1)
    means = _quotient((traffic * (mean - hours[..., None, :])).sum(axis=-1), own)
    sampling = table.noise[..., :1] * _quotient((traffic**2 * _quotient(square, weight**2)).sum(axis=-1), own**2)
    kinds = [np.array(days) for days in KINDS_OF_DAYS]
    found = [means[..., days].var(axis=-1, ddof=1) - sampling[..., days].mean(axis=-1) for days in kinds]
    variance = np.average(found, axis=0, weights=[len(days) - 1 for days in kinds])
    share = _quotient(own, own.sum(axis=-1, keepdims=True))
    return np.where((own > 0).all(axis=-1), variance * (share**2).sum(axis=-1), 0.0)


def _excess(scores: Array, days: Array) -> Array:
    """Return xF and xC, over all candidates that have been scored [..., 1, 2].

    Args:
        scores: the scores [..., candidates, 4]
        days: the excess that the days of a week show, 0 if unknown [..., candidates]
    """
    is_known = scores[..., K] > 0
    candidates = is_known.sum(axis=-1)
    totals = np.where(is_known[..., None], scores, 0.0).sum(axis=-2)
    number, squares, products = np.moveaxis(totals[..., :SCORE] / np.maximum(candidates, 1)[..., None], -1, 0)
    more = days.sum(axis=-1) / np.maximum(np.count_nonzero(days, axis=-1), 1)
    differing = np.maximum(0.0, (squares + more) / (number + 1.0))
    chance = np.sqrt(number / np.maximum(candidates, 1))
    moving = np.clip((products - chance) / (number + 3.0), 0.0, differing)
    return np.stack([differing, moving], axis=-1)[..., None, :]


def _decide(table: Table, phase: int, period: Period, limits: Limits) -> Table:
    """Return the table with the level, the changes and the decisions at the end of a bucket of this phase."""
    residual, length, score, variance, is_alarm = _changes(table, phase, period, limits)
    if is_alarm.any():
        table = _move(table, phase, residual, length, variance, is_alarm)
    is_down = (score < -limits.down) & ~is_alarm
    dip = np.where(is_down[..., None], np.stack([residual, length], axis=-1), 0.0)
    lift, sampling, overlap = level(table)
    differing, moving = table.excess[..., 0], table.excess[..., 1]
    error = np.sqrt(sampling + (differing - moving) * overlap + moving + table.noise[..., 1])
    share = np.count_nonzero(table.sums[..., N, :] > 0, axis=-1) / period.phases
    is_known = (table.age >= period.least * period.phases) & (share >= COVERED)
    is_known |= (table.age >= (period.least + 1) * period.phases) & (share > 0)
    lift, error = np.where(is_known, lift, np.nan), np.where(is_known, error, np.nan)
    may_start = ~is_quarantined(table, period)
    enters = (lift - limits.entering * error > limits.margin) & ~is_down & may_start
    sinks = (lift + limits.entering * error < limits.floor) & may_start
    stays, stays_worse = lift - limits.staying * error > limits.margin, lift + limits.staying * error < limits.floor
    return structs.replace(
        table,
        level=np.stack([lift, error], axis=-1),
        dip=dip,
        entered=enters | (table.entered & stays),
        worse=sinks | (table.worse & stays_worse),
    )


def level(table: Table) -> tuple[Array, Array, Array]:
    """Return the lift of a whole period, its sampling variance, and the sum of the squared weights of periods.

    They are 0 without events.
    """
    weight, square, periods, periods_square, total = _rows(table.sums)
    traffic = _quotient(weight, periods)
    share = _quotient(traffic, traffic.sum(axis=-1, keepdims=True))
    lift = (share * _quotient(total, weight)).sum(axis=-1)
    variance = table.noise[..., 0] * (share**2 * _quotient(square, weight**2)).sum(axis=-1)
    return lift, variance, (share * _quotient(periods_square, periods**2)).sum(axis=-1)


def profile(table: Table, groups: int, per_group: int, *, by_group: bool = True) -> Profile:
    """Return the lift in each part of the period, for `groups` times `per_group` phases.

    Args:
        table: the table
        groups: the number of groups of phases in a row, such as the days of a week
        per_group: the number of phases in each of them
        by_group: whether a part is a group. Otherwise it is a position in all groups, such as an hour of all days.
    """
    weight, square, periods, periods_square, total = _rows(table.sums)
    events, _, residual, _, before = _rows(table.buckets)
    mean = _quotient(total, weight)
    is_first = (before == 0) & (residual == 0)
    latest = events * np.where(is_first, mean, before + residual)
    traffic = _quotient(weight, periods)
    sampling = table.noise[..., :1] * traffic**2 * _quotient(square, weight**2)
    columns = np.stack([traffic, traffic * mean, sampling, traffic * _quotient(periods_square, periods**2)])
    columns = np.concatenate([columns, [events, latest]])
    columns = columns.reshape(*columns.shape[:-1], groups, per_group).sum(axis=-1 if by_group else -2)
    traffic, lifts, sampling, overlap, events, latest = columns
    differing, moving = table.excess[..., :1], table.excess[..., 1:]
    variance = _quotient(sampling, traffic**2) + (differing - moving) * _quotient(overlap, traffic)
    error = np.sqrt(variance + moving + table.noise[..., 1:])
    return Profile(
        lift=np.where(traffic > 0, _quotient(lifts, traffic), np.nan),
        error=np.where(traffic > 0, error, np.nan),
        share=_quotient(traffic, np.broadcast_to(traffic.sum(axis=-1, keepdims=True), traffic.shape)),
        latest=np.where(events > 0, _quotient(latest, events), np.nan),
    )


def _changes(table: Table, phase: int, period: Period, limits: Limits) -> tuple[Array, Array, Array, Array, Mask]:
    """Return the mean residual of the span with the largest score, its length, score and variance, and alarms.

    Of changes for the better only the whole period makes an alarm: with all spans, days that differ would make some.
    """
    spans, newest_first = np.array(period.spans), (phase - np.arange(period.phases)) % period.phases
    events, counted, residual, variances, _ = _rows(table.buckets[..., newest_first])
    columns = np.stack([events, counted, counted * residual, counted**2 * variances])
    events, counted, residuals, variances = np.cumsum(columns, axis=-1)[..., spans - 1]
    is_sound = (counted > 0) & (counted >= ENOUGH * events)
    excess = table.excess[..., :1]
    if limits.differing is not None:
        excess = np.maximum(excess, limits.differing[..., None] * np.minimum(1.0, DAY_PHASES / spans))
    means, variances = _quotient(residuals, counted), _quotient(variances, counted**2) + excess
    is_sound &= variances > 0
    scores = np.where(is_sound, _quotient(means, np.sqrt(variances)), 0.0)
    largest = np.argmax(np.abs(scores), axis=-1)[..., None]
    falls = np.take_along_axis(scores, largest, axis=-1)[..., 0] < -limits.alarm
    rises = ~falls & (scores[..., -1] > limits.alarm) & (table.scores[..., K] >= PERIODS_BEFORE_RISE)
    largest = np.where(rises[..., None], len(spans) - 1, largest)
    mean, score, variance = (
        np.take_along_axis(column, largest, axis=-1)[..., 0] for column in (means, scores, variances)
    )
    return mean, spans[largest[..., 0]], score, variance, falls | rises


def _move(table: Table, phase: int, shift: Array, length: Array, variance: Array, moved: Mask) -> Table:
    """Move the level of some candidates by the mean residual of their last buckets, and forget.

    Inside of these buckets the profile is the one before them. The sums keep the share of their weight that gives the
    new level the variance of the residual. No bucket has a residual any more.
    """
    phases = table.sums.shape[-1]
    ages = (phase - np.arange(phases)) % phases
    inside = (ages < length[..., None]) & (table.buckets[..., COUNTED, :] > 0)
    profile = np.where(inside, table.buckets[..., BEFORE, :], _quotient(table.sums[..., S, :], table.sums[..., N, :]))
    _, sampling, _ = level(table)
    kept = np.where(moved & (sampling > 0), np.minimum(1.0, _quotient(sampling, variance)), 1.0)
    sums = table.sums * kept[..., None, None]
    sums[..., S, :] = np.where(moved[..., None], sums[..., N, :] * (profile + shift[..., None]), table.sums[..., S, :])
    buckets = table.buckets.copy()
    buckets[..., COUNTED, :] *= ~moved[..., None]
    return structs.replace(table, sums=sums, buckets=buckets, alarm=np.where(moved, table.age, table.alarm))


def _rows(columns: Array) -> list[Array]:
    """Return the rows of a table, [..., phases] each."""
    return [columns[..., row, :] for row in range(columns.shape[-2])]


def _quotient(numerator: Array, denominator: Array) -> Array:
    """Return a quotient in the shape of the numerator, 0 if the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator != 0)
