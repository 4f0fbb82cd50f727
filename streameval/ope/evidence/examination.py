"""Model how often users look at each rank, as configured, given with events, or learned from interventions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import ROUNDING, Array, Mask, decayed_path, ratio
from streameval.common.component import Component, kind_as_mapping, strict
from streameval.events import EventBatch
from streameval.events.rankings import Rankings


@dataclass(frozen=True, kw_only=True, config=strict)
class Examination(Component):
    """Give the probability that a user looks at a rank."""

    def probability(self, rankings: Rankings) -> Array:
        """Return the probability of a look at each item [rows], NaN if it is unknown."""
        raise NotImplementedError

    def curve(self, ranks: int) -> Array | None:
        """Return the probabilities of a look at the first ranks, or None if they vary between pages."""
        return None

    def noise_at(self, rank: Array) -> Array | None:
        """Return how often an unattractive item is clicked for each click on an attractive one, None for never."""
        return None


@dataclass(frozen=True, kw_only=True, config=strict)
class FixedCurve(Examination):
    """Give the same probability to a rank on all pages, and correct for clicks that trust in the rank alone explains.

    With `noise` n, an examined item that is not attractive is clicked n times as often as an attractive one. So an item
    of attractiveness a is clicked at rank k with probability `alpha a + beta`. With the probability `theta` that an
    attractive item is clicked there, `alpha = theta (1 - n)` and `beta = theta n`. A click c has the unbiased weight
    `(c - beta) / alpha`, also if c is 0, so noise needs pages with whole lists. These two numbers for each rank express
    every affine model of clicks with an alpha above 0.

    Source: Vardasbi, Oosterhuis & de Rijke, CIKM 2020. The form with theta and n is derived.
    """

    noise: Annotated[
        tuple[Annotated[float, Field(ge=0, lt=1)], ...],
        Field(description="at rank 1, 2, ..., clicks on an unattractive item for each on an attractive one"),
    ] = field(default=(), repr=False)

    def looks(self, rank: Array) -> Array:
        """Return the probability of a look at each of these ranks."""
        raise NotImplementedError

    def probability(self, rankings: Rankings) -> Array:
        return self.looks(rankings.rank)

    def curve(self, ranks: int) -> Array:
        return self.looks(np.arange(1.0, ranks + 1))

    def noise_at(self, rank: Array) -> Array | None:
        return _at(self.noise, rank) if any(self.noise) else None


def _at(values: tuple[float, ...], rank: Array) -> Array:
    """Return the value at each of these ranks. Later ranks have the last one."""
    return np.asarray(np.array(values)[np.minimum(rank.astype(np.int64), len(values)) - 1])


@dataclass(frozen=True, config=strict)
class PowerCurve(FixedCurve):
    """Let users look at a rank with probability `1 / rank^eta`. With eta 0 they look at every rank.

    >>> PowerCurve(eta=1.0).curve(4).round(2)
    array([1.  , 0.5 , 0.33, 0.25])
    """

    eta: Annotated[float, Field(ge=0, le=10, description="the steepness of the decline")] = 1.0
    kind: Literal["power"] = field(default="power", kw_only=True, repr=False)

    def looks(self, rank: Array) -> Array:
        return np.asarray(rank**-self.eta)


@dataclass(frozen=True, config=strict)
class TableCurve(FixedCurve):
    """List the probabilities of the first ranks one by one. Later ranks have the last one.

    >>> TableCurve([1.0, 0.6, 0.4]).curve(5)
    array([1. , 0.6, 0.4, 0.4, 0.4])
    """

    values: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...],
        Field(min_length=1, description="the probabilities of a look at rank 1, 2, ..."),
    ]
    kind: Literal["table"] = field(default="table", kw_only=True, repr=False)

    def looks(self, rank: Array) -> Array:
        return _at(self.values, rank)


@dataclass(frozen=True, config=strict)
class GivenExamination(Examination):
    """Use the `propensities` of the events. Pages with clicks and without propensities are rejected."""

    kind: Literal["given"] = field(default="given", kw_only=True, repr=False)

    def probability(self, rankings: Rankings) -> Array:
        return rankings.propensity


class LearnedCurve(NamedTuple):
    """Hold a curve at some moments, NaN if not enough is known.

    Attributes:
        logarithm: the logarithms of looks relative to rank 1 [moments, ranks]
        covariance: the covariances of the logarithms [moments, ranks, ranks]
        lag: how far the current logarithms are ahead under steady drift, estimated with `LAG_VARIANCE` times the
            covariance [moments, ranks]
    """

    logarithm: Array
    covariance: Array
    lag: Array

    @property
    def error(self) -> Array:
        """Return the standard errors of the logarithms [moments, ranks]."""
        return np.sqrt(np.diagonal(self.covariance, axis1=-2, axis2=-1))

    @property
    def error_now(self) -> Array:
        """Return the errors of the current logarithms: with the lag as far as it exceeds its own error."""
        variance = self.error**2
        return np.sqrt(variance + np.maximum(np.nan_to_num(self.lag) ** 2 - LAG_VARIANCE * variance, 0.0))

    @property
    def probability(self) -> Array:
        """Return the probability of a look relative to rank 1 [moments, ranks], NaN if its error is too large."""
        return np.where(self.error <= MAX_ERROR, np.exp(self.logarithm), np.nan)


MAX_ERROR = 0.15
"""Limit of the error of a probability's logarithm. Until it is below, pages that show the rank are missing."""
SHARES = {"usual": 1.0, "half": 0.5, "recent": 0.1}
"""Horizons of the sums over the horizon of the curve: for the curve, for its lag, and for the trust check."""
LAG_VARIANCE = 4 / 3
"""Variance of the estimated lag over the variance of a curve.

Decayed means of horizons h and g have the variances `1 / 2h` and `1 / 2g` and the covariance `1 / (h + g)`. The lag is
twice their difference, with `g = h / 2`.
"""
MAX_ERRORS = 4.0
"""Smallest distance in standard errors of a curve that has moved, or of items that production does not compare."""
FEWEST_PAGES = 1000.0
"""Smallest number of equally weighted pages for a judgement about the support of a rank."""


