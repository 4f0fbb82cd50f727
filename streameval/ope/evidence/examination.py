"""Examination: how often users look at each rank, as configured, given with events, or learned from interventions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, decayed_path
from streameval.common.component import Component, kind_as_mapping, strict
from streameval.events import EventBatch
from streameval.events.rankings import Rankings


@dataclass(frozen=True, kw_only=True, config=strict)
class Examination(Component):
    """The probability that a user looks at a rank."""

    def probability(self, rankings: Rankings) -> Array:
        """The probability of a look at each item, [rows]; NaN where it is not known."""
        raise NotImplementedError

    def curve(self, ranks: int) -> Array | None:
        """The probabilities of a look at the first ranks, where they are the same on every page."""
        return None


@dataclass(frozen=True, config=strict)
class PowerCurve(Examination):
    """`1 / rank^eta`; with eta 0 users look at every rank.

    >>> PowerCurve(eta=1.0).curve(4).round(2)
    array([1.  , 0.5 , 0.33, 0.25])
    """

    eta: Annotated[float, Field(ge=0, le=10, description="the steepness of the decline")] = 1.0
    kind: Literal["power"] = field(default="power", kw_only=True, repr=False)

    def probability(self, rankings: Rankings) -> Array:
        return np.asarray(rankings.rank**-self.eta)

    def curve(self, ranks: int) -> Array:
        return np.asarray(np.arange(1.0, ranks + 1) ** -self.eta)


@dataclass(frozen=True, config=strict)
class TableCurve(Examination):
    """The probabilities of the first ranks, one by one; later ranks have the last one.

    >>> TableCurve([1.0, 0.6, 0.4]).curve(5)
    array([1. , 0.6, 0.4, 0.4, 0.4])
    """

    values: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...],
        Field(min_length=1, description="the probabilities of a look at rank 1, 2, ..."),
    ]
    kind: Literal["table"] = field(default="table", kw_only=True, repr=False)

    def probability(self, rankings: Rankings) -> Array:
        places = np.minimum(rankings.rank.astype(np.int64), len(self.values)) - 1
        return np.asarray(np.array(self.values)[places])

    def curve(self, ranks: int) -> Array:
        return np.array(self.values)[np.minimum(np.arange(ranks), len(self.values) - 1)]


@dataclass(frozen=True, config=strict)
class GivenExamination(Examination):
    """The `propensities` of the events. Pages with clicks and without them are rejected."""

    kind: Literal["given"] = field(default="given", kw_only=True, repr=False)

    def probability(self, rankings: Rankings) -> Array:
        return rankings.propensity


class LearnedCurve(NamedTuple):
    """A curve at some moments: the logarithms of looks relative to rank 1, and their covariances.

    `logarithm` [moments, ranks], `covariance` [moments, ranks, ranks], `lag` [moments, ranks]: by how much the
    logarithms of now differ from these under steady drift, estimated with `LAG_VARIANCE` times their covariance. NaN
    where not enough is known.
    """

    logarithm: Array
    covariance: Array
    lag: Array

    @property
    def error(self) -> Array:
        """The standard errors of the logarithms, [moments, ranks]."""
        return np.sqrt(np.diagonal(self.covariance, axis1=-2, axis2=-1))

    @property
    def error_now(self) -> Array:
        """The errors of the logarithms of now: those and the lag as far as it exceeds its own error."""
        variance = self.error**2
        return np.sqrt(variance + np.maximum(np.nan_to_num(self.lag) ** 2 - LAG_VARIANCE * variance, 0.0))

    @property
    def probability(self) -> Array:
        """The probability of a look, relative to rank 1, [moments, ranks]; NaN where its error is too large."""
        return np.where(self.error <= LARGEST_ERROR, np.exp(self.logarithm), np.nan)


LARGEST_ERROR = 0.15
"""Of the logarithm of a probability: until it is below this, pages that show the rank are missing."""
SHARES = {"usual": 1.0, "half": 0.5, "recent": 0.1}
"""The horizons of the sums over that of the curve: of itself, for its lag, and for the trust check."""
LAG_VARIANCE = 4 / 3
"""The variance of the estimated lag over that of a curve: decayed means of horizons h and g have covariance
`1 / (h + g)`, in which the variances are `1 / 2h` and `1 / 2g`; twice their difference, with `g = h / 2`."""
MOST_ERRORS = 4.0
"""The distance, in standard errors, from which on a curve has moved."""


class PageSums(Struct, frozen=True, eq=False):
    """Hold decayed sums of the numbers of pages [..., numbers], and of products of these."""

    sums: Array
    squares: Array


ExaminationState: TypeAlias = dict[str, PageSums]
"""The sums with each horizon of `SHARES`."""


class ExaminationSums(NamedTuple):
    """The sums of some blocks of `block` pages, of their numbers [blocks, numbers] and of products of these."""

    block: int
    sums: Array
    squares: Array


@dataclass(frozen=True, kw_only=True, config=strict)
class LearnedExamination(Examination):
    """A curve that is learned from interventions on some pages, relative to rank 1, and follows drift.

    `ranks`: the number of ranks to learn; later ranks count as the last one. `horizon`: of the decayed sums, in pages.
    The weights of a block use what was known before it. A curve is known at a rank once the standard error of its
    logarithm is below .15; pages that show a rank of which it is not known are missing.

    The logarithms are functions of decayed sums `S` of numbers x of each page, which do not depend on the scale of S.
    So with their derivatives J, the covariance is `J (sum of q^2 x x') J'`.

    Under steady drift, a decayed mean lags behind by its horizon. So one with half the horizon differs from it by half
    the lag, which widens intervals where it is larger than its error.
    """

    ranks: Annotated[int, Field(ge=2, le=20, description="the number of first ranks that are learned")] = 10
    horizon: Annotated[float, Field(ge=1000, description="the number of pages until evidence has faded")] = 20_000.0

    @property
    def numbers(self) -> int:
        """How many numbers a page has."""
        raise NotImplementedError

    def observed(self, rankings: Rankings) -> Array:
        """The numbers of each page, [pages, numbers]."""
        raise NotImplementedError

    def logarithms(self, sums: Array) -> tuple[Array, Array]:
        """The logarithms of the curve from decayed sums [..., numbers], and their derivatives [..., ranks, numbers]."""
        raise NotImplementedError

    def start(self) -> ExaminationState:
        """Start before the first page."""
        return {part: PageSums(np.zeros(self.numbers), np.zeros((self.numbers, self.numbers))) for part in SHARES}

    def start_by_rank(self, policies: int) -> Array:
        """No sums of clicks at each rank yet: see `Clicks.by_rank`."""
        return np.zeros((policies, 2 * self.ranks + 1))

    def summarise(self, batch: EventBatch, block: int) -> ExaminationSums:
        """Half 1: the sums of each block."""
        assert batch.rankings is not None
        weight = 1.0 / batch.sampling_probability[:, None]
        numbers = (weight * self.observed(batch.rankings)).reshape(max(1, len(batch) // block), -1, self.numbers)
        return ExaminationSums(block, numbers.sum(axis=1), np.matmul(numbers.swapaxes(1, 2), numbers))

    def fold(self, state: ExaminationState, added: ExaminationSums) -> tuple[LearnedCurve, ExaminationState]:
        """Half 2: the curve before each of these blocks and after the last, and the state after them."""
        paths = {}
        for part, share in SHARES.items():
            fading, before = math.exp(-added.block / (share * self.horizon)), state[part]
            paths[part] = PageSums(
                np.concatenate([before.sums[None], decayed_path(before.sums, added.sums, fading)]),
                np.concatenate([before.squares[None], decayed_path(before.squares, added.squares, fading**2)]),
            )
        after = {part: PageSums(path.sums[-1], path.squares[-1]) for part, path in paths.items()}
        return self.curve_of(paths), after

    def curve_of(self, sums: Mapping[str, PageSums], part: str = "usual") -> LearnedCurve:
        """The curve of sums at some moments, of this part of the horizon."""
        logarithm, derivative = self.logarithms(sums[part].sums)
        covariance = derivative @ sums[part].squares @ derivative.swapaxes(-1, -2)
        half, _ = self.logarithms(sums["half"].sums)
        return LearnedCurve(logarithm, covariance, 2.0 * (half - logarithm))

    def now(self, state: ExaminationState, part: str = "usual") -> LearnedCurve:
        """The curve after the last block, with one moment."""
        return self.curve_of(
            {name: PageSums(each.sums[None], each.squares[None]) for name, each in state.items()}, part
        )

    def moved(self, state: ExaminationState) -> tuple[bool, str]:
        """Whether the recent curve agrees with the usual one within four standard errors, and the finding."""
        usual, recent = self.now(state), self.now(state, "recent")
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(usual.error[0] ** 2 + recent.error[0] ** 2)
            distance = np.nan_to_num(np.abs(recent.logarithm - usual.logarithm)[0] / error)
        rank = int(distance.argmax())
        finding = f"users look at rank {rank + 1} {np.exp(recent.logarithm[0, rank]):.3g} times as often as at rank 1"
        finding += f", and before {np.exp(usual.logarithm[0, rank]):.3g} times"
        return bool(distance[rank] <= MOST_ERRORS), finding

    def probability(self, rankings: Rankings) -> Array:
        """Not known without the state."""
        return np.full(len(rankings.rank), np.nan)


def variances(curve: LearnedCurve, by_rank: Array, ratio: bool) -> tuple[Array, Array]:
    """The variances that a learned curve adds to values and to lifts over the first policy, [moments, policies].

    `by_rank` [moments, policies, 2 ranks + 1]: recent sums of clicks at each rank, of which an estimate is the sum
    over the ranks, or for a `ratio` the quotient of two sums. A change of the logarithm of a probability changes the
    part of its rank in proportion. Early pages were weighed by a less certain curve: with an error that falls with the
    number of pages, the mean over pages has twice the variance of the last one. The square of what the lag changes
    counts as far as it exceeds its variance.
    """
    count, ranks = by_rank[..., -1:], by_rank.shape[-1] // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        gains, weights = by_rank[..., :ranks] / count, by_rank[..., ranks:-1] / count
        if ratio:
            total = weights.sum(axis=-1, keepdims=True)
            gains = (gains - gains.sum(axis=-1, keepdims=True) / total * weights) / total
    gains, covariance, lag = (np.nan_to_num(each) for each in (gains, curve.covariance, curve.lag))

    def of(parts: Array) -> Array:
        variance = np.einsum("mpr,mrs,mps->mp", parts, covariance, parts)
        drift = np.einsum("mpr,mr->mp", parts, lag) ** 2 - LAG_VARIANCE * variance
        return np.asarray(2.0 * variance + np.maximum(drift, 0.0))

    return of(gains), of(gains - gains[:, :1])


def _clicks_by_rank(rankings: Rankings, ranks: int, weight: Array) -> Array:
    """The sums of weights [rows] of clicks at each of the first ranks, [pages, ranks]."""
    rows = np.flatnonzero((rankings.clicked > 0) & (rankings.rank <= ranks) & ~np.isnan(weight))
    places = rankings.owner[rows] * ranks + rankings.rank[rows].astype(np.int64) - 1
    counted = np.bincount(places, weight[rows], len(rankings.shown) * ranks)
    return counted.astype(float).reshape(-1, ranks)


def _log_ratio(numerator: Array, denominator: Array) -> tuple[Array, Array, Array]:
    """The logarithm of a ratio, and `1 / numerator` and `1 / denominator`; NaN where either is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(numerator > 0, 1 / numerator, np.nan), np.where(denominator > 0, 1 / denominator, np.nan)
        return np.where(np.isfinite(inverse[0] + inverse[1]), np.log(numerator * inverse[1]), np.nan), *inverse


