"""Sums over the events of blocks, and the differences of terms to those of production."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Integers, Mask, per_block
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence


def by_block(columns: Sequence[Array | None], blocks: int, span: slice | None = None) -> list[Array]:
    """Those that are known, in a span of the blocks, [blocks, policies, events] each."""
    return [per_block(column, blocks)[span or slice(None)] for column in columns if column is not None]


def product(factors: Sequence[Array], out: Array | None = None) -> Array:
    """The product of some factors."""
    if len(factors) > 1:
        product = np.multiply(factors[0], factors[1], out=out)
        for factor in factors[2:]:
            product = np.multiply(product, factor, out=product)
        return product
    product = factors[0] if factors else np.ones(())
    if out is not None:
        out[...] = product
    return product


def squares(weights: Array) -> Array:
    """Sums of squares over the last axis."""
    return np.asarray(np.einsum("bpei,bpei->bpe", weights, weights))


def kernel_sums(weighted: Array, kernel: Array) -> Array:
    """Sums of all series under each kernel [.., kernels, events], [blocks, policies, series, kernels]."""
    if kernel.size == weighted.shape[-1]:
        return np.asarray(weighted.reshape(-1, kernel.size) @ kernel.ravel()).reshape(*weighted.shape[:-1], 1)
    return np.asarray(np.matmul(weighted, kernel.swapaxes(2, 3)))


def chosen(summed: Array, places: Integers) -> Array:
    """The sums [blocks, policies, series, kernels] at these places, [blocks, policies, estimators, rows].

    Each estimator has its own kernel, or there is one for all.
    """
    blocks, policies, series, kernels = summed.shape
    own = np.arange(len(places))[:, None] if kernels > 1 else 0
    return np.asarray(summed.reshape(blocks, policies, series * kernels).take(places * kernels + own, axis=-1))


def fill_variance(rows: Array, terms: int, sums: tuple[Array, Array], places: Integers) -> None:
    """Fill the rows of a variance [blocks, policies, estimators, rows] from the sums of series and of `q^2`."""
    plain = 1 + terms + terms * (terms + 1) // 2
    rows[..., :plain] = chosen(sums[0], places[:, :plain])
    rows[..., -2] = sums[1]
    rows[..., -1] = rows[..., 0] > 0


def signed_sums(take: Callable[[Integers], Array], signs: Array, terms: Integers) -> Array:
    """The signed sums of terms, [blocks, policies, estimators, terms * signs]; `take`: the series at some places."""
    wanted, inverse = np.unique(terms, return_inverse=True)
    values = take(wanted)
    blocks, policies, _, size = values.shape
    sums = values.reshape(blocks, -1, size) @ signs
    by_series = sums.reshape(blocks, policies, len(wanted), -1)
    return by_series.take(inverse.ravel(), axis=2).reshape(blocks, policies, len(terms), -1)


def powers(base: Array, count: int) -> Array:
    """`base^(count - 1) .. base^0` on a new last axis, by doubling."""
    result = np.empty((count, base.size))  # events first: long rows are multiplied faster
    result[-1] = 1.0
    done = 1
    while done < count:
        step = min(done, count - done)
        np.multiply(
            result[count - step :], result[-done] * base.ravel(), out=result[count - done - step : count - done]
        )
        done += step
    return np.ascontiguousarray(result.T).reshape(*base.shape, count)


def seen_by(evidence: Sequence[Evidence]) -> tuple[Array, list[Array | None]]:
    """The averaging weight of an event that any of these has, [events, policies], and `seen` of each."""
    weights = {id(each.sample_weight): each.sample_weight for each in evidence}
    if len(weights) == 1:
        return evidence[0].sample_weight, [None] * len(evidence)
    weight = np.maximum.reduce([each.T for each in weights.values()]).T
    seen: dict[int, Array | None] = {
        key: None if np.array_equal(each, weight) else (each > 0).astype(float) for key, each in weights.items()
    }
    return weight, [seen[id(each.sample_weight)] for each in evidence]


def importance_by_column(importance: Array, seen: Sequence[Array | None], blocks: int) -> Array:
    """The importance weights [blocks, policies, 1 or estimators, events], 0 for events that a column lacks."""
    if all(each is None for each in seen):
        return per_block(importance, blocks)[:, :, None]
    columns = (importance if each is None else importance * each for each in seen)
    return np.stack([per_block(each, blocks) for each in columns], axis=2)


def evidence_of_lifts(evidence: Evidence, known: Sequence[Mask]) -> Evidence:
    """The evidence about the differences to production, on the events that both have and whose terms are known."""
    shared, recent = evidence.paired_with_production(), evidence.recent
    recent = recent._replace(weight_square=recent.distance_square[:, 1:])
    weight = shared.sample_weight
    for mask in known:
        weight = weight if mask.all() else np.where(mask, weight, 0.0)
    return replace(shared, sample_weight=weight, recent=recent)


def difference(component: Terms, centre: Array, denominator: Array) -> tuple[Array, Mask | None]:
    """A component of all policies less that of the first, [n, P - 1], and where it is known; None: everywhere.

    A ratio is linearised. `centre`, `denominator` [blocks, P]: the estimate and the recent mean denominator before each
    block. Rounding in a ratio counts as 0: a constant reward would otherwise give a lift of 1e-17, always on one side
    of 0, as the estimates around which both are linearised differ in their last digit.
    """
    u, v = component.numerator, component.denominator
    if v is None:
        return u[:, 1:] - u[:, :1], None
    centre, denominator = (np.repeat(each.T, len(u) // len(each), axis=1).T for each in (centre, denominator))
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = centre * v
        value = centre + (u - expected) / denominator
        size = np.abs(centre) + (np.abs(u) + np.abs(expected)) / np.abs(denominator)
    difference = value[:, 1:] - value[:, :1]
    known, rounding = np.isfinite(difference), ROUNDING * (size[:, 1:] + size[:, :1])
    return np.where(known & (np.abs(difference) > rounding), difference, 0.0), known
