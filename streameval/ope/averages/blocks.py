"""Blocks: the terms of consecutive events, cut into blocks; everything adaptive changes at their ends only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from itertools import pairwise

import numpy as np

from streameval.common.arrays import Array, Integers, State, per_block
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
    chosen,
    fill_variance,
    importance_by_column,
    kernel_sums,
    powers,
    product,
    signed_sums,
    squares,
    with_near_events,
)
from streameval.ope.estimators import Terms
from streameval.ope.evidence.evidence import Evidence, seen_by

SAMPLED = 97
"""One event in this many is compared first, to find series that cannot be equal."""


class ProductTable:
    """Products of numbers per event, [events, policies], each once; kept as [blocks, policies, events].

    `seen` in its methods: 1 for the events that a column has, 0 for the others; None where it has all.
    """

    ONE = 0

    def __init__(self, importance: Array, blocks: int) -> None:
        self._importance = importance
        self._blocks = blocks
        self._kept: list[tuple[Array, ...]] = [(np.broadcast_to(1.0, self.shape),)]  # a product without factors: 1
        self._places: dict[tuple[int, ...], int] = {(): self.ONE}
        self._asked: dict[tuple[int, ...], int] = {}  # by the identities of factors
        self._first: dict[int, Array] = {}  # by the identity of an array the first one that is equal
        self._alike: dict[bytes, list[Array]] = {}
        self._factors: dict[int, tuple[Array, ...]] = {}  # by the identity of an array
        self._given: list[Array] = []  # kept, so that identities stay unique
        self._masks: set[int] = set()  # the identities of columns of 0 and 1
        self._production: list[Array] = []
        self._cuts: dict[int, Array] = {}  # by the identity of an array

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Blocks, policies, and events of a block."""
        events, policies = self._importance.shape
        return self._blocks, policies, events // self._blocks

    def declare(self, evidence: Evidence) -> None:
        """Take a weighted reward as the product that it is, so that other products are known to be equal to it."""
        if evidence.weighted is None:
            reward = self._of_production(evidence.reward[:, None], self._importance.shape)
            known = self._unified(evidence.weighted_reward)
            if reward is not None and id(known) not in self._factors:
                self._factors[id(known)] = (reward, self._unified(self._importance))

    def place(self, *factors: Array | None) -> int:
        """The place of the product of at most three factors; None counts as 1."""
        asked = tuple(map(id, factors))
        if asked not in self._asked:
            given = tuple(self._unified(factor) for factor in factors if factor is not None)
            place = self._asked[asked] = self._places.setdefault(self._key(given), len(self._kept))
            if place == len(self._kept):
                self._kept.append(tuple(self._cut(factor) for factor in given))
        return self._asked[asked]

    def _cut(self, column: Array) -> Array:
        """A column by block, with the events of a block side by side."""
        cut = self._cuts.get(id(column))
        if cut is None:
            cut = self._cuts[id(column)] = with_near_events(per_block(column, self._blocks))
        return cut

    def _key(self, factors: Sequence[Array]) -> tuple[int, ...]:
        """The same for equal products, as of rewards of 0 and 1, whose squares are the rewards."""
        every = [id(part) for factor in factors for part in self._factors.get(id(factor), (factor,))]
        return tuple(
            sorted([each for each in every if each not in self._masks] + list(self._masks.intersection(every)))
        )

    def _unified(self, column: Array) -> Array:
        """The first of all equal columns."""
        if id(column) not in self._first:
            alike = self._alike.setdefault(column[::SAMPLED].tobytes(), [])
            equal = next((each for each in alike if np.array_equal(each, column)), None)
            if equal is None:
                alike.append(column)
            self._first[id(column)] = column if equal is None else equal
            self._given.append(column)
        return self._first[id(column)]

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
        w, pu = self._importance, self._of_production(u[:, :1], u.shape)
        pv = None if v is None else self._of_production(v[:, :1], v.shape)
        terms = dict(zip(TERMS, (u, v, pu, pv), strict=True))
        products = [(terms[one], terms[other]) for one, other in PRODUCTS]
        singles = [(term,) for term in terms.values()]
        every = ((), *singles, *products, (), (w,), (w, w), (u, w), (pu, w))
        return [self.place(*product, seen) for product in every]

    def weighted(
        self, weight: Array | None, span: slice = slice(None), places: Sequence[int] | Integers | None = None
    ) -> Array:
        """The series times an averaging weight, in a span of the blocks, [blocks, policies, series, events].

        `weight` [blocks, policies, events]: None where it is 1. `places`: None for all.
        """
        kept = self._kept if places is None else [self._kept[place] for place in places]
        blocks, policies, events = self.shape
        weighted = np.empty((len(range(blocks)[span]), policies, len(kept), events))
        for place, factors in enumerate(kept):
            every = factors if weight is None else (*factors, weight)
            product([each[span] for each in every], weighted[:, :, place])
        return weighted

    def totals(self, weight: Array | None) -> Array:
        """The sums of all series times an averaging weight over each block, [blocks, policies, series]."""
        totals = np.empty((*self.shape[:2], len(self._kept)))
        for place, factors in enumerate(self._kept):
            *others, last = factors if weight is None else (*factors, weight)
            if others:
                np.einsum("bpn,bpn->bp", product(others), last, out=totals[:, :, place])
            else:
                last.sum(axis=-1, out=totals[:, :, place])
        return totals

    def _of_production(self, column: Array, shape: tuple[int, ...]) -> Array | None:
        """Production's column [events, 1] for every policy, the same array for equal columns; None where it is 1."""
        if (column == 1.0).all():
            return None
        for known in self._production:
            if np.array_equal(known[:, :1], column):
                return known
        found = np.broadcast_to(column, shape)
        self._production.append(found)
        if ((column == 0.0) | (column == 1.0)).all():
            self._masks.add(id(found))
        return found