@dataclass(frozen=True, config=strict)
class Harvested(LearnedExamination):
    """From random production, whose events have `marginals`: clicks at neighbouring ranks are compared.

    A click at rank k counts `P(item at k + 1) / P(item at k)`: this is what the same items would get at rank k, were
    they shown there as often as at the next rank. So the clicks at k + 1 over these are `theta_(k+1) / theta_k`. Every
    item that can be at k + 1 must sometimes be at k.

    Source: for comparing the same items at two ranks, Agarwal et al., WSDM 2019.
    """

    kind: Literal["harvested"] = field(default="harvested", kw_only=True, repr=False)

    @property
    def numbers(self) -> int:
        return 2 * (self.ranks - 1)

    def observed(self, rankings: Rankings) -> Array:
        earlier = _clicks_by_rank(rankings, self.ranks, rankings.next_ratio)[:, :-1]
        plain = np.where(np.isnan(rankings.next_ratio), np.nan, 1.0)
        return np.concatenate([earlier, _clicks_by_rank(rankings, self.ranks, plain)[:, 1:]], axis=1)

    def logarithms(self, sums: Array) -> tuple[Array, Array]:
        links = self.ranks - 1
        step, of_later, of_earlier = _log_ratio(sums[..., links:], sums[..., :links])
        below = np.tri(self.ranks, links, -1)  # a rank has the links before it
        unknown = np.maximum.accumulate(np.isnan(step), axis=-1)
        logarithm = np.concatenate(
            [np.zeros_like(step[..., :1]), np.cumsum(np.where(unknown, np.nan, step), axis=-1)], -1
        )
        sides = -np.nan_to_num(of_earlier), np.nan_to_num(of_later)
        derivative = np.concatenate([below * side[..., None, :] for side in sides], axis=-1)
        return logarithm, np.where(np.isnan(logarithm)[..., None], np.nan, derivative)


