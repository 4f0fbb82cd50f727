"""Follow the season of values: their profile over the hours of a day or a week.

A bucket is one phase of one period. For each component and each phase, sums of the weights of events N, of their
squares Q and of the weighted values S fade by `1 - 1 / m` when a new bucket of the phase has its first event. An empty
bucket changes nothing. At the end of each period, with the variance s2 of an event, harmonics c of the period are
fitted to the means S / N by least squares, weighted by `N^2 / (s2 Q)`. With their covariance V,

    chi_j = c_j' V_j^-1 c_j     for harmonic j of J, kept if above 9.2, times 1 - 2 / chi_j

Unless one of them exceeds `2 ln(1000 J)`, none is kept. The profile is `p = X c` less its mean over the traffic. Its
variance is `x' V x`, and the mean squared distance of phases from the profile as far as it exceeds their noise: what
harmonics cannot follow, or are too small to show. This mean is over all phases or over three neighbours, whichever is
larger. Between points in half hours the profile is interpolated, so that it follows the time of each block.

A mixture that has taken in `x - p_h` in place of block means x estimates `E' + p_h`. How much it counts depends on how
well it has predicted blocks. With E, the estimate without a season, a block of n events adds

    G <- min(g G + n ((E - x)^2 - (E' + p_h - x)^2) / (2 s2), 8),   g = exp(-n / 200,000)

and the weight of `E' + p_h` is `1 / (1 + 4 exp(-G))`. It is 0 before the first profile, and after a block without
times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from streameval.common.arrays import Array, Integers, Mask, decayed_path, ratio

__all__ = ["SEASONS", "Blend", "Course", "Season", "SeasonState", "SeasonText", "follow", "weigh"]

SeasonText = Literal["24h", "7d"]
HOUR = 3_600.0
POINTS = 2
"""Points of a profile in an hour."""
AHEAD = 24
"""The number of hours that forecasts look ahead."""
COVERED = 0.95
"""Share of the phases that must have had events before a profile is fitted."""
ERROR = 0.001
"""The largest share of profiles of noise that are not flat."""
KEPT = 9.2
"""The quantile of chi-squared with two degrees of freedom that 1 % of harmonics of noise exceed."""
GATE_MEMORY = 200_000.0
"""Horizon of the losses that weigh the season, in events."""
MAX_GATE = 8.0
"""Largest G, so that a cycle that changes is given up within hours."""
PRIOR_ODDS = 4.0
"""Odds against the season before any loss."""

WEIGHT, SQUARE, TOTAL, EVENTS, PERIODS = range(5)
"""Rows of `SeasonState.sums`."""
FIRST, NEWEST, LAST = range(3)
"""Columns of `SeasonState.clock`, the last one in seconds."""


@dataclass(frozen=True)
class Season:
    """Describe a period.

    Attributes:
        hours: its length and the number of its phases
        memory: the number of periods that sums remember
        frequencies: how often the harmonics repeat within a period
    """

    hours: int
    memory: float
    frequencies: tuple[int, ...]

    @property
    def significant(self) -> float:
        """Return the quantile of chi-squared, with two degrees of freedom, that one harmonic must exceed.

        >>> [round(season.significant, 1) for season in SEASONS.values()]
        [16.6, 19.2]
        """
        return 2.0 * math.log(len(self.frequencies) / ERROR)

    @property
    def points(self) -> int:
        """Return the number of points of a profile."""
        return POINTS * self.hours

    @cached_property
    def of_points(self) -> Array:
        """Return the harmonics at the points, [points, 2 frequencies]."""
        return self._harmonics(np.arange(0.0, self.hours, 1.0 / POINTS))

    @cached_property
    def of_phases(self) -> Array:
        """Return the means of the harmonics over each phase, [phases, 2 frequencies]."""
        means = np.sinc(np.array(self.frequencies) / self.hours)
        return self._harmonics(np.arange(0.5, self.hours)) * np.repeat(means, 2)

    def _harmonics(self, hours: Array) -> Array:
        """Return the cosine and the sine of each frequency side by side."""
        angle = 2 * np.pi * np.outer(hours, self.frequencies) / self.hours
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1).reshape(len(hours), -1)

    def at(self, profile: Array, times: Array) -> Array:
        """Interpolate a profile [..., points] at these times in seconds, [times, ...]."""
        place = times / HOUR % self.hours * POINTS
        before = np.floor(place).astype(np.int64)
        left, right = (np.moveaxis(profile[..., index % self.points], -1, 0) for index in (before, before + 1))
        part = (place - before).reshape(-1, *[1] * (profile.ndim - 1))
        return np.asarray(left + part * (right - left))


SEASONS: dict[SeasonText, Season] = {
    "24h": Season(24, 7.0, (1, 2, 3, 4)),
    "7d": Season(168, 6.0, (1, 2, 3, 5, 6, 7, 8, 9, 12, 13, 14, 15, 16, 21, 28)),
}


class SeasonState(msgspec.Struct):
    """Hold a season and the decays of what it leaves, with policies on axis 0.

    Attributes:
        decays: see `mixture.Decays`
        columns: likewise
        overlap: likewise
        sums: N, Q, S, number of events, and number of periods of each phase, fading [P, C, 5, phases]
        opened: the number since 1970 of the newest bucket with events, NaN before the first [P, C]
        clock: the numbers of the first and the newest bucket, and the time of the last block, NaN if it has none [P, 3]
        profile: the profile and its variance at each point, NaN before the first whole period [P, C, 2, points]
        gate: G [P, C]
    """

    decays: Array
    columns: Array
    overlap: Array
    sums: Array
    opened: Array
    clock: Array
    profile: Array
    gate: Array

    @property
    def is_started(self) -> bool:
        """Tell whether there has been a block with times."""
        return not bool(np.isnan(self.clock[:, NEWEST]).all())

    def course_now(self, season: Season) -> Course:
        """Return the profile at the time of the last block and in the next hours, [1 + hours, P, C]."""
        course = self.profile_at(season, self._now() + HOUR * np.arange(1.0 + AHEAD))
        return course._replace(is_known=course.is_known & ~np.isnan(self.clock[:, LAST, None]))

    def profile_at(self, season: Season, times: Array) -> Course:
        """Return the profile at some times, even if the last block has none, [times, P, C]."""
        profile, variance = np.moveaxis(season.at(self.profile, times), -1, 0)
        return Course(np.nan_to_num(profile), np.nan_to_num(variance), ~np.isnan(profile))

    def _now(self) -> float:
        """Return the time of the last block, 0 if it is unknown."""
        return float(np.nan_to_num(self.clock[:1, LAST]).sum())

    def events_ahead(self, season: Season) -> Array:
        """Return how many events the next hours will have had in total, [hours, P]. Unseen phases have the mean."""
        events = np.fmax.reduce(ratio(self.sums[..., EVENTS, :], self.sums[..., PERIODS, :]), axis=1)
        seen = ~np.isnan(events)
        mean = ratio(np.where(seen, events, 0.0).sum(axis=-1), seen.sum(axis=-1))
        events = np.where(seen, events, mean[:, None])
        phases = (self._now() // HOUR + np.arange(1, 1 + AHEAD)) % season.hours
        return np.asarray(events[:, phases.astype(np.int64)].cumsum(axis=1).T)


class Course(NamedTuple):
    """Hold the profile in the phase of each block [B, P, C].

    Attributes:
        profile: p_h, 0 if it is unknown
        variance: its variance
        is_known: whether it is known
    """

    profile: Array
    variance: Array
    is_known: Mask

    def at(self, index: int | slice) -> Course:
        """Return the course of some blocks."""
        return Course(self.profile[index], self.variance[index], self.is_known[index])

    def without(self, terms: Array, is_timed: Mask) -> Array:
        """Return the sums of blocks without the profile. Blocks without times become empty.

        Args:
            terms: sums of `q, q u, q v, q u^2, q u v, q v^2` [B, P, C, 6]
            is_timed: whether a block has times [B]
        """
        left, profile = terms.copy(), self.profile
        left[..., 1] -= profile * terms[..., 2]
        left[..., 3] += profile * (profile * terms[..., 5] - 2.0 * terms[..., 4])
        left[..., 4] -= profile * terms[..., 5]
        left[~is_timed] = 0.0
        return left


class Blend(NamedTuple):
    """Hold an estimate and the parts of its error.

    Attributes:
        value: the estimate
        sampling: the variance by sampling
        spread: the variance between decays
        moved: the distance by drift
    """

    value: Array
    sampling: Array
    spread: Array
    moved: Array

    def with_season(self, weight: Array, rest: Blend, course: Course) -> Blend:
        """Return `(1 - w) E + w (E' + p)` with its error.

        Both estimates come from the same events, so their errors by sampling and drift add up. The error of the
        profile is independent of the one of E'.

        Args:
            weight: w, 0 if the profile is unknown
            rest: E' with its error
            course: the profile p with its variance
        """
        gap = np.where(weight > 0, rest.value + course.profile - self.value, 0.0)
        left = 1.0 - weight

        def mixed(plain: Array, seasonal: Array) -> Array:
            return np.where(weight > 0, left * plain + weight * seasonal, plain)

        error = mixed(np.sqrt(self.sampling), np.sqrt(rest.sampling + course.variance))
        return Blend(
            self.value + weight * gap,
            np.where(weight > 0, error**2, self.sampling),
            mixed(self.spread, rest.spread) + left * weight * gap**2,
            mixed(self.moved, rest.moved),
        )


class Means(NamedTuple):
    """Hold the means of blocks [B, P, C].

    Attributes:
        weight: n, 0 if the mean is unknown
        mean: x, 0 if it is unknown
        noise: the variance s2 of an event before the block, NaN if unknown
    """

    weight: Array
    mean: Array
    noise: Array

    @classmethod
    def from_terms(cls, terms: Array, path: Array, ratios: Mask, recent: Array, fading: float) -> Means:
        """Return the means of blocks.

        Args:
            terms: sums of `q, q u, q v, q u^2, q u v, q v^2` [B, P, C, 6]
            path: the estimate and the mean denominator before each block [B, P, C, ...]
            ratios: whether a component has a denominator [C]
            recent: recent sums of the terms before the blocks [P, C, 6]
            fading: their factor over one block
        """
        weight, u, v = (terms[..., index] for index in range(3))
        mean, centre = ratio(u, v), path[..., 0]
        linear = centre + ratio(u - centre * v, weight * path[..., 1])
        mean = np.where(ratios & np.isfinite(linear), linear, mean)
        is_known = (weight > 0) & np.isfinite(mean)
        before = np.concatenate([recent[None], decayed_path(recent, terms, fading)[:-1]])
        q, u, v, uu, uv, vv = np.moveaxis(before, -1, 0)
        value = ratio(u, v)
        noise = ratio((uu - 2.0 * value * uv + value**2 * vv) * q, v**2)
        noise = np.where(noise > 0, noise, np.nan)
        return cls(np.where(is_known, weight, 0.0), np.where(is_known, mean, 0.0), noise)


def start(policies: int, components: int, decays: int, season: Season) -> SeasonState:
    """Start before the first event."""
    shape = (policies, components)
    columns = np.zeros((*shape, 10))
    columns[..., 6:8] = np.nan
    return SeasonState(
        decays=np.zeros((*shape, 4, decays)),
        columns=columns,
        overlap=np.zeros((policies, decays, decays)),
        sums=np.zeros((*shape, 5, season.hours)),
        opened=np.full(shape, np.nan),
        clock=np.full((policies, 3), np.nan),
        profile=np.full((*shape, 2, season.points), np.nan),
        gate=np.zeros(shape),
    )


def forget_drift(state: SeasonState, components: Mask) -> None:
    """Forget the losses of decays and the trend of some components [P, C], which followed the cycle so far."""
    state.decays[:, :, 3] = np.where(components[..., None], 0.0, state.decays[:, :, 3])
    state.columns[..., 8:] = np.where(components[..., None], 0.0, state.columns[..., 8:])


def select(state: SeasonState, components: list[int]) -> SeasonState:
    """Return the state of some components."""
    for name in ("decays", "columns", "sums", "opened", "profile", "gate"):
        setattr(state, name, np.ascontiguousarray(getattr(state, name)[:, components]))
    return state


def follow(
    state: SeasonState, season: Season, means: Means, squares: Array, reached: Array, size: int
) -> tuple[Course, dict[int, Mask]]:
    """Add blocks to the sums of their phases, and fit a new profile at the end of each period.

    Returns the course of the profile, and the components with a profile that was flat before, by number of the block.

    Args:
        state: the state, which changes
        season: the period
        means: the means of the blocks
        squares: the sums of squared weights [B, P]
        reached: the time that a tenth of each block has reached, minus infinity if unknown [B]
        size: events in a block
    """
    numbers = np.where(np.isfinite(reached), np.floor(reached / HOUR), np.nan)
    shape = means.mean.shape
    course = Course(np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool))
    if np.isnan(numbers).all():
        state.clock[:, LAST] = np.nan
        return course, {}
    firsts, unfilled, is_timed = {}, 0, ~np.isnan(numbers)

    def fill(end: int) -> None:
        nonlocal unfilled
        blocks = unfilled + np.flatnonzero(is_timed[unfilled:end])
        for whole, part in zip(course, state.profile_at(season, reached[blocks]), strict=True):
            whole[blocks] = part
        unfilled = end

    squares = np.where(means.weight > 0, squares[..., None], 0.0)
    events = np.where(means.weight > 0, float(size), 0.0)
    rows = np.stack([means.weight, squares, means.weight * means.mean, events, np.zeros_like(events)], axis=-1)
    changes = 1 + np.flatnonzero(numbers[1:] != numbers[:-1])
    for first, last in zip([0, *changes], [*changes, len(numbers)], strict=True):
        blocks = slice(int(first), int(last))
        state.clock[:, LAST] = reached[last - 1] if np.isfinite(numbers[first]) else np.nan
        if np.isnan(numbers[first]):
            continue
        ends = _ended(state, season, float(numbers[first]))
        if ends.any():
            fill(int(first))
            is_first = _turn(state, season, ends, means.noise[first])
            if is_first.any():
                firsts[int(first)] = is_first
        _add(state, season, float(numbers[first]), rows[blocks])
    fill(len(numbers))
    return course, firsts


def _ended(state: SeasonState, season: Season, number: float) -> Mask:
    """Return the policies with a period that has ended before this bucket."""
    age, last = (np.floor((now - state.clock[:, FIRST]) / season.hours) for now in (number, state.clock[:, NEWEST]))
    return np.asarray(age > last)


def _turn(state: SeasonState, season: Season, ends: Mask, noise: Array) -> Mask:
    """Fit a new profile of some policies, and return the components with one that was unknown or flat before."""
    before = _has_shape(state)
    fitted = _fit(state.sums[ends], noise[ends], season)
    state.profile[ends] = np.where(np.isnan(fitted), state.profile[ends], fitted)
    return _has_shape(state) & ~before


def _has_shape(state: SeasonState) -> Mask:
    """Return whether each component has a profile that is not flat [P, C]."""
    return np.asarray(np.nan_to_num(state.profile[:, :, 0]).any(axis=-1))


def _add(state: SeasonState, season: Season, number: float, rows: Array) -> None:
    """Add blocks of one bucket to the sums of its phase.

    Args:
        state: the state, which changes
        season: the period
        number: the number of the bucket
        rows: what each block adds [B, P, C, 5]
    """
    phase, has_events = int(number % season.hours), np.logical_or.reduce(rows[..., WEIGHT] > 0)
    clock, own = state.clock, state.sums[..., phase]
    clock[:, FIRST] = np.where(np.isnan(clock[:, FIRST]) & has_events.any(axis=1), number, clock[:, FIRST])
    clock[:, NEWEST] = np.where(np.isnan(clock[:, FIRST]), np.nan, np.fmax(clock[:, NEWEST], number))
    opens = has_events & (~(state.opened >= number) | (own[..., PERIODS] == 0))
    state.opened = np.where(opens, np.fmax(state.opened, number), state.opened)
    fading = 1.0 - 1.0 / season.memory
    factors, added = np.array([fading, fading**2, fading, fading, fading]), np.array([0.0, 0.0, 0.0, 0.0, 1.0])
    own = np.where(opens[..., None], own * factors + added, own)
    state.sums[..., phase] = np.cumsum(np.concatenate([own[None], rows]), axis=0)[-1]


def _fit(sums: Array, noise: Array, season: Season) -> Array:
    """Return the profile and its variance, [P, C, 2, phases], NaN if too few phases or no noise are known.

    Args:
        sums: of each phase [P, C, 5, phases]
        noise: the variance of an event [P, C]
        season: the period
    """
    weight, square, total = (sums[..., row, :] for row in (WEIGHT, SQUARE, TOTAL))
    seen = weight > 0
    is_known = (np.count_nonzero(seen, axis=-1) >= COVERED * season.hours) & np.isfinite(noise)
    precision = np.where(seen, np.nan_to_num(ratio(weight**2, noise[..., None] * square)), 0.0)
    precision = np.where(is_known[..., None], precision, 1.0)
    mean = np.where(seen, ratio(total, weight), 0.0)
    centred = season.of_phases - _weighted_mean(precision, season.of_phases)
    normal = np.einsum("pchi,pch,pchj->pcij", centred, precision, centred)
    covariance = np.linalg.inv(normal)
    found = np.einsum("pcij,pchj,pch->pci", covariance, centred, precision * mean)
    pairs = found.reshape(*found.shape[:-1], -1, 2)
    own = np.stack([covariance[..., 2 * j : 2 * j + 2, 2 * j : 2 * j + 2] for j in range(pairs.shape[-2])], axis=2)
    size = np.einsum("pcfi,pcfij,pcfj->pcf", pairs, np.linalg.inv(own), pairs)
    is_cycle = size.max(axis=-1, keepdims=True) > season.significant
    kept = np.where(is_cycle & (size > KEPT), 1.0 - 2.0 / np.maximum(size, KEPT), 0.0)
    shrunken = (kept[..., None] * pairs).reshape(found.shape)
    about = season.of_points - _weighted_mean(weight, season.of_phases)
    profile = np.einsum("pchi,pci->pch", about, shrunken)
    used = about * np.repeat(kept > 0, 2, axis=-1)[..., None, :]
    variance = np.einsum("pchi,pcij,pchj->pch", used, covariance, used)
    share = weight / np.maximum(weight.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
    residual = mean - np.einsum("hi,pci->pch", season.of_phases, shrunken)
    residual = residual - (share * residual).sum(axis=-1, keepdims=True)
    excess = residual**2 - np.where(seen, ratio(np.ones_like(precision), precision), 0.0)
    near = np.mean([np.roll(excess, shift, axis=-1) for shift in (-1, 0, 1)], axis=0)
    misfit = np.maximum(near, (share * excess).sum(axis=-1, keepdims=True))
    variance = variance + np.repeat(np.maximum(misfit, 0.0), POINTS, axis=-1)
    fitted = np.stack([profile, variance], axis=2)
    is_known &= np.isfinite(fitted).all(axis=(2, 3))
    return np.where(is_known[..., None, None], fitted, np.nan)


def _weighted_mean(weight: Array, harmonics: Array) -> Array:
    """Return the weighted means of harmonics over phases, [P, C, 1, harmonics]."""
    share = np.nan_to_num(ratio(weight, weight.sum(axis=-1, keepdims=True)))
    return np.asarray(np.einsum("pch,hi->pci", share, harmonics)[..., None, :])


def weigh(state: SeasonState, means: Means, estimates: tuple[Array, Array], course: Course, size: int) -> Array:
    """Fold the losses of blocks into the gate, and return G after each block [B, P, C].

    Args:
        state: the state, which changes
        means: the means of the blocks
        estimates: E and E' before each block [B, P, C]
        course: the profile
        size: events in a block
    """
    plain, rest = estimates
    losses = (plain - means.mean) ** 2 - (rest + course.profile - means.mean) ** 2
    with np.errstate(divide="ignore", invalid="ignore"):
        gains = means.weight * losses / (2.0 * means.noise)
    gains = np.where(course.is_known & np.isfinite(gains), gains, 0.0)
    fading, path = float(np.exp(-size / GATE_MEMORY)), np.empty(gains.shape)
    for block, gain in enumerate(gains):
        state.gate = path[block] = np.minimum(fading * state.gate + gain, MAX_GATE)
    return path


def weights(gate: Array, is_known: Mask, pools: Integers, rates: Array) -> Array:
    """Return the weight of the season [B, P, C]. Policies of a pool share their G.

    Args:
        gate: G [B, P, C]
        is_known: whether the profile is known [B, P, C]
        pools: the pool of each policy [P]
        rates: the learning rate of each pool
    """
    pooled = np.empty_like(gate)
    for pool, rate in enumerate(rates):
        members = np.flatnonzero(pools == pool)
        if len(members):
            pooled[:, members] = rate * np.cumsum(gate[:, members], axis=1)[:, -1:]
    return np.where(is_known, 1.0 / (1.0 + PRIOR_ODDS * np.exp(np.minimum(-pooled, 700.0))), 0.0)
