"""Blocks: the terms of consecutive events, cut into blocks; everything adaptive changes at their ends only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    PRODUCTS,
    ROWS,
    SQUARE_WEIGHTS,
    SUMS,
    TERMS,
    MomentRow,
    PairRow,
)
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence

SAMPLED = 97
"""One event in this many is compared first, to find series that cannot be equal."""


class ProductTable:
    """Products of numbers per event, [events, policies]; equal ones, as of rewards of 0 and 1, are kept once.

    `seen` in its methods: 1 for the events that a column has, 0 for the others; None where it has all.
    """

    ONE = 0

    def __init__(self, importance: Array) -> None:
        self._importance = importance
        self._kept: list[tuple[Array, ...]] = [()]  # a product without factors: 1
        self._places: dict[tuple[int, ...], int] = {(): self.ONE}
        self._equal: dict[int, Array] = {}  # by the identity of an array the equal one that is kept
        self._alike: dict[bytes, list[int]] = {}
        self._production: list[Array] = []

    def place(self, *factors: Array | None) -> int:
        """The place of the product of at most three factors; None counts as 1."""
        given = tuple(self._equal.get(id(factor), factor) for factor in factors if factor is not None)
        key = tuple(sorted(map(id, given)))
        if key not in self._places:
            self._places[key] = self._keep(given)
        return self._places[key]

    def _keep(self, factors: tuple[Array, ...]) -> int:
        """The place of the product, or of an equal one that is kept already."""
        sample = _product([factor[::SAMPLED] for factor in factors]).tobytes()
        alike = self._alike.setdefault(sample, [])
        if alike:
            values = _product(factors)
            for place in alike:
                if np.array_equal(_product(self._kept[place]), values):
                    if len(factors) == len(self._kept[place]) == 1:
                        self._equal[id(factors[0])] = self._kept[place][0]
                    return place
        alike.append(len(self._kept))
        self._kept.append(factors)
        return alike[-1]

    def rows(self, term: Terms, unsupported: Array | None, seen: Array | None, paired: bool) -> list[int]:
        """The places of the rows of a column, in the order of `MomentRow`; unknown ones have that of 1.

        `paired`: with the product of the term and the importance weight.
        """
        w, u, v = self._importance, term.numerator, term.denominator
        terms = ((u,), (v,), (u, u), (u, v), (v, v))
        every = ((), *terms, (w,), (w, w), (unsupported,), (u, w) if paired else ())
        return [self.place(*product, seen) for product in every]

    def pair_rows(self, u: Array, v: Array | None, seen: Array | None = None) -> list[int]:
        """The places of the pair rows of a column and production, the first policy, in the order of `PairRow`.

        The sum of squared averaging weights is not a product of these; it has the place of 1.
        """
        w, pu, pv = self._importance, self._of_production(u), None if v is None else self._of_production(v)
        terms = dict(zip(TERMS, (u, v, pu, pv), strict=True))
        products = [(terms[one], terms[other]) for one, other in PRODUCTS]
        singles = [(term,) for term in terms.values()]
        every = ((), *singles, *products, (), (w,), (w, w), (u, w), (pu, w))
        return [self.place(*product, seen) for product in every]

    def weighted(self, sample_weight: Array, blocks: int) -> Array:
        """All series times these averaging weights [events, policies], as [blocks, policies, series, events]."""
        weights = [] if (sample_weight == 1.0).all() else [sample_weight]
        events, policies = sample_weight.shape
        weighted = np.empty((blocks, policies, len(self._kept), events // blocks))
        for place, factors in enumerate(self._kept):
            _product([per_block(factor, blocks) for factor in (*factors, *weights)], weighted[:, :, place])
        return weighted

    def _of_production(self, values: Array) -> Array | None:
        """Production's column for every policy, the same array for equal columns; None where it is 1."""
        column = values[:, :1]
        if (column == 1.0).all():
            return None
        for known in self._production:
            if np.array_equal(known[:, :1], column):
                return known
        self._production.append(np.broadcast_to(column, values.shape))
        return self._production[-1]


def _product(factors: Sequence[Array], out: Array | None = None) -> Array:
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