@dataclass(frozen=True, config=strict)
class Swaps(LearnedExamination):
    """From pages on which the items of rank 1 and of another rank were exchanged by chance (`swap`).

    With click rates of pages with this exchange and of pages without any, `theta_k / theta_1` is the sum of both rates
    at rank k over the sum of both rates at rank 1: the same items are counted above and below.

    Source: Joachims, Swaminathan & Schnabel, WSDM 2017.
    """

    kind: Literal["swaps"] = field(default="swaps", kw_only=True, repr=False)

    @property
    def numbers(self) -> int:
        return 6 * (self.ranks - 1)

    def observed(self, rankings: Rankings) -> Array:
        """Of pages with and without the exchange: their number, their clicks at rank 1, and at the other rank."""
        clicks = _clicks_by_rank(rankings, self.ranks, np.ones(len(rankings.rank)))
        first, others = clicks[:, :1], clicks[:, 1:]
        ranks = np.arange(2, self.ranks + 1)
        swapped = (rankings.swap_from == 1)[:, None] & (rankings.swap_to[:, None] == ranks)
        plain = (rankings.swap_from == 0)[:, None] & (rankings.shown[:, None] >= ranks)
        parts = [group * column for group in (swapped, plain) for column in (np.ones_like(first), first, others)]
        return np.concatenate(parts, axis=1)

    def logarithms(self, sums: Array) -> tuple[Array, Array]:
        swaps, swap_first, swap_other, pages, first, other = np.split(sums, 6, axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            inverse = np.where(swaps > 0, 1 / swaps, np.nan), np.where(pages > 0, 1 / pages, np.nan)
        above, under = swap_other * inverse[0] + other * inverse[1], swap_first * inverse[0] + first * inverse[1]
        step, by_above, by_under = _log_ratio(above, under)
        columns = [
            -(swap_other * by_above - swap_first * by_under) * inverse[0] ** 2,
            -inverse[0] * by_under,
            inverse[0] * by_above,
            -(other * by_above - first * by_under) * inverse[1] ** 2,
            -inverse[1] * by_under,
            inverse[1] * by_above,
        ]
        derivative = np.concatenate([column[..., None] * np.eye(self.ranks - 1) for column in columns], axis=-1)
        derivative = np.where(np.isnan(step)[..., None], np.nan, np.nan_to_num(derivative))
        return (
            np.concatenate([np.zeros_like(step[..., :1]), step], axis=-1),
            np.concatenate([np.zeros_like(derivative[..., :1, :]), derivative], axis=-2),
        )


AnyExamination: TypeAlias = Annotated[
    Annotated[PowerCurve | TableCurve | GivenExamination | Harvested | Swaps, Field(discriminator="kind")],
    BeforeValidator(kind_as_mapping),
]
