"""Write down the mixture of decays over strata as slowly and as plainly as its definition, to compare with.

Every number is a sum over all blocks so far with explicit weights. Only the losses are carried from one block to the
next, because they depend on the estimates of their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

HORIZONS = np.array([1e3, 2e3, 3e3, 5e3, 7e3, 1e4, 1.5e4, 2e4, 3e4, 5e4, 1e5, 2e5, np.inf])
LONG = 100_000
COMPARED = [*[max(2 * longer, 1e5) for longer in HORIZONS[1:-1]], 1e6]
"""Horizons of the differences of losses between each horizon and the next."""


@dataclass
class Part:
    """Hold a component of one policy's term.

    Attributes:
        u: Numerator of each event.
        q: Averaging weight of each event.
        prior: Start-up value at each block end, NaN for none.
        square: Presumed second moment at each block end.
        v: Denominator of each event, None for 1.
    """

    u: Array
    q: Array
    prior: Array
    square: Array
    v: Array | None = None


@dataclass
class Answer:
    """Hold the mixture's reading for one policy at the last block end."""

    value: float
    horizon: float
    se: float
    spread: float
    drift: float


def decayed_mean(values: Array, weights: Array, block: int) -> Array:
    """Return the mean after each block. An event's weight fades by (1 - 1/100,000) an event, block by block."""
    blocks = len(values) // block
    means = np.full(blocks, np.nan)
    for last in range(blocks):
        fading = (1 - 1 / LONG) ** (block * (last - np.arange(last + 1))).repeat(block)
        n = (last + 1) * block
        total = (fading * weights[:n]).sum()
        if total > 0:
            means[last] = (fading * weights[:n] * values[:n]).sum() / total
    return means


