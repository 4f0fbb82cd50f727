"""Blocks: the terms of consecutive events, cut into blocks; everything adaptive changes at their ends only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from streameval.common.arrays import ROUNDING, Array, Integers, Mask, State, per_block
from streameval.ope.averages.moments import (
    ALL_ROWS,
    BOTH_TOTALS,
    NONZERO,
    OWN_TOTALS,
    OWN_VARIANCE,
    PAIR_SUMS,
    PAIR_VARIANCE,
    PAIRS,
    ROWS,
    SQUARE_WEIGHTS,
    SUMS,
    TERMS,
    MomentRow,
    PairRow,
)
from streameval.ope.averages.products import ProductTable, Series
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence

CACHED = 2**17
"""Numbers of series that are weighed at once: a megabyte."""


@dataclass(frozen=True)
class Blocks:
    """Series of numbers per event, from which all sums over a block are made.

    A column is one policy under one estimator: column `policy * E + estimator` of E estimators. The blocks are whole,
    or there is one unfinished block.

    Attributes:
        series: the products of terms and weights times the averaging weight
        shared: the same on the events that production has; None if it has all
        importance: [blocks, policies, 1 or estimators, events]
        times: [blocks, events] in seconds, NaN if unknown
        sums, pairs: the series summed by the rows of moments, and of pairs (None without lifts)
        evidence: of each term; terms of several rewards differ in the events that have the reward
        terms: the origin of the blocks
        parts: the columns of `components`: evidence, term, sums, and `seen` as in `ProductTable`
    """

    series: Series
    shared: Series | None
    importance: Array
    times: Array
    sums: Integers
    pairs: Integers | None
    evidence: Sequence[Evidence]
    terms: Sequence[Terms]
    parts: Sequence[tuple[Evidence, Terms, list[int], Array | None]] = ()

    @classmethod
    def of(
        cls,
        evidence: Evidence | Sequence[Evidence],
        terms: Sequence[Terms],
        paired: bool = True,
        components: bool = False,
    ) -> Blocks:
        """The blocks of terms of all events.

        `evidence`: that of all terms, or of each. They share the importance weights. `paired`: with the products for
        lifts over production, and for intervals by the mean weight. `components`: with those of all terms.
        """
        every = [evidence] * len(terms) if isinstance(evidence, Evidence) else list(evidence)
        first, weight, seen = every[0], *_seen(every)
        blocks, importance = first.blocks, first.importance_weight
        table = ProductTable(importance)
        for each in {id(each): each for each in every}.values() if paired else ():
            table.declare(each)
        columns = list(zip(every, terms, seen, strict=True))
        sums = [table.rows(term, first.unsupported, has, paired) for _, term, has in columns]
        pairs = [table.pair_rows(term.numerator, term.denominator, has) for _, term, has in columns] if paired else []
        parts = [
            (each, part, table.rows(part, first.unsupported, has, False), has)
            for each, term, has in (columns if components else ())
            for part in term.parts(each.recent.reward)
        ]
        both = np.where(weight[:, :1] > 0, weight, 0.0)
        alike = not paired or np.array_equal(both, weight)
        times = first.timestamp
        return cls(
            Series.of(table, weight, blocks),
            None if alike else Series.of(table, both, blocks),
            _importance_by_column(importance, seen, blocks),
            np.full((blocks, len(weight) // blocks), np.nan) if times is None else times.reshape(blocks, -1),
            np.array(sums),
            np.array(pairs) if paired else None,
            every,
            terms,
            parts,
        )

    def __len__(self) -> int:
        return int(self.importance.shape[0])

    @property
    def size(self) -> int:
        """Events in each block."""
        return int(self.importance.shape[-1])

    @property
    def _policies(self) -> int:
        return int(self.importance.shape[1])

    @property
    def events(self) -> Integers:
        """The number of events in each block, [blocks]."""
        return np.full(len(self), self.size)

    @cached_property
    def events_of_both(self) -> Array:
        """The number of events in each block that a policy and production have, [blocks, columns]; not of production's
        columns."""
        counts = []
        for evidence in self.evidence:
            both = per_block(evidence.paired_with_production().sample_weight, evidence.blocks)
            counts.append(np.count_nonzero(both, axis=-1).astype(float))
        return np.stack(counts, axis=-1).reshape(len(self), -1)

    @property
    def events_that_differ(self) -> Array:
        """The number of these events whose term is not that of production, [blocks, columns]."""
        counts = []
        for evidence, term in zip(self.evidence, self.terms, strict=True):
            differ = np.zeros(term.numerator[:, 1:].shape, dtype=bool)
            for values in (term.numerator, term.denominator):
                differ |= False if values is None else values[:, 1:] != values[:, :1]
            differ &= evidence.paired_with_production().sample_weight > 0
            counts.append(np.count_nonzero(differ.reshape(len(self), self.size, -1), axis=1).astype(float))
        return np.stack(counts, axis=-1).reshape(len(self), -1)

    @property
    def signed_weights(self) -> Array | None:
        """The sums of the weights of events that production has with the signs of their units, [blocks, columns,
        signs]; None without units."""
        units = self.evidence[0].signs
        if units is None or self.pairs is None:
            return None
        signs, shared = units.reshape(len(self), self.size, -1), self.shared or self.series
        return self._by_column(_signed_sums(shared, signs, self.pairs[:, [PairRow.WEIGHT]]))

    def lifts(self, centres: Array, denominators: Array, components: Sequence[int], rewards: int) -> Blocks:
        """The differences of all terms to those of production, and of their components, on the events of both.

        A ratio is linearised around its `centres` and its mean `denominators`, [blocks, component columns]. The prior
        of a lift is 0. `components`: the number of components of each term; those of all `rewards` are side by side.
        """
        centres, denominators = (each.reshape(len(self), -1, sum(components)) for each in (centres, denominators))
        found = [
            _difference(component, centres[..., place], denominators[..., place])
            for place, component in enumerate(self.components.terms)
        ]
        evidence, prior = [], np.zeros((len(self), centres.shape[1] - 1))
        of_reward = sum(components) // rewards
        for first in range(0, sum(components), of_reward):
            known = [mask for _, mask in found[first : first + of_reward] if mask is not None]
            evidence.append(_evidence_of_lifts(self.components.evidence[first], known))
        parts = [Terms(difference, prior=prior) for difference, _ in found]
        of_terms = [tuple(parts[first:stop]) for first, stop in pairwise(np.cumsum([0, *components]))]
        terms = [Terms(reduce(np.add, [part.numerator for part in of_term]), None, of_term) for of_term in of_terms]
        every = [each for each in evidence for _ in range(len(terms) // rewards)]
        return Blocks.of(every, terms, paired=False, components=True)

    def piece(self, block: int, start: int, stop: int) -> Blocks:
        """Consecutive events of one of the blocks."""
        return self._changed(lambda series: series[block : block + 1, :, :, start:stop])

    def by_bucket(self, resolution: int) -> Blocks:
        """The same events in blocks of `resolution` events, which divides the size."""

        def split(series: Array) -> Array:
            blocks, policies, count, _ = series.shape
            parts = series.reshape(blocks, policies, count, -1, resolution)
            return parts.transpose(0, 3, 1, 2, 4).reshape(-1, policies, count, resolution)

        return self._changed(split)

    def _changed(self, change: Callable[[Array], Array]) -> Blocks:
        """The same with a change to all series [blocks, policies, series, events], for their moments alone."""
        series, shared = self.series.changed(change), self.shared and self.shared.changed(change)
        return replace(self, series=series, shared=shared, importance=change(self.importance))

    def _parts(self) -> Iterator[tuple[slice, Blocks]]:
        """A few of the blocks after the other, so that their series fit the cache of the processor."""
        step = max(1, CACHED // (self._policies * len(self.series.table) * self.size))
        for first in range(0, len(self), step):
            span = slice(first, first + step)
            series, shared = self.series.part(span), self.shared and self.shared.part(span)
            yield span, replace(self, series=series, shared=shared, importance=self.importance[span])

    @cached_property
    def components(self) -> Blocks:
        """The same events with the components of all terms side by side."""
        evidence, terms, sums, seen = zip(*self.parts, strict=True)
        return replace(
            self,
            shared=None,
            importance=_importance_by_column(evidence[0].importance_weight, seen, len(self)),
            sums=np.array(sums),
            pairs=None,
            evidence=evidence,
            terms=terms,
            parts=(),
        )

    @cached_property
    def unpaired(self) -> Blocks:
        """The same terms without pair sums, for an average that keeps lifts apart."""
        return self if self.pairs is None else replace(self, shared=None, pairs=None)

    @property
    def paired_components(self) -> Blocks:
        """The components with the products for lifts over production."""
        parts = [
            (evidence, part)
            for evidence, term in zip(self.evidence, self.terms, strict=True)
            for part in term.parts(evidence.recent.reward)
        ]
        return Blocks.of([evidence for evidence, _ in parts], [part for _, part in parts])

    @cached_property
    def prior(self) -> Array:
        """The value that a term starts from, as known after each block, [blocks, columns]; NaN: none."""
        unknown = np.full((len(self), self._policies), np.nan)
        priors = [unknown if term.prior is None else term.prior for term in self.terms]
        return np.stack(priors, axis=-1).reshape(len(self), -1)

    @cached_property
    def prior_square(self) -> Array:
        """The second moment assumed for a term, as known after each block, [blocks, columns]."""
        recent = [each.recent for each in self.evidence]
        squares = [each.weight_square * each.reward_square[:, None] for each in recent]
        return np.stack(squares, axis=-1).reshape(len(self), -1)

    @cached_property
    def moments(self) -> Array:
        """Moments of each block, every event counting alike, [blocks, columns, rows]; without pairs no largest term."""
        largest = np.array(np.nan)
        if self.pairs is not None:
            largest = self._by_numerator(lambda terms: np.abs(terms, out=terms).max(axis=-1))
        return self._moments(self._summed, self._shared, self._weights.max(axis=-1), largest)

    @cached_property
    def spread(self) -> Array:
        """The rows that each block adds to a variance, [blocks, columns, rows]."""
        rows = NONZERO + 1 if self.pairs is None else PAIR_VARIANCE.stop
        spread = np.empty((len(self), self._policies, len(self.sums), rows))
        _fill_variance(spread[..., OWN_VARIANCE], 2, self._summed, self.sums)
        spread[..., NONZERO] = self._by_numerator(lambda terms: (terms != 0).astype(float) @ np.ones(self.size))
        if self.pairs is not None:
            _fill_variance(spread[..., PAIR_VARIANCE], len(TERMS), self._shared, self.pairs)
        return self._by_column(spread)

    @cached_property
    def compared(self) -> dict[str, Array]:
        """The sums in which blocks are compared, [blocks, columns, rows]: `totals`, and `signed` after the first unit.

        First `sum q^2`, for `signed` of events since the first unit; in a column with a pair, also that of the pair.
        Then the sums of the terms, each with 64 signs in `signed`: u and v; in a column with a pair TERMS, and then u
        and v (in `signed` only if production lacks events).
        """
        totals = self.spread[..., OWN_TOTALS if self.pairs is None else BOTH_TOTALS]
        units = self.evidence[0].signs
        if units is None:
            return {"totals": totals}
        signs, rows = units.reshape(len(self), self.size, -1), []
        if self.pairs is not None:
            rows.append(_signed_sums(self.shared or self.series, signs, self.pairs[:, PAIR_SUMS]))
        if self.pairs is None or self.shared is not None:
            rows.append(_signed_sums(self.series, signs, self.sums[:, [MomentRow.U, MomentRow.V]]))
        covered = totals[..., : 1 if self.pairs is None else 2] * (signs[:, :1, :1] != 0)
        return {"totals": totals, "signed": np.concatenate([covered, *map(self._by_column, rows)], axis=-1)}

    @cached_property
    def variance_steps(self) -> list[tuple[State, tuple[dict[str, Array], State]]]:
        """The steps of `variance` over these blocks, for all averages; each with the ends of the stream before them."""
        return []

    def decayed(self, alpha: Array | float) -> Array:
        """Moments of each block in which an event counts `alpha^age`, the newest having age 0, [blocks, columns, rows].

        `alpha` is one number, or [blocks, columns].
        """
        alpha = np.asarray(alpha)
        if not alpha.ndim:
            return self.weighed(powers(alpha[None], self.size))
        alpha = alpha.reshape(len(self), self._policies, -1)
        return np.concatenate([part._weighed_apart(powers(alpha[span], self.size)) for span, part in self._parts()])

    def weighed(self, kernel: Array) -> Array:
        """The same for weights of events, [blocks or 1, events]."""
        series, shared = self.series.weighed(kernel), self.shared and self.shared.weighed(kernel)
        return replace(self, series=series, shared=shared).moments

    def _weighed_apart(self, kernel: Array) -> Array:
        """The same for weights that differ, [blocks, policies or 1, estimators, events]."""
        weight = kernel if self._counts_once else self._weights * kernel
        own = shared = _kernel_sums(self.series.values, kernel), _squares(weight)
        if self.shared is not None:
            shared = _kernel_sums(self.shared.values, kernel), _squares(_weights(self.shared, self.sums) * kernel)
        numerators, places = self._numerators
        magnitudes = self.series.take(numerators[places])
        np.multiply(np.abs(magnitudes, out=magnitudes), kernel, out=magnitudes)
        return self._moments(own, shared, weight.max(axis=-1), magnitudes.max(axis=-1))

    def by_group(self, kernel: Array) -> Array:
        """Moments of groups of the events of one block, under one estimator, [policies * groups, rows].

        `kernel` [groups, events]: the weight of each event in each group.
        """
        assert self.pairs is not None
        several = replace(self, sums=np.repeat(self.sums, len(kernel), 0), pairs=np.repeat(self.pairs, len(kernel), 0))
        return np.asarray(several._weighed_apart(kernel[None, None])[0])

    def _moments(
        self, own: tuple[Array, Array], shared: tuple[Array, Array], largest_weight: Array, largest_term: Array
    ) -> Array:
        """Moments from the sums of all series and of `q^2`, and from the largest values, per estimator or one for all.

        `shared`: the sums over the events that production has.
        """
        moments = np.empty((len(self), self._policies, len(self.sums), ROWS if self.pairs is None else ALL_ROWS))
        moments[..., SUMS] = _chosen(own[0], self.sums)
        if self.evidence[0].unsupported is None:
            moments[..., MomentRow.UNSUPPORTED] = 0.0
        moments[..., MomentRow.WEIGHT_SQUARE] = own[1]
        moments[..., MomentRow.LARGEST_WEIGHT] = largest_weight
        moments[..., MomentRow.LARGEST_TERM] = largest_term
        moments[..., MomentRow.LARGEST_IMPORTANCE] = self._largest_importance
        if self.pairs is not None:
            moments[..., PAIRS] = _chosen(shared[0], self.pairs)
            moments[..., SQUARE_WEIGHTS[1]] = shared[1]
        return self._by_column(moments)

    def _by_column(self, array: Array) -> Array:
        return np.asarray(array.reshape(len(self), -1, array.shape[-1]))

    @cached_property
    def _numerators(self) -> tuple[Integers, Integers]:
        """The series of all numerators, each once, and for each estimator the place of its own among them."""
        series, places = np.unique(self.sums[:, MomentRow.U], return_inverse=True)
        return series, places.ravel()

    def _by_numerator(self, compute: Callable[[Array], Array]) -> Array:
        """A number about each `q u` [blocks, policies, events] of a block, [blocks, policies, estimators]."""
        series, places = self._numerators
        found = [compute(self.series.take([each])[:, :, 0]) for each in series.tolist()]
        return np.stack(found, axis=-1).take(places, axis=2)

    @property
    def _counts_once(self) -> bool:
        """Whether every column has every event with a weight of 1."""
        return self.series.weight is None and bool((self.sums[:, MomentRow.WEIGHT] == ProductTable.ONE).all())

    @cached_property
    def _weights(self) -> Array:
        return np.ones((1, 1, 1, self.size)) if self._counts_once else _weights(self.series, self.sums)

    @cached_property
    def _totals(self) -> Array:
        """The sums of all series."""
        return self.series.totals[..., None]

    @cached_property
    def _summed(self) -> tuple[Array, Array]:
        """The sums of all series, and of `q^2`."""
        return self._totals, _squares(self._weights)

    @cached_property
    def _shared(self) -> tuple[Array, Array]:
        """The same over the events that production has."""
        if self.shared is None:
            return self._summed
        return self.shared.totals[..., None], _squares(_weights(self.shared, self.sums))

    @cached_property
    def _largest_importance(self) -> Array:
        return np.asarray(self.importance.max(axis=-1))


def _evidence_of_lifts(evidence: Evidence, known: Sequence[Mask]) -> Evidence:
    """The evidence about the differences to production, on the events that both have and whose terms are known."""
    shared, recent = evidence.paired_with_production(), evidence.recent
    recent = recent._replace(weight_square=recent.distance_square[:, 1:])
    weight = shared.sample_weight
    for mask in known:
        weight = weight if mask.all() else np.where(mask, weight, 0.0)
    return replace(shared, sample_weight=weight, recent=recent)


def _difference(component: Terms, centre: Array, denominator: Array) -> tuple[Array, Mask | None]:
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


def _seen(evidence: Sequence[Evidence]) -> tuple[Array, list[Array | None]]:
    """The averaging weight of an event that any of these has, [events, policies], and `seen` of each."""
    weights = {id(each.sample_weight): each.sample_weight for each in evidence}
    if len(weights) == 1:
        return evidence[0].sample_weight, [None] * len(evidence)
    weight = np.maximum.reduce([each.T for each in weights.values()]).T
    seen: dict[int, Array | None] = {
        key: None if np.array_equal(each, weight) else (each > 0).astype(float) for key, each in weights.items()
    }
    return weight, [seen[id(each.sample_weight)] for each in evidence]


def _importance_by_column(importance: Array, seen: Sequence[Array | None], blocks: int) -> Array:
    """The importance weights [blocks, policies, 1 or estimators, events], 0 for events that a column lacks."""
    if all(each is None for each in seen):
        return per_block(importance, blocks)[:, :, None]
    columns = (importance if each is None else importance * each for each in seen)
    return np.stack([per_block(each, blocks) for each in columns], axis=2)


def _weights(series: Series, sums: Integers) -> Array:
    """The averaging weights, [blocks, policies, 1 or estimators, events]. `sums`: the places of each estimator."""
    places = sums[:, MomentRow.WEIGHT]
    return series.take(places if (places != ProductTable.ONE).any() else places[:1])


def _squares(weights: Array) -> Array:
    """Sums of squares over the last axis."""
    return np.asarray(np.einsum("bpei,bpei->bpe", weights, weights))


def _kernel_sums(weighted: Array, kernel: Array) -> Array:
    """Sums of all series under each kernel [.., kernels, events], [blocks, policies, series, kernels]."""
    if kernel.size == weighted.shape[-1]:
        return np.asarray(weighted.reshape(-1, kernel.size) @ kernel.ravel()).reshape(*weighted.shape[:-1], 1)
    return np.asarray(np.matmul(weighted, kernel.swapaxes(2, 3)))


def _chosen(summed: Array, places: Integers) -> Array:
    """The sums [blocks, policies, series, kernels] at these places, [blocks, policies, estimators, rows].

    Each estimator has its own kernel, or there is one for all.
    """
    blocks, policies, series, kernels = summed.shape
    own = np.arange(len(places))[:, None] if kernels > 1 else 0
    return np.asarray(summed.reshape(blocks, policies, series * kernels).take(places * kernels + own, axis=-1))


def _fill_variance(rows: Array, terms: int, sums: tuple[Array, Array], places: Integers) -> None:
    """Fill the rows of a variance [blocks, policies, estimators, rows] from the sums of series and of `q^2`."""
    plain = 1 + terms + terms * (terms + 1) // 2
    rows[..., :plain] = _chosen(sums[0], places[:, :plain])
    rows[..., -2] = sums[1]
    rows[..., -1] = rows[..., 0] > 0


def _signed_sums(series: Series, signs: Array, terms: Integers) -> Array:
    """The signed sums of terms, [blocks, policies, estimators, terms * signs]."""
    wanted, inverse = np.unique(terms, return_inverse=True)
    values = series.take(wanted)
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