@dataclass(frozen=True)
class EventSeries:
    """The series of a table times an averaging weight; an array is made only where one is needed.

    `weight` [blocks, policies, events]: None where it is 1. `span`: the blocks among all those of the table. `given`:
    the array, where the events are others than those of the table.
    """

    table: ProductTable
    weight: Array | None
    span: slice = field(default_factory=lambda: slice(None))
    given: Array | None = None

    @classmethod
    def of(cls, table: ProductTable, weight: Array, blocks: int) -> EventSeries:
        """All series of a table."""
        return cls(table, None if (weight == 1.0).all() else with_near_events(per_block(weight, blocks)))

    @cached_property
    def values(self) -> Array:
        """All series, [blocks, policies, series, events]."""
        return self.table.weighted(self.weight, self.span) if self.given is None else self.given

    @cached_property
    def totals(self) -> Array:
        """The sums of all series over each block, [blocks, policies, series]."""
        if self.given is not None:
            return kernel_sums(self.given, np.ones(self.given.shape[-1]))[..., 0]
        return self.table.totals(self.weight)[self.span]

    def take(self, places: Sequence[int] | Integers) -> Array:
        """The series at these places; `take`, unlike an index, leaves events side by side."""
        if self.given is None and "values" not in self.__dict__:
            return self.table.weighted(self.weight, self.span, places)
        return self.values.take(places, axis=2)

    def changed(self, change: Callable[[Array], Array]) -> EventSeries:
        """The same with a change to the array."""
        return replace(self, given=change(self.values))

    def weighed(self, kernel: Array) -> EventSeries:
        """The same times the weight of each event, [blocks or 1, events]."""
        if self.given is not None:
            return replace(self, given=self.given * kernel[:, None, None])
        own = 1.0 if self.weight is None else self.weight
        return replace(self, weight=np.broadcast_to(kernel[:, None] * own, self.table.shape))

    def part(self, span: slice) -> EventSeries:
        """Some of the blocks."""
        return replace(self, span=span) if self.given is None else replace(self, given=self.given[span])


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

    series: EventSeries
    shared: EventSeries | None
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
        first, weight, seen = every[0], *seen_by(every)
        blocks, importance = first.blocks, first.importance_weight
        table = ProductTable(importance, blocks)
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
            EventSeries.of(table, weight, blocks),
            None if alike else EventSeries.of(table, both, blocks),
            importance_by_column(importance, seen, blocks),
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
        return self._by_column(signed_sums(shared.take, signs, self.pairs[:, [PairRow.WEIGHT]]))

    def lifts(self, centres: Array, denominators: Array, components: Sequence[int], rewards: int) -> Blocks:
        """The differences of all terms to those of production, and of their components, on the events of both.

        A ratio is linearised around its `centres` and its mean `denominators`, [blocks, component columns]. The prior
        of a lift is 0. `components`: the number of components of each term; those of all `rewards` are side by side.
        """
        centres, denominators = (each.reshape(len(self), -1, sum(components)) for each in (centres, denominators))
        found = [
            component.over_production(centres[..., place], denominators[..., place])
            for place, component in enumerate(self.components.terms)
        ]
        evidence, prior = [], np.zeros((len(self), centres.shape[1] - 1))
        of_reward = sum(components) // rewards
        for first in range(0, sum(components), of_reward):
            known = [mask for _, mask in found[first : first + of_reward] if mask is not None]
            evidence.append(self.components.evidence[first].of_lifts(known))
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

    @cached_property
    def components(self) -> Blocks:
        """The same events with the components of all terms side by side."""
        evidence, terms, sums, seen = zip(*self.parts, strict=True)
        return replace(
            self,
            shared=None,
            importance=importance_by_column(evidence[0].importance_weight, seen, len(self)),
            sums=np.array(sums),
            pairs=None,
            evidence=evidence,
            terms=terms,
            parts=(),
        )

    @property
    def unpaired(self) -> Blocks:
        """The same terms without pair sums, for an average that keeps lifts apart."""
        return self if self.pairs is None else self._unpaired

    @cached_property
    def _unpaired(self) -> Blocks:
        return replace(self, shared=None, pairs=None)

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
        fill_variance(spread[..., OWN_VARIANCE], 2, self._summed, self.sums)
        spread[..., NONZERO] = self._by_numerator(lambda terms: (terms != 0).astype(float) @ np.ones(self.size))
        if self.pairs is not None:
            fill_variance(spread[..., PAIR_VARIANCE], len(TERMS), self._shared, self.pairs)
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
            rows.append(signed_sums((self.shared or self.series).take, signs, self.pairs[:, PAIR_SUMS]))
        if self.pairs is None or self.shared is not None:
            rows.append(signed_sums(self.series.take, signs, self.sums[:, [MomentRow.U, MomentRow.V]]))
        covered = totals[..., : 1 if self.pairs is None else 2] * (signs[:, :1, :1] != 0)
        return {"totals": totals, "signed": np.concatenate([covered, *map(self._by_column, rows)], axis=-1)}

    @cached_property
    def variance_steps(self) -> list[tuple[State, tuple[dict[str, Array], State]]]:
        """The steps of `variance` over these blocks, for all averages; each with the ends of the stream before them."""
        return []

    def decayed(self, alpha: float) -> Array:
        """Moments of each block in which an event counts `alpha^age`, newest at age 0, [blocks, columns, rows]."""
        return self.weighed(powers(np.array([alpha]), self.size))

    def weighed(self, kernel: Array) -> Array:
        """The same for weights of events, [blocks or 1, events]."""
        series, shared = self.series.weighed(kernel), self.shared and self.shared.weighed(kernel)
        return replace(self, series=series, shared=shared).moments

    def _weighed_apart(self, kernel: Array) -> Array:
        """The same for weights that differ, [blocks, policies or 1, estimators, events]."""
        weight = kernel if self._counts_once else self._weights * kernel
        own = shared = kernel_sums(self.series.values, kernel), squares(weight)
        if self.shared is not None:
            shared = kernel_sums(self.shared.values, kernel), squares(_weights(self.shared, self.sums) * kernel)
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
        moments[..., SUMS] = chosen(own[0], self.sums)
        if self.evidence[0].unsupported is None:
            moments[..., MomentRow.UNSUPPORTED] = 0.0
        moments[..., MomentRow.WEIGHT_SQUARE] = own[1]
        moments[..., MomentRow.LARGEST_WEIGHT] = largest_weight
        moments[..., MomentRow.LARGEST_TERM] = largest_term
        moments[..., MomentRow.LARGEST_IMPORTANCE] = self._largest_importance
        if self.pairs is not None:
            moments[..., PAIRS] = chosen(shared[0], self.pairs)
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
    def _summed(self) -> tuple[Array, Array]:
        """The sums of all series, and of `q^2`."""
        return self.series.totals[..., None], squares(self._weights)

    @cached_property
    def _shared(self) -> tuple[Array, Array]:
        """The same over the events that production has."""
        if self.shared is None:
            return self._summed
        return self.shared.totals[..., None], squares(_weights(self.shared, self.sums))

    @cached_property
    def _largest_importance(self) -> Array:
        return np.asarray(self.importance.max(axis=-1))


def _weights(series: EventSeries, sums: Integers) -> Array:
    """The averaging weights, [blocks, policies, 1 or estimators, events]. `sums`: the places of each estimator."""
    places = sums[:, MomentRow.WEIGHT]
    return series.take(places if (places != ProductTable.ONE).any() else places[:1])