class PageSums(Struct, frozen=True, eq=False):
    """Hold decayed sums of the numbers of pages [..., numbers], and of products of these."""

    sums: Array
    squares: Array


ExaminationState: TypeAlias = dict[str, PageSums]
"""The sums with each horizon of `SHARES`."""


class ExaminationSums(NamedTuple):
    """Hold the sums over blocks of `block` pages, of their numbers [blocks, numbers] and of products of these."""

    block: int
    sums: Array
    squares: Array


@dataclass(frozen=True, kw_only=True, config=strict)
class LearnedExamination(Examination):
    """Learn a curve relative to rank 1 from interventions on some pages, and follow drift.

    The weights of a block use what was known before it. A curve is known at a rank once the standard error of its
    logarithm is below .15. Pages that show a rank without a known probability are missing.

    The logarithms are functions of decayed sums `S` of numbers x of each page, which do not depend on the scale of S.
    So with their derivatives J, the covariance is `J (sum of q^2 x x') J'`.

    Under steady drift, a decayed mean lags behind by its horizon. So a mean with half the horizon differs from it by
    half the lag, which widens intervals if it is larger than its error.

    Args:
        ranks: the number of ranks to learn, later ranks count as the last one
        horizon: the horizon of the decayed sums, in pages
    """

    ranks: Annotated[int, Field(ge=2, le=20, description="the number of first ranks that are learned")] = 10
    horizon: Annotated[float, Field(ge=1000, description="the number of pages until evidence has faded")] = 20_000.0

    @property
    def numbers(self) -> int:
        """Return how many numbers a page has."""
        raise NotImplementedError

    def observed(self, rankings: Rankings) -> Array:
        """Return the numbers of each page [pages, numbers]."""
        raise NotImplementedError

    def logarithms(self, sums: Array) -> tuple[Array, Array]:
        """Return the logarithms of the curve and their derivatives [..., ranks, numbers] from sums [..., numbers]."""
        raise NotImplementedError

    def start(self) -> ExaminationState:
        """Start before the first page."""
        return {horizon: PageSums(np.zeros(self.numbers), np.zeros((self.numbers, self.numbers))) for horizon in SHARES}

    def start_by_rank(self, policies: int) -> Array:
        """Start without sums of clicks at each rank, see `Clicks.by_rank`."""
        return np.zeros((policies, 2 * self.ranks + 1))

    def summarise(self, batch: EventBatch, block: int) -> ExaminationSums:
        """Return the sums of each block (half 1)."""
        assert batch.rankings is not None
        weight = 1.0 / batch.sampling_probability[:, None]
        numbers = (weight * self.observed(batch.rankings)).reshape(max(1, len(batch) // block), -1, self.numbers)
        return ExaminationSums(block, numbers.sum(axis=1), np.matmul(numbers.swapaxes(1, 2), numbers))

    def fold(self, state: ExaminationState, added: ExaminationSums) -> tuple[LearnedCurve, ExaminationState]:
        """Return the curve before each of these blocks and after the last, and the state after them (half 2)."""
        paths = {}
        for horizon, share in SHARES.items():
            fading, before = math.exp(-added.block / (share * self.horizon)), state[horizon]
            paths[horizon] = PageSums(
                np.concatenate([before.sums[None], decayed_path(before.sums, added.sums, fading)]),
                np.concatenate([before.squares[None], decayed_path(before.squares, added.squares, fading**2)]),
            )
        after = {horizon: PageSums(path.sums[-1], path.squares[-1]) for horizon, path in paths.items()}
        return self.curve_of(paths), after

    def curve_of(self, sums: Mapping[str, PageSums], horizon: str = "usual") -> LearnedCurve:
        """Return the curve at some moments, from the sums with this share of the horizon."""
        logarithm, derivative = self.logarithms(sums[horizon].sums)
        covariance = derivative @ sums[horizon].squares @ derivative.swapaxes(-1, -2)
        half, _ = self.logarithms(sums["half"].sums)
        return LearnedCurve(logarithm, covariance, 2.0 * (half - logarithm))

    def now(self, state: ExaminationState, horizon: str = "usual") -> LearnedCurve:
        """Return the curve after the last block, with one moment."""
        return self.curve_of(
            {name: PageSums(page_sums.sums[None], page_sums.squares[None]) for name, page_sums in state.items()},
            horizon,
        )

    def check(self, state: ExaminationState) -> tuple[bool, str]:
        """Return whether the curve can be trusted, and why (not)."""
        ok, finding = self.moved(state)
        return ok, finding if ok else f"{finding}: the layout may have changed"

    def moved(self, state: ExaminationState) -> tuple[bool, str]:
        """Tell whether the recent curve agrees with the usual one within four standard errors, and describe it."""
        usual, recent = self.now(state), self.now(state, "recent")
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.sqrt(usual.error[0] ** 2 + recent.error[0] ** 2)
            distance = np.nan_to_num(np.abs(recent.logarithm - usual.logarithm)[0] / error)
        rank = int(distance.argmax())
        finding = f"users look at rank {rank + 1} {np.exp(recent.logarithm[0, rank]):.3g} times as often as at rank 1"
        finding += f", and before {np.exp(usual.logarithm[0, rank]):.3g} times"
        return bool(distance[rank] <= MAX_ERRORS), finding

    def probability(self, rankings: Rankings) -> Array:
        """Return NaN, because the probabilities are unknown without the state."""
        return np.full(len(rankings.rank), np.nan)


def variances(curve: LearnedCurve, by_rank: Array, ratio: bool) -> tuple[Array, Array]:
    """Return the variances that a learned curve adds to values and to lifts over the first policy [moments, policies].

    An estimate is the sum over the ranks, or for a ratio the quotient of two sums. A change of the logarithm of a
    probability changes the part of its rank in proportion. Early pages were weighed by a less certain curve. With an
    error that falls with the number of pages, the mean over pages has twice the variance of the last one. The square of
    what the lag changes counts as far as it exceeds its variance.

    Args:
        curve: the curve at these moments
        by_rank: recent sums of clicks at each rank [moments, policies, 2 ranks + 1]
        ratio: whether the estimate is a quotient
    """
    count, ranks = by_rank[..., -1:], by_rank.shape[-1] // 2
    with np.errstate(divide="ignore", invalid="ignore"):
        gains, weights = by_rank[..., :ranks] / count, by_rank[..., ranks:-1] / count
        if ratio:
            total = weights.sum(axis=-1, keepdims=True)
            gains = (gains - gains.sum(axis=-1, keepdims=True) / total * weights) / total
    gains, covariance, lag = (np.nan_to_num(array) for array in (gains, curve.covariance, curve.lag))

    def variance_of(parts: Array) -> Array:
        variance = np.einsum("mpr,mrs,mps->mp", parts, covariance, parts)
        drift = np.einsum("mpr,mr->mp", parts, lag) ** 2 - LAG_VARIANCE * variance
        return np.asarray(2.0 * variance + np.maximum(drift, 0.0))

    return variance_of(gains), variance_of(gains - gains[:, :1])


def _clicks_by_rank(rankings: Rankings, ranks: int, weight: Array) -> Array:
    """Return the sums of weights [rows] of clicks at each of the first ranks [pages, ranks]."""
    return _sums_by_rank(rankings, ranks, (rankings.clicked > 0) & ~np.isnan(weight), weight)


def _sums_by_rank(rankings: Rankings, ranks: int, counts: Mask, weight: Array) -> Array:
    """Return the sums of weights [rows] of the rows that count, at each of the first ranks [pages, ranks]."""
    rows = np.flatnonzero(counts & (rankings.rank <= ranks))
    indices = rankings.owner[rows] * ranks + rankings.rank[rows].astype(np.int64) - 1
    counted = np.bincount(indices, weight[rows], len(rankings.shown) * ranks)
    return counted.astype(float).reshape(-1, ranks)


def _log_ratio(numerator: Array, denominator: Array) -> tuple[Array, Array, Array]:
    """Return the logarithm of a ratio, `1 / numerator` and `1 / denominator`, NaN if either is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(numerator > 0, 1 / numerator, np.nan), np.where(denominator > 0, 1 / denominator, np.nan)
        return np.where(np.isfinite(inverse[0] + inverse[1]), np.log(numerator * inverse[1]), np.nan), *inverse


@dataclass(frozen=True, config=strict)
class Harvested(LearnedExamination):
    """Compare clicks at neighbouring ranks, from random production with `marginals` in its events.

    A click at rank k counts `P(item at k + 1) / P(item at k)`. This is what equal items would get at rank k if they
    were shown there as often as at the next rank. So the clicks at k + 1 divided by this sum are `theta_(k+1) /
    theta_k`. Every item that can be at k + 1 must sometimes be at k. Then the mean of `P(item at k + 1) / P(item at k)`
    over the items shown at k is 1. A rank for which it is not, by four standard errors, is unknown, as are all later
    ones. This needs pages with features, or with the whole list of a policy: others keep their clicked items alone.

    Source: for comparing equal items at two ranks, Agarwal et al., WSDM 2019.
    """

    kind: Literal["harvested"] = field(default="harvested", kw_only=True, repr=False)

    @property
    def numbers(self) -> int:
        return 4 * (self.ranks - 1)

    def observed(self, rankings: Rankings) -> Array:
        """Return clicks at ranks but the last, clicks at ranks but the first, how often items are shown, and ratios."""
        ratios, links = rankings.next_ratio, self.ranks - 1
        plain = np.where(np.isnan(ratios), np.nan, 1.0)
        earlier = _clicks_by_rank(rankings, self.ranks, ratios)[:, :-1]
        later = _clicks_by_rank(rankings, self.ranks, plain)[:, 1:]
        # pages without whole lists and features have their clicked items alone, which are a selection
        is_whole = np.asarray((~np.isnan(rankings.list_length)).any(axis=1))
        if rankings.features is not None:
            is_whole |= rankings.features.sizes > 0
        has_next = (rankings.rank < rankings.shown[rankings.owner]) & is_whole[rankings.owner]
        shown = [_sums_by_rank(rankings, links, has_next & ~np.isnan(ratios), column) for column in (plain, ratios)]
        return np.concatenate([earlier, later, *shown], axis=1)

    def logarithms(self, sums: Array) -> tuple[Array, Array]:
        links = self.ranks - 1
        step, later, earlier = _log_ratio(sums[..., links : 2 * links], sums[..., :links])
        below = np.tri(self.ranks, links, -1)  # each rank depends on the links before it
        unknown = np.maximum.accumulate(np.isnan(step), axis=-1)
        logarithm = np.concatenate(
            [np.zeros_like(step[..., :1]), np.cumsum(np.where(unknown, np.nan, step), axis=-1)], -1
        )
        sides = -np.nan_to_num(earlier), np.nan_to_num(later)
        derivative = np.concatenate([below * side[..., None, :] for side in sides], axis=-1)
        derivative = np.concatenate([derivative, np.zeros_like(derivative)], axis=-1)
        return logarithm, np.where(np.isnan(logarithm)[..., None], np.nan, derivative)

    def curve_of(self, sums: Mapping[str, PageSums], horizon: str = "usual") -> LearnedCurve:
        curve = super().curve_of(sums, horizon)
        unsupported = np.maximum.accumulate(~self._supported(sums["usual"])[0], axis=-1)
        unknown = np.concatenate([np.zeros_like(unsupported[..., :1]), unsupported], axis=-1)
        either = unknown[..., None] | unknown[..., None, :]
        return LearnedCurve(
            np.where(unknown, np.nan, curve.logarithm),
            np.where(either, np.nan, curve.covariance),
            np.where(unknown, np.nan, curve.lag),
        )

    def _supported(self, page_sums: PageSums) -> tuple[Mask, Array]:
        """Return for each rank but the last whether the mean ratio may be 1, and this mean [..., ranks - 1]."""
        links = self.ranks - 1
        pages, ratios = page_sums.sums[..., 2 * links : 3 * links], page_sums.sums[..., 3 * links :]
        link = np.arange(2 * links, 3 * links)
        of_pages, of_both, of_ratios = (
            page_sums.squares[..., first, second]
            for first, second in ((link, link), (link, link + links), (link + links, link + links))
        )
        variance = of_pages - 2 * of_both + of_ratios
        is_judged = pages**2 >= FEWEST_PAGES * of_pages
        is_near = np.abs(ratios - pages) <= MAX_ERRORS * np.sqrt(np.maximum(variance, 0.0)) + ROUNDING * pages
        return ~is_judged | is_near | (pages == 0), ratio(ratios, pages)

    def check(self, state: ExaminationState) -> tuple[bool, str]:
        supported, means = self._supported(state["usual"])
        if supported.all():
            return super().check(state)
        rank = int(supported.argmin()) + 1
        finding = f"items at rank {rank} are {means[rank - 1]:.3g} times as likely to be at rank {rank + 1}, expected 1"
        return False, f"{finding}: some items at rank {rank + 1} are never at rank {rank}"


@dataclass(frozen=True, config=strict)
class Swaps(LearnedExamination):
    """Compare pages that exchange the items of the landmark and of another rank by chance (`swap`) with plain pages.

    From the click rates of pages with this exchange and of pages without any, `theta_k / theta_landmark` is the sum of
    both rates at rank k over the sum of both rates at the landmark. So equal items are counted above and below. The
    curve is this ratio, divided by the ratio of rank 1. A landmark in the middle moves no item far.

    Args:
        landmark: the rank that all exchanges have in common, 1 if the first item always takes part

    Source: Joachims, Swaminathan & Schnabel, WSDM 2017, section 5.1.
    """

    landmark: Annotated[int, Field(ge=1, le=20, description="the rank that all exchanges have in common")] = field(
        default=1, kw_only=True, repr=False
    )

    kind: Literal["swaps"] = field(default="swaps", kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.landmark > self.ranks:
            raise ValueError(f"the landmark {self.landmark} is beyond the {self.ranks} ranks that are learned")

    @property
    def numbers(self) -> int:
        return 6 * (self.ranks - 1)

    def observed(self, rankings: Rankings) -> Array:
        """Return the number of pages with and without the exchange, and their clicks at the landmark and elsewhere."""
        clicks = _clicks_by_rank(rankings, self.ranks, np.ones(len(rankings.rank)))
        common, others = clicks[:, self.landmark - 1, None], np.delete(clicks, self.landmark - 1, axis=1)
        ranks = np.delete(np.arange(1, self.ranks + 1), self.landmark - 1)
        lower, higher = np.minimum(ranks, self.landmark), np.maximum(ranks, self.landmark)
        swapped = (rankings.swap_from[:, None] == lower) & (rankings.swap_to[:, None] == higher)
        plain = (rankings.swap_from == 0)[:, None] & (rankings.shown[:, None] >= higher)
        parts = [group * column for group in (swapped, plain) for column in (np.ones_like(common), common, others)]
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
        logarithm = np.insert(step, self.landmark - 1, 0.0, axis=-1)
        derivative = np.insert(derivative, self.landmark - 1, 0.0, axis=-2)
        if self.landmark > 1:
            logarithm, derivative = logarithm - logarithm[..., :1], derivative - derivative[..., :1, :]
        return logarithm, derivative


AnyExamination: TypeAlias = Annotated[
    Annotated[PowerCurve | TableCurve | GivenExamination | Harvested | Swaps, Field(discriminator="kind")],
    BeforeValidator(kind_as_mapping),
]