@dataclass(frozen=True)
class Blocks:
    """Series of numbers per event, from which all sums over a block are made.

    A column is one policy under one estimator: column `policy * E + estimator` of E estimators. The blocks are whole,
    or there is one unfinished block.

    Attributes:
        weighted: [blocks, policies, series, events] the series times the averaging weight
        shared: the same on the events that production has; None if it has all
        importance: [blocks, policies, 1 or estimators, events]
        times: [blocks, events] in seconds, NaN if unknown
        sums, pairs: the series summed by the rows of moments, and of pairs (None without lifts)
        evidence: of each term; terms of several rewards differ in the events that have the reward
        terms: the origin of the blocks
        parts: the columns of `components`: evidence, term, sums, and `seen` as in `ProductTable`
        whole: of components, the blocks of the terms, with the same series
    """

    weighted: Array
    shared: Array | None
    importance: Array
    times: Array
    sums: Integers
    pairs: Integers | None
    evidence: Sequence[Evidence]
    terms: Sequence[Terms]
    parts: Sequence[tuple[Evidence, Terms, list[int], Array | None]] = ()
    whole: Blocks | None = None

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
        series = ProductTable(importance)
        columns = list(zip(every, terms, seen, strict=True))
        sums = [series.rows(term, first.unsupported, has, paired) for _, term, has in columns]
        pairs = [series.pair_rows(term.numerator, term.denominator, has) for _, term, has in columns] if paired else []
        parts = [
            (each, part, series.rows(part, first.unsupported, has, False), has)
            for each, term, has in (columns if components else ())
            for part in term.parts(each.recent.reward)
        ]
        both = np.where(weight[:, :1] > 0, weight, 0.0)
        alike = not paired or np.array_equal(both, weight)
        times = first.timestamp
        return cls(
            series.weighted(weight, blocks),
            None if alike else series.weighted(both, blocks),
            _importance_by_column(importance, seen, blocks),
            np.full((blocks, len(weight) // blocks), np.nan) if times is None else times.reshape(blocks, -1),
            np.array(sums),
            np.array(pairs) if paired else None,
            every,
            terms,
            parts,
        )

    def __len__(self) -> int:
        return int(self.weighted.shape[0])

    @property
    def size(self) -> int:
        """Events in each block."""
        return int(self.weighted.shape[-1])

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
        signs, shared = units.reshape(len(self), self.size, -1), self.weighted if self.shared is None else self.shared
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
        return self._with(lambda series: series[block : block + 1, :, :, start:stop])

    def by_bucket(self, resolution: int) -> Blocks:
        """The same events in blocks of `resolution` events, which divides the size."""

        def split(series: Array) -> Array:
            blocks, policies, count, _ = series.shape
            parts = series.reshape(blocks, policies, count, -1, resolution)
            return parts.transpose(0, 3, 1, 2, 4).reshape(-1, policies, count, resolution)

        return self._with(split)

    def _with(self, change: Callable[[Array], Array]) -> Blocks:
        """The same with a change to all series [blocks, policies, series, events], for their moments alone."""
        return replace(
            self,
            weighted=change(self.weighted),
            shared=None if self.shared is None else change(self.shared),
            importance=change(self.importance),
            whole=None,
        )

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
            whole=self,
        )

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
        unknown = np.full((len(self), self.weighted.shape[1]), np.nan)
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
        """Moments of each block, every event counting alike, [blocks, columns, rows]."""
        return self._moments(self._summed, self._shared, self._weights.max(axis=-1), self._largest_terms())

    @cached_property
    def spread(self) -> Array:
        """The rows that each block adds to a variance, [blocks, columns, rows]."""
        blocks, policies = self.weighted.shape[:2]
        rows = NONZERO + 1 if self.pairs is None else PAIR_VARIANCE.stop
        spread = np.empty((blocks, policies, len(self.sums), rows))
        _fill_variance(spread[..., OWN_VARIANCE], 2, self._summed, self.sums)
        spread[..., NONZERO] = np.count_nonzero(self._magnitudes, axis=-1).take(self._numerators[1], axis=2)
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
            shared = self.weighted if self.shared is None else self.shared
            rows.append(_signed_sums(shared, signs, self.pairs[:, PAIR_SUMS]))
        if self.pairs is None or self.shared is not None:
            rows.append(_signed_sums(self.weighted, signs, self.sums[:, [MomentRow.U, MomentRow.V]]))
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
        alpha = alpha.reshape(len(self), self.weighted.shape[1], -1) if alpha.ndim else alpha.reshape(1, 1, 1)
        return self.weighed(powers(alpha, self.size))

    def weighed(self, kernel: Array) -> Array:
        """The same for weights [blocks or 1, policies or 1, estimators or 1, events]."""
        weight = self._weights * kernel
        own = shared = _kernel_sums(self.weighted, kernel), _squares(weight)
        if self.shared is not None:
            shared = _kernel_sums(self.shared, kernel), _squares(_weights(self.shared, self.sums) * kernel)
        return self._moments(own, shared, weight.max(axis=-1), self._largest_terms(kernel))

    def by_group(self, kernel: Array) -> Array:
        """Moments of groups of the events of one block, under one estimator, [policies * groups, rows].

        `kernel` [groups, events]: the weight of each event in each group.
        """
        assert self.pairs is not None
        several = replace(self, sums=np.repeat(self.sums, len(kernel), 0), pairs=np.repeat(self.pairs, len(kernel), 0))
        return np.asarray(several.weighed(kernel[None, None])[0])

    def _moments(
        self, own: tuple[Array, Array], shared: tuple[Array, Array], largest_weight: Array, largest_term: Array
    ) -> Array:
        """Moments from the sums of all series and of `q^2`, and from the largest values, per estimator or one for all.

        `shared`: the sums over the events that production has.
        """
        blocks, policies = self.weighted.shape[:2]
        moments = np.empty((blocks, policies, len(self.sums), ROWS if self.pairs is None else ALL_ROWS))
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

    @cached_property
    def _magnitudes(self) -> Array:
        """`q |u|` of each numerator; `take`, unlike an index, leaves events side by side."""
        magnitudes = self.weighted.take(self._numerators[0], axis=2)
        return np.abs(magnitudes, out=magnitudes)

    def _largest_terms(self, kernel: Array | None = None) -> Array:
        """The largest `q |u|` times the kernel of each estimator, [blocks, policies, estimators]."""
        magnitudes, places = self._magnitudes, self._numerators[1]
        if kernel is None or kernel.shape[2] == 1:
            largest = (magnitudes if kernel is None else magnitudes * kernel).max(axis=-1)
            return np.asarray(largest.take(places, axis=2))
        return np.asarray((magnitudes.take(places, axis=2) * kernel).max(axis=-1))

    @cached_property
    def _weights(self) -> Array:
        return _weights(self.weighted, self.sums)

    @cached_property
    def _totals(self) -> Array:
        """The sums of all series."""
        return _kernel_sums(self.weighted, np.ones((1, 1, 1, self.size))) if self.whole is None else self.whole._totals

    @cached_property
    def _summed(self) -> tuple[Array, Array]:
        """The sums of all series, and of `q^2`."""
        return self._totals, _squares(self._weights)

    @cached_property
    def _shared(self) -> tuple[Array, Array]:
        """The same over the events that production has."""
        if self.shared is None:
            return self._summed
        return _kernel_sums(self.shared, np.ones((1, 1, 1, self.size))), _squares(_weights(self.shared, self.sums))

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


def _weights(weighted: Array, sums: Integers) -> Array:
    """The averaging weights, [blocks, policies, 1 or estimators, events]; one row for all if every event counts once.

    `sums`: the places of the rows of each estimator.
    """
    places = sums[:, MomentRow.WEIGHT]
    if (places != ProductTable.ONE).any():
        return np.asarray(weighted.take(places, axis=2))
    weights = weighted[:, :, ProductTable.ONE, None]
    return np.ones((1, 1, 1, weights.shape[-1])) if (weights == 1.0).all() else weights


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


def _signed_sums(weighted: Array, signs: Array, terms: Integers) -> Array:
    """The signed sums of terms, [blocks, policies, estimators, terms * signs]."""
    blocks, policies, _, size = weighted.shape
    wanted, inverse = np.unique(terms, return_inverse=True)
    sums = weighted.take(wanted, axis=2).reshape(blocks, -1, size) @ signs
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