def slope_before(term: Array, weight: Array, q: Array, block: int) -> Array:
    """Return cov(term, w) / var(w) over the past that ends a block before each event, 0 if the weight does not vary."""
    beta = np.zeros(len(term))
    means = [decayed_mean(column, q, block) for column in (term, weight, term * weight, weight * weight)]
    for index in range(1, len(term) // block):
        t, w, tw, ww = (mean[index - 1] for mean in means)
        if not np.isnan(w) and ww - w * w > 1e-12 * ww:
            beta[index * block : (index + 1) * block] = (tw - t * w) / (ww - w * w)
    return beta


class SlowMixture:
    """Average several policies under one estimator.

    Args:
        policies: Parts of each policy's term.
        pooled: Whether the losses of each policy are pooled with the others.
        block: Number of events of a block.
    """

    def __init__(self, policies: Sequence[Sequence[Part]], pooled: Sequence[bool], block: int) -> None:
        self.policies, self.pooled, self.block = policies, pooled, block
        self.blocks = len(policies[0][0].u) // block

    def answers(self) -> list[Answer]:
        """Return the answers at the last block end."""
        parts = len(self.policies[0])
        by_part = [self._part([policy[index] for policy in self.policies]) for index in range(parts)]
        return [
            Answer(
                value=sum(part[policy].value for part in by_part),
                horizon=float(np.mean([part[policy].horizon for part in by_part])),
                se=np.sqrt(sum(part[policy].se ** 2 for part in by_part)),
                spread=np.sqrt(sum(part[policy].spread ** 2 for part in by_part)),
                drift=sum(part[policy].drift for part in by_part),
            )
            for policy in range(len(self.policies))
        ]

    def _part(self, columns: Sequence[Part]) -> list[Answer]:
        """Return the answers for one component of all policies, through the whole stream."""
        excess = np.zeros((len(columns), len(HORIZONS) - 1))
        means: list[list[float]] = [[] for _ in columns]
        trends = []
        for done in range(self.blocks):
            shares = [self._share(excess, index, done) for index in range(len(columns))]
            for index, column in enumerate(columns):
                mean, charge = self._arrives(column, done, means[index], shares[index])
                means[index].append(mean)
                for step, memory in enumerate(COMPARED):
                    excess[index, step] *= np.exp(-self.block / memory)
                    excess[index, step] += charge[step] - charge[step + 1]
            shares = [self._share(excess, index, done + 1) for index in range(len(columns))]
            now = list(zip(columns, means, shares, strict=True))
            trends.append([self._trend(column, done + 1, past, share) for column, past, share in now])
        last = [self._now(column, self.blocks, past, share) for column, past, share in now]
        return self._drift_answers(trends, last)

    def _share(self, excess: Array, policy: int, done: int) -> Array:
        together = sum(self.pooled) >= 3 and self.pooled[policy]
        steps = excess[np.array(self.pooled)].sum(axis=0) if together else excess[policy]
        total = np.array([steps[index:].sum() for index in range(len(HORIZONS))])
        favour = np.sqrt(np.minimum(HORIZONS, done * self.block).clip(1e4, 4e5))
        share = favour * np.exp(-(0.4 if together else 1.0) * (total - total.min()))
        return share / share.sum()

    def _arrives(self, part: Part, done: int, means: Sequence[float], share: Array) -> tuple[float, Array]:
        """Return the mean of the block after `done` blocks, and the loss of each decay."""
        q, u, v = self._block_terms(part, done)
        if q.sum() == 0:
            return np.nan, np.zeros(len(HORIZONS))
        if part.v is None:
            mean = (q * u).sum() / q.sum()
        elif done == 0 or np.isnan(means).all():
            mean = (q * u).sum() / (q * v).sum()
        else:
            value = (share * self._estimates(part, done, means)[0]).sum()
            mean = value + ((q * u).sum() - value * (q * v).sum()) / (q.sum() * self._usual(part, done))
        if done == 0:
            return mean, np.zeros(len(HORIZONS))
        estimates, _ = self._estimates(part, done, means)
        charge = (estimates - mean) ** 2 / (2 * self._noise(part, done) / q.sum())
        return mean, np.where(np.isnan(charge), 0.0, charge)

    def _block_terms(self, part: Part, index: int) -> tuple[Array, Array, Array]:
        events = slice(index * self.block, (index + 1) * self.block)
        return part.q[events], part.u[events], np.ones(self.block) if part.v is None else part.v[events]

    def _counts(self, part: Part, done: int) -> Array:
        """Return the averaging weight of each of the first blocks."""
        return part.q[: done * self.block].reshape(done, -1).sum(axis=1)

    def _ages(self, done: int) -> Array:
        """Return how many events ago each of the first blocks ended."""
        return self.block * (done - 1 - np.arange(done))

    def _estimates(self, part: Part, done: int, means: Sequence[float]) -> tuple[Array, Array]:
        """Return the estimate of each decay, and its total weight, including pseudo-events."""
        counts, seen = self._counts(part, done), np.nan_to_num(means[:done])
        values, totals = [], []
        for horizon in HORIZONS:
            weight = counts * np.exp(-self._ages(done) / horizon)
            prior = part.prior[done - 1]
            pseudo = 0.0 if np.isnan(prior) else 500 * np.exp(-done * self.block / horizon)
            totals.append(weight.sum() + pseudo)
            with np.errstate(invalid="ignore"):
                values.append(np.divide((weight * seen).sum() + pseudo * np.nan_to_num(prior), totals[-1]))
        return np.array(values), np.array(totals)

    def _faded(self, column: Array, part: Part, done: int) -> float:
        """Return the sum of q times a column over the first blocks, fading with a horizon of 100,000 events."""
        blocks = (part.q * column)[: done * self.block].reshape(done, -1).sum(axis=1)
        return float((blocks * np.exp(-self._ages(done) / LONG)).sum())

    def _usual(self, part: Part, done: int) -> float:
        assert part.v is not None
        return self._faded(part.v, part, done) / self._faded(np.ones_like(part.u), part, done)

    def _noise(self, part: Part, done: int) -> float:
        """Return the variance of one event's term."""
        count, prior = self._faded(np.ones_like(part.u), part, done), 2_000 * np.exp(-done * self.block / LONG)
        square = part.square[done - 1]
        if part.v is None:
            total, second = (self._faded(column, part, done) for column in (part.u, part.u**2))
            second = (second + prior * square) / (count + prior)
            shrunken = (total + prior * np.nan_to_num(part.prior[done - 1])) / (count + prior)
            return max(second - (total / count) ** 2, (second - shrunken**2) / 4, 1e-6)
        value = self._faded(part.u, part, done) / self._faded(part.v, part, done)
        residual = ((part.u - value * part.v) / self._usual(part, done)) ** 2
        return max((self._faded(residual, part, done) + prior * square) / (count + prior), 1e-6)

    def _now(self, part: Part, done: int, means: Sequence[float], share: Array) -> tuple[float, ...]:
        """Return value, sampling variance, spread, mean age and horizon after this number of blocks."""
        estimates, totals = self._estimates(part, done, means)
        value = (share * estimates).sum()
        event_ages = np.arange(done * self.block)[::-1]
        block_ages = self._ages(done).repeat(self.block)
        q, faded = part.q[: done * self.block], [np.exp(-block_ages / horizon) for horizon in HORIZONS]
        kernel = sum(om * fading / total for om, fading, total in zip(share, faded, totals, strict=True))
        alone = sum(om * fading / (fading * q).sum() for om, fading in zip(share, faded, strict=True))
        event_value = (alone * q * np.nan_to_num(means[:done]).repeat(self.block)).sum()
        block_mean_age = event_ages.reshape(done, -1).mean(axis=1).repeat(self.block)
        return (
            value,
            self._noise(part, done) * (alone**2 * q**2).sum() + (value - event_value) ** 2,
            (share * (estimates - value) ** 2).sum(),
            (kernel * q * block_mean_age).sum(),
            (share * np.minimum(HORIZONS, done * self.block)).sum(),
        )

    def _trend(self, part: Part, done: int, means: Sequence[float], share: Array) -> tuple[float, float]:
        """Return the change per event between decays of the next longer and next shorter horizons, and its variance."""
        counts, ages, last = self._counts(part, done), self._ages(done), len(HORIZONS) - 1
        if np.count_nonzero(counts) < 2:
            return np.nan, np.nan
        kernels = [np.exp(-ages / horizon) / (counts * np.exp(-ages / horizon)).sum() for horizon in HORIZONS]
        shorter = sum(om * kernels[max(index - 1, 0)] for index, om in enumerate(share))
        longer = sum(om * kernels[min(index + 1, last)] for index, om in enumerate(share))
        change, middle = (shorter - longer) * counts, ages + (self.block - 1) / 2
        span = -(change * middle).sum()
        q = part.q[: done * self.block]
        squares = (((shorter - longer).repeat(self.block) * q) ** 2).sum()
        return (change * np.nan_to_num(means[:done])).sum() / span, self._noise(part, done) * squares / span**2

    def _drift_answers(self, trends: list[list[tuple[float, float]]], now: list[tuple[float, ...]]) -> list[Answer]:
        """Return the answers after the last block, from the trend of each policy and its variance after each block."""
        sums = np.zeros((len(now), 2))
        for moment in trends:
            sums *= np.exp(-self.block / LONG)
            sums += np.nan_to_num([(trend**2 / noise - 1, 1 / noise) for trend, noise in moment])
        together = sums[np.array(self.pooled)].sum(axis=0)
        unknown = np.exp(-len(trends) * self.block / LONG)
        answers = []
        for policy, ((value, sampling, spread, age, horizon), (trend, noise)) in enumerate(
            zip(now, trends[-1], strict=True)
        ):
            evidence, precision = together if self.pooled[policy] else sums[policy]
            usual = np.divide(evidence, precision) if precision else np.nan
            drift = np.sqrt(np.maximum(np.fmax(trend**2 - (1 - unknown) * noise, usual), 0.0)) * age
            answers.append(Answer(value, horizon, np.sqrt(sampling), np.sqrt(spread), drift))
        return answers
